"""The name that a misspelt one on a command line was meant to be."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Sequence

_UNKNOWN = "unrecognized arguments: "


def closest(word: str, known: Iterable[str]) -> str:
    """Returns ` Did you mean NAME?` for the most similar of `known`; "" where none is similar."""
    names = list(known)
    longer = sorted((name for name in names if len(word) > 3 and name.startswith(word)), key=len)
    found = longer or difflib.get_close_matches(word, names, n=1)
    return f" Did you mean {found[0]}?" if found else ""


def for_flags(parser: argparse.ArgumentParser, message: str) -> str:
    """Returns an error of argparse, with the closest flag where one is unknown."""
    if not message.startswith(_UNKNOWN):
        return message
    word = message.removeprefix(_UNKNOWN).split()[0].split("=")[0]
    meant = closest(_dashed(word), _flags(parser)) if word[0] == "-" else ""
    return f"{message}.{meant}" if meant else message


def _dashed(word: str) -> str:
    # "-np2", as a compiler would take it.
    return word if word.startswith("--") else word.rstrip("0123456789")


def _flags(parser: argparse.ArgumentParser) -> Sequence[str]:
    """The flags that `--help` shows, before those that are only accepted."""
    shown = [a for a in parser._actions if a.help != argparse.SUPPRESS]
    hidden = [a for a in parser._actions if a.help == argparse.SUPPRESS]
    return [flag for action in (*shown, *hidden) for flag in action.option_strings]
