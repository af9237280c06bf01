"""What the ranks print: prefixes, files per rank, and the last lines for the error report."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from pathlib import Path
from typing import IO, Any

# A longer line is shown in pieces of this size, so that memory stays bounded.
MAX_LINE = 1 << 20
TAIL_LINES = 200
TAIL_LINE_BYTES = 2000


class ClosedOutputError(Exception):
    """The launcher's own output was closed by whoever read it."""


class LineSplitter:
    """Cuts a stream of bytes into lines, each with its end.

    A line ends at a newline, or at a carriage return without one (progress bars). Nothing is
    decoded; what has no end yet waits for it or for `flush`.

    Example:
        >>> splitter = LineSplitter()
        >>> splitter.feed(b"one\\ntw"), splitter.feed(b"o\\n"), splitter.flush()
        ([b'one\\n'], [b'two\\n'], [])
    """

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self._max_line = max_line
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Takes the next bytes and returns the lines that they complete."""
        after_return = bool(self._parts) and self._parts[-1].endswith(b"\r")
        ends_line = after_return or b"\n" in data or b"\r" in data
        self._parts.append(data)
        self._size += len(data)
        if not ends_line and self._size <= self._max_line:
            return []  # joining only when a line ends keeps long lines linear
        lines, rest = _cut(b"".join(self._parts))
        while len(rest) > self._max_line:
            lines.append(rest[: self._max_line] + b"\n")
            rest = rest[self._max_line :]
        self._parts, self._size = ([rest], len(rest)) if rest else ([], 0)
        return lines

    def flush(self) -> list[bytes]:
        """Returns the unfinished last line, if any, with a newline added."""
        rest = b"".join(self._parts)
        self._parts, self._size = [], 0
        return [rest.removesuffix(b"\r") + b"\n"] if rest else []


def _cut(data: bytes) -> tuple[list[bytes], bytes]:
    lines = []
    for line in data.split(b"\n"):
        *heads, tail = line.split(b"\r")
        if heads and not tail:  # "\r" at the end: it may belong to a newline
            tail = heads.pop() + b"\r"
        lines += [head + b"\r" for head in heads if head]
        lines.append(tail + b"\n")
    rest = lines.pop().removesuffix(b"\n")
    return lines, rest


class Console:
    """The launcher's own standard output and error, where all ranks meet.

    The first write to a stream that its reader closed raises ClosedOutputError; later ones
    do nothing.
    """

    def __init__(self, stdout: Any = None, stderr: Any = None, *, timestamps: bool = False) -> None:
        self._streams = {1: stdout or sys.stdout, 2: stderr or sys.stderr}
        self._timestamps = timestamps
        # A process started without a stream has None there; what goes to it is dropped.
        self._closed = {fd for fd, stream in self._streams.items() if stream is None}

    def write_lines(self, fd: int, prefix: str, lines: list[bytes]) -> None:
        """Writes each line behind `prefix` in one piece, so that ranks do not mix."""
        if not lines:
            return
        if self._timestamps:
            now = time.time()
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))
            prefix = f"{stamp}.{int(now * 1000) % 1000:03d} {prefix}"
        head = prefix.encode()
        self._write(fd, b"".join(head + line for line in lines))

    def say(self, text: str) -> None:
        """Writes the launcher's own words to standard error."""
        with contextlib.suppress(ClosedOutputError):
            self._write(2, b"".join(f"tfringrun: {line}\n".encode() for line in text.splitlines()))

    def show(self, data: bytes) -> None:
        """Writes bytes to standard error as they are."""
        with contextlib.suppress(ClosedOutputError):
            self._write(2, data)

    def _write(self, fd: int, data: bytes) -> None:
        stream = self._streams[fd]
        if fd in self._closed:
            return
        try:
            binary = getattr(stream, "buffer", None)
            if binary is None:  # a notebook's stream, or a test's
                stream.write(data.decode("utf-8", "replace"))
            else:
                stream.flush()
                binary.write(data)
            stream.flush()
        except BrokenPipeError as error:
            self._closed.add(fd)
            raise ClosedOutputError from error


class RankOutput:
    """One stream of one rank: to the console by lines, to a file byte by byte."""

    def __init__(self, console: Console, fd: int, rank: int, folder: Path | None) -> None:
        self._console = console
        self._fd = fd
        self._prefix = f"[{rank}] "
        self._splitter = LineSplitter()
        self._tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._file: IO[bytes] | None = None
        if folder is not None:
            directory = folder / f"rank.{rank}"
            directory.mkdir(parents=True, exist_ok=True)
            path = directory / {1: "stdout", 2: "stderr"}[fd]
            self._file = open(path, "wb", buffering=0)  # noqa: SIM115 (closed by `close`)

    def feed(self, data: bytes) -> None:
        """Takes bytes that the rank wrote."""
        if self._file is not None:
            self._file.write(data)
        self._show(self._splitter.feed(data))

    def close(self) -> None:
        """Shows what is left and closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._show(self._splitter.flush())

    def tail(self) -> list[str]:
        """The last complete lines, decoded, without their ends."""
        return [line.decode("utf-8", "replace").rstrip("\r\n") for line in self._tail]

    def _show(self, lines: list[bytes]) -> None:
        self._tail.extend(line[:TAIL_LINE_BYTES] for line in lines)
        self._console.write_lines(self._fd, self._prefix, lines)
