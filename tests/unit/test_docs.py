"""The documentation tells the truth: its Python blocks run, its links lead somewhere."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path
from typing import Any

import keras
import pytest

import tfring
from tfring import settings

from ..pages import PAGES, ROOT, Block, blocks, run

# Variables that are no settings: the identity of a worker, and switches of the build.
NO_SETTINGS = {
    *("TFRING_RANK", "TFRING_SIZE", "TFRING_LOCAL_RANK", "TFRING_LOCAL_SIZE"),
    *("TFRING_CROSS_RANK", "TFRING_CROSS_SIZE", "TFRING_HOSTNAME"),
    *("TFRING_RENDEZVOUS", "TFRING_SECRET", "TFRING_JOB_ID"),
    *("TFRING_BUILD_TENSORFLOW", "TFRING_BUILD_TESTS", "TFRING_SANITIZE"),
    *("TFRING_PROPERTY_CASES", "TFRING_PROPERTY_SEED"),
}


def modules() -> list[str]:
    found = [m.name for m in pkgutil.walk_packages(tfring.__path__, "tfring.")]
    return [name for name in found if "__main__" not in name and ".bench" not in name]


@pytest.fixture(autouse=True)
def end_of_world(no_launcher: None):
    """Examples call `init` themselves; random numbers are the same each time."""
    keras.utils.set_random_seed(1)
    yield
    tfring.shutdown()


def programs() -> list[Any]:
    """Each block with what it needs: the page's first block."""
    found = [(page, blocks(page)[0], block) for page in PAGES for block in blocks(page)]
    return [
        pytest.param(page, sorted({first, block}), id=f"{page.name}:{block[0]}")
        for page, first, block in found
    ]


@pytest.mark.parametrize(("page", "needed"), programs())
def test_python_block_runs(
    page: Path, needed: list[Block], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for block in needed:
        run(page, block, names)


def test_there_are_blocks_to_run() -> None:
    assert sum(len(blocks(page)) for page in PAGES) >= 8


def anchors(page: Path) -> set[str]:
    """The places of a page that links may name, as GitHub makes them of headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", page.read_text())
    missing = []
    for link in links:
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if "://" in link or (target.exists() and not anchor):
            continue
        if not target.exists() or anchor not in anchors(target):
            missing.append(link)
    assert missing == []


def test_the_map_of_the_code_has_all_folders() -> None:
    page = (ROOT / "docs" / "internals.md").read_text()
    sources = [*ROOT.rglob("*.py"), *ROOT.rglob("*.h"), *ROOT.rglob("*.cc")]
    parts = {f"{name}/" for name in ("callbacks", "custom_ops", "examples", "tests", "tfring")}
    folders = {f"{path.parent.relative_to(ROOT)}/" for path in sources}
    # Bazel puts the package together in place, with copies of what the map has elsewhere.
    copies = ("tfring/_gpu/", "tfring/callbacks/")
    folders = {name for name in folders if f"{name.partition('/')[0]}/" in parts}
    folders = {name for name in folders if not name.startswith(copies)}
    assert sorted(name for name in folders if f"| `{name}` |" not in page) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_that_are_named_exist(page: Path) -> None:
    named = set(re.findall(r"\bTFRING_[A-Z_]*[A-Z]\b", page.read_text()))
    declared = {name for setting in settings.SETTINGS for name in setting.environment}
    assert named - declared - NO_SETTINGS == set()


@pytest.mark.parametrize("name", modules())
def test_docstring_examples(name: str, request: pytest.FixtureRequest) -> None:
    keras.config.disable_interactive_logging()  # progress bars are no output
    request.addfinalizer(keras.config.enable_interactive_logging)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert failed == 0, "see the captured output"
