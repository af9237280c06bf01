"""Hosts and their slots, and which rank runs where."""

from __future__ import annotations

import collections
import ipaddress
import itertools
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Far beyond what one launcher can start; keeps a slip of the finger from filling the memory.
MOST_RANKS = 10_000

_ENTRY = re.compile(r"(?P<name>\[[^\]\s]+\]|[^\[\]:\s]+)(?::(?P<slots>[^:\s]*))?")


@dataclass(frozen=True)
class Host:
    """A host as the user wrote it, and how many ranks it may hold."""

    name: str
    slots: int


@dataclass(frozen=True)
class Place:
    """One rank's identity: where it runs and its numbers in the job."""

    rank: int
    size: int
    host: str
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    def environment(self) -> dict[str, str]:
        """The identity variables of this rank, under our names and Horovod's."""
        numbers = {
            "RANK": self.rank,
            "SIZE": self.size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_SIZE": self.local_size,
            "CROSS_RANK": self.cross_rank,
            "CROSS_SIZE": self.cross_size,
            "HOSTNAME": self.host,
        }
        return {
            f"{family}_{name}": str(value)
            for family in ("TFRING", "HOROVOD")
            for name, value in numbers.items()
        }


def _parse_slots(text: str, where: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ValueError(f"{where}: slots must be a positive integer. Received: slots={text!r}")
    return int(text)


def _parse_entry(text: str, where: str) -> Host:
    match = _ENTRY.fullmatch(text)
    if match is None or match["name"].startswith("-"):
        raise ValueError(
            f"{where}: expected host:slots, or [address]:slots for IPv6. Received: {text!r}"
        )
    slots = match["slots"]
    return Host(match["name"].strip("[]"), 1 if slots is None else _parse_slots(slots, where))


def parse_hosts(text: str) -> list[Host]:
    """Parses `host:slots,host:slots`; a host without slots has one.

    Args:
        text: The value of `-H`, for example `"node1:2,node2:4"`.

    Returns:
        The hosts in the order given; a name may come more than once.

    Raises:
        ValueError: An entry is empty or malformed, or its slots are not positive.

    Example:
        >>> parse_hosts("node1:2,node2")
        [Host(name='node1', slots=2), Host(name='node2', slots=1)]
    """
    return [_parse_entry(entry.strip(), f"-H {text}") for entry in text.split(",")]


def parse_hostfile(path: str | Path) -> list[Host]:
    """Reads a file with one `host slots=N` (or `host:N`, or `host`) per line.

    `#` starts a comment; blank lines are skipped.

    Args:
        path: The file to read.

    Returns:
        The hosts in the order of the file.

    Raises:
        ValueError: The file cannot be read, names no host, or a line is malformed;
            the text holds the file and the line number.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--hostfile {path}: cannot be read: {error}") from error
    hosts = []
    for number, line in enumerate(lines, start=1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        where = f"{path}, line {number}"
        host = _parse_entry(words[0], where)
        if len(words) > 1:
            key, equals, value = "".join(words[1:]).partition("=")
            if key != "slots" or not equals:
                raise ValueError(f"{where}: expected `host slots=N`. Received: {line.strip()!r}")
            host = Host(host.name, _parse_slots(value, where))
        hosts.append(host)
    if not hosts:
        raise ValueError(f"--hostfile {path}: names no host")
    return hosts


def assign(hosts: Sequence[Host], size: int) -> list[Place]:
    """Gives every rank a place, filling the hosts' slots in the order given.

    Entries with the same name are one host: its local ranks count on.

    Args:
        hosts: The hosts with their slots.
        size: The number of ranks.

    Returns:
        One place per rank, in rank order.

    Raises:
        ValueError: There are fewer slots than ranks.

    Example:
        >>> [p.local_rank for p in assign(parse_hosts("a,b,a,b"), 4)]
        [0, 0, 1, 1]
    """
    if size > MOST_RANKS:
        raise ValueError(f"-np must be at most {MOST_RANKS}. Received: -np {size}")
    slots = sum(host.slots for host in hosts)
    if slots < size:
        listed = ",".join(f"{host.name}:{host.slots}" for host in hosts)
        raise ValueError(
            f"-np {size} asks for {size} processes, but the hosts have {slots} "
            f"slot{'s' if slots != 1 else ''} in all ({listed}). "
            "Add hosts or slots, or lower -np."
        )
    every_slot = (host.name for host in hosts for _ in range(host.slots))
    names = list(itertools.islice(every_slot, size))
    counts = collections.Counter(names)  # in the order of first sight
    given: collections.Counter[str] = collections.Counter()
    places = []
    for rank, name in enumerate(names):
        local_rank = given[name]
        given[name] += 1
        peers = [other for other, count in counts.items() if count > local_rank]
        places.append(
            Place(
                rank=rank,
                size=size,
                host=name,
                local_rank=local_rank,
                local_size=counts[name],
                cross_rank=peers.index(name),
                cross_size=len(peers),
            )
        )
    return places


def is_local(name: str) -> bool:
    """Whether `name` means this machine, decided without asking a name server."""
    own = socket.gethostname()
    if name in ("localhost", own):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name.startswith(own + ".") or own.startswith(name + ".")
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((name, 0))  # only an address of this machine can be bound
        except OSError:
            return False
    return True
