"""Between hosts on a slow network: how near to the wire's bound, and what travels."""

from __future__ import annotations

import os
import subprocess

import pytest

from .wire_bound import Answer, Question, measure

pytestmark = [
    pytest.mark.alone,
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        os.geteuid() != 0 or not os.path.exists("/dev/net/tun"),
        reason="a slow network needs root and tun devices",
    ),
]

_MIB = 2**20


def answer(question: Question) -> Answer:
    try:
        return measure(question)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces with tun devices here: {error}")


# A bar for busy machines, far below what wire_bound.py measures on a quiet one, and above what
# an exchange without anything in flight meanwhile reaches.
@pytest.mark.parametrize("hosts", [2, 3])
def test_most_of_the_wire_is_used(hosts: int) -> None:
    assert answer(Question(hosts=hosts, mbits=200, mib=12, rounds=2)).share > 0.7


def test_bytes_between_hosts_do_not_grow_with_their_ranks() -> None:
    one = answer(Question(hosts=2, mib=4, rounds=1, warmups=0))
    two = answer(Question(hosts=2, ranks_per_host=2, mib=4, rounds=1, warmups=0))
    assert one.sent == two.sent
    # Half the vector twice, and less than a thousandth for the messages' headers.
    assert all(4 * _MIB <= sent < 4.004 * _MIB for sent in one.sent)
