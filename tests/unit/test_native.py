"""The ctypes declarations against the C header that they mirror."""

from __future__ import annotations

import pathlib
import re

import pytest

from tfring import _native
from tfring.version import __version__

HEADER = (pathlib.Path(__file__).parents[2] / "custom_ops" / "core" / "tfring.h").read_text()


def fields_of(struct: str) -> list[str]:
    body = re.search(rf"typedef struct {struct} \{{(.*?)\}} {struct};", HEADER, re.DOTALL)
    assert body is not None
    text = re.sub(r"//.*", "", body.group(1))
    declarations = [line for line in text.split(";") if line.strip()]
    names = [name for line in declarations for name in line.split(",")]
    return [re.sub(r"\[.*", "", name).split()[-1].lstrip("*") for name in names]


@pytest.mark.parametrize(
    ("struct", "mirror"),
    [
        ("tfr_error", _native.Error),
        ("tfr_bytes", _native.Bytes),
        ("tfr_config", _native.Config),
        ("tfr_info", _native.Info),
        ("tfr_stats", _native.Stats),
        ("tfr_record", _native.Record),
    ],
)
def test_fields_stand_in_the_headers_order(struct: str, mirror: type) -> None:
    assert [name for name, _ in mirror._fields_] == fields_of(struct)


def test_every_declared_function_is_in_the_library() -> None:
    engine = _native.engine()
    for name in _native._FUNCTIONS:
        assert getattr(engine, name).argtypes is not None
        assert f"{name}(" in HEADER


def test_version_is_the_packages() -> None:
    assert _native.engine().tfr_version().decode() == __version__


def test_missing_library_says_what_to_do() -> None:
    with pytest.raises(ImportError, match="pip install"):
        _native.library_path("libmissing.so")
