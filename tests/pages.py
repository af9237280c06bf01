"""The Python blocks of the documentation's pages."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# Number of the line before a block, and its code.
Block = tuple[int, str]


def blocks(page: Path) -> list[Block]:
    """Returns a page's blocks in their order."""
    text = page.read_text()
    return [(text.count("\n", 0, m.start(1)), m[1]) for m in _BLOCK.finditer(text)]


def run(page: Path, block: Block, names: dict[str, object]) -> None:
    """Runs a block of a page; tracebacks show the page's own line numbers."""
    line, code = block
    exec(compile("\n" * line + code, str(page), "exec"), names)
