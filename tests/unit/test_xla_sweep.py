"""What `python -m tests.xla_sweep` takes."""

from __future__ import annotations

import pytest

from ..xla_sweep import __main__ as sweep


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-np", "x"], "-np: must be a positive integer. Received: 'x'"),
        (["-np", "2,0"], "-np: must be a positive integer. Received: '0'"),
        (["--sizes", "4X"], "--sizes: must be a positive integer. Received: '4X'"),
        (["--sizes=-4"], "--sizes: must be a positive integer. Received: '-4'"),
        (["--sizes", "4,"], "--sizes: must be a positive integer. Received: ''"),
        (["--repeats", "0"], "--repeats: must be a positive integer. Received: '0'"),
        (["--collective", "sum,all"], "mixed. Received: 'all'"),
    ],
)
def test_a_wrong_argument_is_told(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        sweep.main(arguments)
    assert says in capsys.readouterr().err
