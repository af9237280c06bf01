"""What MSG_ZEROCOPY would bring here: sends with and without it in turns, over loopback and, as
root, between two namespaces. The kernel tells of each send whether it copied after all.

    python tests/end_to_end/zerocopy.py --mib 64 --rounds 4 --turns 5
"""

from __future__ import annotations

import argparse
import ctypes
import os
import select
import socket
import statistics
import struct
import sys
import time
from typing import NamedTuple

sys.path.insert(0, os.path.dirname(__file__))
from namespaces import Bridge

_SO_ZEROCOPY, _MSG_ZEROCOPY = 60, 0x4000000
_ORIGIN_ZEROCOPY, _CODE_COPIED = 5, 1


class Cost(NamedTuple):
    """Of some sends."""

    seconds: float
    processor: float  # seconds of the sender's
    sends: int  # with MSG_ZEROCOPY
    copied: int  # of these


def _receive_all(server: socket.socket, connections: int) -> None:
    buffer = bytearray(1 << 20)
    for _ in range(connections):
        connection, _ = server.accept()
        with connection:
            while connection.recv_into(buffer):
                pass


def _finished(connection: socket.socket) -> tuple[int, int]:
    """Sends that the kernel has no more need of the memory for, and how many of them it copied."""
    done = copied = 0
    while True:
        try:
            _, notes, _, _ = connection.recvmsg(0, 512, socket.MSG_ERRQUEUE)
        except BlockingIOError:
            return done, copied
        for _, _, note in notes:
            _, origin, _, code, _, first, last = struct.unpack_from("IBBBBII", note)
            if origin == _ORIGIN_ZEROCOPY:
                done += last - first + 1
                copied += (last - first + 1) * (code & _CODE_COPIED)


def _send(address: tuple[str, int], data: bytes, rounds: int, zerocopy: bool) -> Cost:
    with socket.create_connection(address) as connection:
        if zerocopy:
            connection.setsockopt(socket.SOL_SOCKET, _SO_ZEROCOPY, 1)
        flags = socket.MSG_DONTWAIT | (_MSG_ZEROCOPY if zerocopy else 0)
        sends = done = copied = 0
        begin, busy = time.perf_counter(), time.process_time()
        for _ in range(rounds):
            left = memoryview(data)
            while left:
                try:
                    left = left[connection.send(left, flags) :]
                    sends += zerocopy
                except BlockingIOError:
                    select.select([], [connection], [])
        while done < sends:
            more, more_copied = _finished(connection)
            done, copied = done + more, copied + more_copied
        return Cost(
            time.perf_counter() - begin, time.process_time() - busy, int(sends), int(copied)
        )


def _compare(address: str, namespace: str | None, arguments: argparse.Namespace) -> None:
    data = bytes(arguments.mib << 20)
    server = socket.create_server((address, 0))
    child = os.fork()
    if child == 0:
        _receive_all(server, 2 * arguments.turns)
        os._exit(0)
    if namespace is not None:
        with open(f"/run/netns/{namespace}") as file:
            ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0)
    costs: dict[bool, list[Cost]] = {False: [], True: []}
    for _ in range(arguments.turns):
        for zerocopy, list_ in costs.items():
            list_.append(_send(server.getsockname(), data, arguments.rounds, zerocopy))
    os.waitpid(child, 0)
    gigabytes = len(data) * arguments.rounds / 1e9
    for zerocopy, list_ in costs.items():
        seconds = statistics.median(cost.seconds for cost in list_)
        processor = statistics.median(cost.processor for cost in list_)
        copied = f", {list_[-1].copied} of {list_[-1].sends} sends copied" if zerocopy else ""
        print(
            f"{'between namespaces' if namespace else 'loopback'}, "
            f"{'MSG_ZEROCOPY' if zerocopy else 'copying'}: {gigabytes / seconds:.2f} GB/s, "
            f"{1e3 * processor / gigabytes:.0f} ms of the sender's processor a GB{copied}",
            flush=True,
        )


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    _compare("127.0.0.1", None, arguments)
    if os.geteuid() == 0:
        with Bridge(1) as network:
            _compare(f"{network.network}.254", network.name(1), arguments)
            sys.stdout.flush()


if __name__ == "__main__":
    _main()
