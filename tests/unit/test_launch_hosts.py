"""Hosts, slots and the places of ranks."""

from __future__ import annotations

import socket

import pytest

from tfring.launch.hosts import Host, assign, is_local, parse_hostfile, parse_hosts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("localhost:4", [Host("localhost", 4)]),
        ("a:1,b:2", [Host("a", 1), Host("b", 2)]),
        ("a, b:3", [Host("a", 1), Host("b", 3)]),
        ("a,b,a,b", [Host("a", 1), Host("b", 1), Host("a", 1), Host("b", 1)]),
        ("10.0.0.1:2", [Host("10.0.0.1", 2)]),
        ("[::1]:2,[fe80::1]", [Host("::1", 2), Host("fe80::1", 1)]),
        ("me@node-1.example:8", [Host("me@node-1.example", 8)]),
    ],
)
def test_parse_hosts(text, hosts):
    assert parse_hosts(text) == hosts


@pytest.mark.parametrize(
    "text", ["", "a,,b", "a:", "a:0", "a:-1", "a:x", "a:1.5", "a:1:2", ":2", "a b:1", "a:²", "-o:1"]
)
def test_parse_hosts_quotes_what_it_refuses(text):
    with pytest.raises(ValueError, match="Received"):
        parse_hosts(text)


def test_hostfile(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# all of them\n\nnode1 slots=2  # two\nnode2:3\nnode3\nnode4 slots = 4\n")
    expected = [Host("node1", 2), Host("node2", 3), Host("node3", 1), Host("node4", 4)]
    assert parse_hostfile(path) == expected


@pytest.mark.parametrize(
    "line", ["node slots=0", "node slots", "node max_slots=2", "node slots=two", "node 2"]
)
def test_hostfile_names_the_line(tmp_path, line):
    path = tmp_path / "hosts"
    path.write_text(f"# first\n{line}\n")
    with pytest.raises(ValueError, match="line 2.*Received"):
        parse_hostfile(path)


def test_hostfile_without_hosts(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# nobody\n")
    with pytest.raises(ValueError, match="names no host"):
        parse_hostfile(path)


def test_hostfile_missing(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        parse_hostfile(tmp_path / "hosts")


@pytest.mark.parametrize(
    ("text", "size", "local", "local_size", "cross", "cross_size"),
    [
        ("localhost:3", 3, [0, 1, 2], [3, 3, 3], [0, 0, 0], [1, 1, 1]),
        ("a:2,b:2", 4, [0, 1, 0, 1], [2, 2, 2, 2], [0, 0, 1, 1], [2, 2, 2, 2]),
        ("a,b,a,b", 4, [0, 0, 1, 1], [2, 2, 2, 2], [0, 1, 0, 1], [2, 2, 2, 2]),
        ("a:1,b:2", 3, [0, 0, 1], [1, 2, 2], [0, 1, 0], [2, 2, 1]),
        ("a:4,b:4", 5, [0, 1, 2, 3, 0], [4, 4, 4, 4, 1], [0, 0, 0, 0, 1], [2, 1, 1, 1, 2]),
        ("a:2,b:2", 1, [0], [1], [0], [1]),
    ],
)
def test_places(text, size, local, local_size, cross, cross_size):
    places = assign(parse_hosts(text), size)
    assert [place.rank for place in places] == list(range(size))
    assert {place.size for place in places} == {size}
    assert [place.local_rank for place in places] == local
    assert [place.local_size for place in places] == local_size
    assert [place.cross_rank for place in places] == cross
    assert [place.cross_size for place in places] == cross_size


def test_too_few_slots_says_how_many():
    with pytest.raises(ValueError, match=r"5 processes.*3 slots.*a:1,b:2"):
        assign(parse_hosts("a:1,b:2"), 5)


@pytest.mark.parametrize("size", [10_001, 10**11])
def test_too_many_ranks_are_refused_at_once(size):
    with pytest.raises(ValueError, match=rf"-np must be at most 10000. Received: -np {size}"):
        assign([Host("a", size)], size)


def test_identity_has_both_families_of_names():
    env = assign(parse_hosts("a,b"), 2)[1].environment()
    identity = {"RANK": "1", "SIZE": "2", "LOCAL_RANK": "0", "LOCAL_SIZE": "1"}
    identity |= {"CROSS_RANK": "1", "CROSS_SIZE": "2", "HOSTNAME": "b"}
    assert env == {f"{p}_{n}": v for p in ("TFRING", "HOROVOD") for n, v in identity.items()}


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "127.0.0.5", "::1"])
def test_local_names(name):
    assert is_local(name)


def test_own_name_is_local():
    assert is_local(socket.gethostname())
    assert is_local(socket.gethostname() + ".example.org")


@pytest.mark.parametrize("name", ["nosuch", "192.0.2.1", "me@localhost", "localhost2"])
def test_other_names(name):
    assert not is_local(name)
