"""One process, one rank: no launcher, no peers."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import tfring as hvd


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes away what a launcher or a user's shell may have set."""
    for name in list(os.environ):
        if name.startswith(("TFRING_", "HOROVOD_")):
            monkeypatch.delenv(name)


@pytest.fixture
def world(no_launcher: None) -> Iterator[None]:
    """A world of one rank during the test."""
    hvd.init()
    yield
    hvd.shutdown()
