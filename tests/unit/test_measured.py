"""README's short tables say what docs/measured.md says."""

from __future__ import annotations

import pytest

from .. import measured

NUMBERS = """\
**Allreduce (sum) of float32, 2 ranks** on one machine.

| bytes | limit | copy | engine | op, eager | gloo | MPI 5 | engine / limit | engine / best peer |
|---|---:|---:|---:|---:|---:|---:|---:|---:|
| 4 B | - | - | 2.00 us | 0.50 us | 4.00 us | 2.50 us | - | 0.80 |
| 256 KiB | 1.00 us | 0.10 us | 9.00 us | 9.00 us | 9.00 us | 9.00 us | 9.00 | 1.00 |
| 1 MiB | 250 us | 100 us | 1.00 ms | 2.00 ms | 900 us | 2.00 ms | 4.00 | 1.11 |

**Grouped allreduce (sum of a list of tensors) of float32, 2 ranks** on one machine.

| tensors |  | one call | per tensor | packed | flat buffer |
|---|---:|---:|---:|---:|---:|
| 5 tensors | limit | - | - | - | 5.00 ms |
|  | engine | 12.0 ms | - | - | 11.0 ms |
|  | MPI 5 | - | 40.0 ms | 24.0 ms | 2.00 ms |

* MPI 5: mpi4py
* a machine, on a day
* measured by `tfring bench`

| promise | measured | at most | kept |
|---|---:|---:|---:|
| 4 B: engine / MPI 5 | 0.80 | 0.50 | **no** |
"""
TRAINING = """\
| model | parameters | batch | alone | 2 independent | 2 with tfring | efficiency |
|---|---:|---:|---:|---:|---:|---:|
| cnn | 0.7M | 32 | 177/s | 236/s | 232/s | 98.9% |

| model | rank | step |
|---|---:|---:|
| cnn | 0 | 276 ms |

* a machine, on a day
* measured by `tfring bench train`

| promise | measured | allowed | kept |
|---|---:|---:|---:|
| cnn | 97.9% | at least 98% | **no** |
"""


def page(numbers: str = NUMBERS, training: str = TRAINING) -> str:
    marks = "text\n<!-- numbers -->\n<!-- /numbers -->\n<!-- training -->\n<!-- /training -->\n"
    return measured.with_part(measured.with_part(marks, "numbers", numbers), "training", training)


def test_readme_is_up_to_date() -> None:
    """If not: `python -m tests.measured`."""
    shown = measured.part(measured.README.read_text(), "summary")
    assert shown.strip() == measured.summary(measured.MEASURED.read_text())


def test_readme_may_say_who_is_faster_from_16_kib_on() -> None:
    text = measured.part(measured.MEASURED.read_text(), "numbers")
    rows = [row for rows in measured.tables(text, "bytes") for row in rows]
    slower = [row for row in rows if not row["engine / best peer"].startswith("0.")]
    assert {row["bytes"] for row in slower} <= {"4 B", "1 KiB"}


def test_a_row_has_the_fastest_other_library() -> None:
    lines = measured.summary(page()).splitlines()
    assert "| 4 B | 2.00 us | 2.50 us, MPI 5 | 0.80 | - |" in lines
    assert "| 1 MiB | 1.00 ms | 900 us, gloo | 1.11 | 4.00 |" in lines


def test_a_flat_buffer_is_no_list() -> None:
    assert "| 5 tensors | 12.0 ms | 24.0 ms, MPI 5, packed | 0.50 | - |" in measured.summary(page())


def test_training() -> None:
    assert "| cnn | 0.7M | 32 | 236/s | 232/s | 98.9% |" in measured.summary(page())


def test_what_is_not_kept_is_said() -> None:
    assert measured.summary(page()).splitlines()[-8:-4] == [
        "**Not kept: 2 of 2 promises**",
        "",
        "* 4 B: engine / MPI 5: 0.80 in place of at most 0.50",
        "* cnn: 97.9% in place of at least 98%",
    ]


def test_what_is_kept_is_counted() -> None:
    kept = page(NUMBERS.replace("**no**", "yes"), TRAINING.replace("**no**", "yes"))
    assert "2 of 2 promises were kept" in measured.summary(kept)


def test_where_it_was_measured_is_said_once() -> None:
    assert measured.summary(page()).splitlines()[-3:] == [
        "* a machine, on a day",
        "* measured by `tfring bench`",
        "* measured by `tfring bench train`",
    ]


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no marks <!-- numbers -->"):
        measured.with_part("nothing", "numbers", "")
