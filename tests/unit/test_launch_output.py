"""What the ranks print: nothing is lost, and lines of ranks do not mix."""

from __future__ import annotations

import io
import os
import random
import sys

import pytest

from tfring.launch.output import ClosedOutputError, Console, LineSplitter, RankOutput


class Stream(io.StringIO):
    """Text and bytes, as sys.stdout has them."""

    def __init__(self):
        super().__init__()
        self.buffer = io.BytesIO()


def split(chunks, **kwargs):
    splitter = LineSplitter(**kwargs)
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    return lines + splitter.flush()


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"a\nb\n"], [b"a\n", b"b\n"]),
        ([b"a", b"b\nc"], [b"ab\n", b"c\n"]),
        ([b"\n\n"], [b"\n", b"\n"]),
        ([b"a\r\nb\r", b"\nc"], [b"a\r\n", b"b\r\n", b"c\n"]),
        ([b"1%\r2%\r", b"3%\r\n"], [b"1%\r", b"2%\r", b"3%\r\n"]),
        ([b"1%\r", b"2%"], [b"1%\r", b"2%\n"]),
        ([b"\r1%", b"\r2%\n"], [b"1%\r", b"2%\n"]),
        ([b"\xff\x00\xfe\n", b"\x80"], [b"\xff\x00\xfe\n", b"\x80\n"]),
        ([b""], []),
    ],
)
def test_lines(chunks, lines):
    assert split(chunks) == lines


def test_a_very_long_line_is_shown_in_pieces():
    lines = split([b"x" * 7] * 10 + [b"\n"], max_line=32)
    assert [len(line) for line in lines] == [33, 33, 7]
    assert b"".join(line.rstrip(b"\n") for line in lines) == b"x" * 70


def test_a_long_line_within_the_limit_stays_whole():
    assert split([b"y" * 65536] * 8 + [b"\n"]) == [b"y" * 524288 + b"\n"]


@pytest.mark.parametrize("seed", range(5))
def test_any_cut_of_any_bytes_gives_the_same_lines(seed):
    rng = random.Random(seed)
    data = bytes(rng.choice(b"ab\n\r\xff\x00") for _ in range(300))
    cuts = sorted(rng.randrange(300) for _ in range(20))
    chunks = [data[a:b] for a, b in zip([0, *cuts], [*cuts, 300], strict=True)]
    assert split(chunks) == split([data])
    kept = b"".join(split(chunks)).replace(b"\r", b"").rstrip(b"\n")
    assert kept == data.replace(b"\r", b"").rstrip(b"\n")


def test_every_line_gets_its_prefix():
    stream = Stream()
    RankOutput(Console(stream, Stream()), 1, 12, None).feed(b"one\ntwo\nthr")
    assert stream.buffer.getvalue() == b"[12] one\n[12] two\n"


def test_the_unfinished_last_line_is_shown_at_the_end():
    stream = Stream()
    output = RankOutput(Console(Stream(), stream), 2, 0, None)
    output.feed(b"no newline")
    output.close()
    output.close()
    assert stream.buffer.getvalue() == b"[0] no newline\n"


def test_timestamps_come_before_the_prefix():
    stream = Stream()
    console = Console(stream, Stream(), timestamps=True)
    RankOutput(console, 1, 3, None).feed(b"x\n")
    stamp, prefix, text = stream.buffer.getvalue().decode().split()
    assert (len(stamp), prefix, text) == (len("2026-01-31T10:20:30.123"), "[3]", "x")


def test_a_stream_without_bytes_gets_text():
    stream = io.StringIO()
    RankOutput(Console(stream, stream), 1, 0, None).feed(b"\xff ok\n")
    assert stream.getvalue() == "[0] \ufffd ok\n"


def test_files_hold_the_very_bytes(tmp_path):
    output = RankOutput(Console(Stream(), Stream()), 1, 7, tmp_path)
    data = b"a\r\n\xff\x00 no newline"
    output.feed(data[:4])
    output.feed(data[4:])
    output.close()
    assert (tmp_path / "rank.7" / "stdout").read_bytes() == data


def test_the_tail_is_bounded():
    output = RankOutput(Console(Stream(), Stream()), 2, 0, None)
    output.feed(b"".join(b"%d\n" % i for i in range(1000)) + b"z" * 10000 + b"\n")
    assert len(output.tail()) == 200
    assert output.tail()[-2] == "999"
    assert len(output.tail()[-1]) == 2000


def test_a_closed_reader_is_reported_once():
    read_end, write_end = os.pipe()
    os.close(read_end)
    stream = os.fdopen(write_end, "w")
    console = Console(stream, Stream())
    with pytest.raises(ClosedOutputError):
        console.write_lines(1, "[0] ", [b"x\n"])
    console.write_lines(1, "[0] ", [b"x\n"])
    console.say("still here")
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_a_missing_stream_drops_what_goes_to_it(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    err = io.StringIO()
    console = Console(stderr=err)
    console.write_lines(1, "[0] ", [b"lost\n"])
    console.say("kept")
    assert err.getvalue() == "tfringrun: kept\n"
