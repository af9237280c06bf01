"""The command that fills the table of versions; it is run by hand (docs/versions.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..versions import __main__ as versions
from ..versions import rows, wheel


@pytest.mark.parametrize(
    ("glibc", "libstdcxx", "tag"),
    [
        ((2, 34), (3, 4, 29), "manylinux_2_34"),
        ((2, 34), (3, 4, 30), "manylinux_2_35"),
        ((2, 27), (3, 4, 21), "manylinux_2_28"),
        ((2, 2, 5), (3, 4, 26), "manylinux_2_31"),
        ((2, 38), (3, 4), "manylinux_2_38"),
    ],
)
def test_the_tag_is_of_what_both_libraries_need(
    glibc: tuple[int, ...], libstdcxx: tuple[int, ...], tag: str
) -> None:
    assert wheel.tag({"GLIBC": glibc, "GLIBCXX": libstdcxx}) == tag


def test_a_libstdcxx_that_is_not_known_gets_no_tag() -> None:
    with pytest.raises(ValueError, match=r"GLIBCXX_3\.4\.99"):
        wheel.tag({"GLIBC": (2, 40), "GLIBCXX": (3, 4, 99)})


def _row(version: str, python: str = "3.11.7", cell: str = "ok") -> rows.Row:
    return rows.Row(version, [version, "3.15", "2.3", python], [cell], "2026-01-02")


def test_rows_of_several_calls_are_one_table(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    for row in (_row("nightly"), _row("2.9.0", cell="failed"), _row("2.16.2", "3.12.1")):
        rows.Results(path, "one wheel").add(row)
    kept = rows.Results(path, "one wheel")
    kept.add(_row("2.9.0"))
    kept.add(_row("2.16.2"))
    assert rows.table(["eager"], rows.Results(path, "one wheel")).splitlines() == [
        "| TensorFlow | Keras | NumPy | Python | eager | date |",
        "| --- | --- | --- | --- | --- | --- |",
        "| 2.9.0 | 3.15 | 2.3 | 3.11.7 | ok | 2026-01-02 |",
        "| 2.16.2 | 3.15 | 2.3 | 3.11.7 | ok | 2026-01-02 |",
        "| 2.16.2 | 3.15 | 2.3 | 3.12.1 | ok | 2026-01-02 |",
        "| nightly | 3.15 | 2.3 | 3.11.7 | ok | 2026-01-02 |",
    ]


def test_a_table_is_of_one_wheel(tmp_path: Path) -> None:
    rows.Results(tmp_path / "rows.json", "one").add(_row("2.16.2"))
    with pytest.raises(ValueError, match="rows of another wheel"):
        rows.Results(tmp_path / "rows.json", "another")


@pytest.mark.parametrize("name", ["is_not_there.whl", "text.whl"])
def test_what_is_no_wheel_is_told(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.whl").write_text("text")
    with pytest.raises(SystemExit, match="2"):
        versions.main(["--wheel", str(tmp_path / name)])
    assert f"Received: {tmp_path / name}" in capsys.readouterr().err
