"""docs/horovod.md tells the truth: names, arguments, defaults, variables and flags."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tfring
from tfring import _absent, settings
from tfring.launch import cli, flags

PAGE = (Path(__file__).parents[2] / "docs" / "horovod.md").read_text()
VALUES = {"Average": tfring.Average, "global_process_set": tfring.global_process_set}
POSITIONAL = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)


class Entry(NamedTuple):
    """A name with what the page says about it."""

    section: str
    text: str  # of the name's cell, such as "join()"
    status: str
    note: str

    @property
    def name(self) -> str:
        return self.text.split("(")[0]

    @property
    def modules(self) -> list[str]:
        """Our modules, which the section's heading names behind the verb."""
        ours = re.split(r" (?:is|are) ", self.section)[-1]
        return re.findall(r"`(tfring[\w.]*)`", ours)

    @property
    def arguments(self) -> dict[str, Any] | None:
        """Arguments and defaults, None where the page shows none."""
        if "(" not in self.text:
            return None
        signature = self.text.split(".", 1)[-1] if "(self" in self.text else self.text
        function = ast.parse(f"def {signature}: 0")
        declared = function.body[0].args  # type: ignore[attr-defined]
        names = [argument.arg for argument in declared.args]
        defaults = [inspect.Parameter.empty] * (len(names) - len(declared.defaults))
        return dict(zip(names, defaults + [_value(d) for d in declared.defaults], strict=True))


def _value(default: ast.expr) -> Any:
    text = ast.unparse(default)
    if text == "Compression.none":
        return tfring.Compression.none
    return VALUES[text] if text in VALUES else ast.literal_eval(default)


def entries() -> Iterator[Entry]:
    for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        section, _, body = part.partition("\n")
        for row in re.findall(r"^\| (`.*?) \| (\w[\w ]*) \| ?(.*?)\|$", body, re.MULTILINE):
            for text in re.findall(r"`([^`]+)`", row[0]):
                yield Entry(section, text, row[1], row[2])


ENTRIES = list(entries())


def of(*statuses: str) -> list[Any]:
    """Parameters: module and entry, for each of our modules that the entry is about."""
    return [
        pytest.param(module, entry, id=f"{module}:{entry.name}")
        for entry in ENTRIES
        for module in entry.modules
        if entry.status in statuses
    ]


def ours(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def parameters(found: Any) -> dict[str, inspect.Parameter]:
    if not inspect.isclass(found):
        return dict(inspect.signature(found).parameters)
    names = dict(inspect.signature(found.__init__).parameters)
    del names["self"]
    return names


@pytest.mark.parametrize(("module", "entry"), of("works", "differs"))
def test_name_is_there_with_its_arguments(module: str, entry: Entry) -> None:
    found = ours(module, entry.name)
    if entry.arguments is None:
        return
    here = parameters(found)
    if entry.status == "works":
        positional = [name for name, p in here.items() if p.kind in POSITIONAL]
        assert positional[: len(entry.arguments)] == list(entry.arguments)
    for name, default in entry.arguments.items():
        if name not in here:
            assert f"`{name}`" in entry.note
        elif default is not inspect.Parameter.empty:
            assert here[name].default == default, name


@pytest.mark.parametrize(("module", "entry"), of("absent"))
def test_absent_name_says_what_to_use(module: str, entry: Entry) -> None:
    with pytest.raises(AttributeError, match=f"`{entry.name}` is not in {module}.*: .+"):
        ours(module, entry.name)


def test_statuses() -> None:
    known = {"works", "differs", "absent", "set", "no effect", "refused"}
    assert {entry.status for entry in ENTRIES} == known
    assert len(ENTRIES) > 200


@pytest.mark.parametrize("module", ["tfring", "tfring.keras", "tfring.callbacks"])
def test_page_holds_every_public_name(module: str) -> None:
    named = {word for text in re.findall(r"`([^`\n]+)`", PAGE) for word in re.findall(r"\w+", text)}
    assert set(importlib.import_module(module).__all__) - named == set()


def test_page_holds_every_absent_name() -> None:
    assert set(_absent._INSTEAD) - {entry.name for entry in ENTRIES} == set()


def test_reduction_constants() -> None:
    names = ["Average", "Sum", "Adasum", "Min", "Max", "Product"]
    assert [getattr(tfring, name) for name in names] == [0, 1, 2, 3, 4, 5]


def test_arguments_without_effect_are_told_where_they_are() -> None:
    section = PAGE.partition("## Arguments without effect")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert names
    functions = [
        (module, getattr(module, name))
        for module in (tfring, tfring.keras, tfring.callbacks)
        for name in module.__all__
    ]
    functions.append((tfring, tfring.DistributedGradientTape.gradient))
    for module, function in functions:
        accepted = set(names) & set(parameters(function) if callable(function) else ())
        if module is not tfring.callbacks:
            accepted.discard("device")
        for name in accepted:
            told = rf"{name}: .*(no effect|accepted|never part)"
            assert re.search(told, inspect.getdoc(function) or "", re.IGNORECASE), (function, name)


def test_environment_variables() -> None:
    named = {entry.name: entry.status for entry in ENTRIES if "HOROVOD_" in entry.name}
    read = {name for setting in settings.SETTINGS for name in setting.environment}
    works = {name for name, status in named.items() if status == "works"}
    assert works == {name for name in read if name.startswith("HOROVOD_")}
    ignored = {name for names in settings.IGNORED for name in names}
    assert ignored - {name for name, status in named.items() if status == "no effect"} == set()


def test_flags_of_the_launcher() -> None:
    parser = cli.make_parser()
    known = {option for action in parser._actions for option in action.option_strings}
    named = {entry.name: entry.status for entry in ENTRIES if entry.name.startswith("-")}
    assert known - set(named) == {"-h", "--help", "--pretend-hosts"}
    for status, table in (("no effect", flags.WITHOUT_EFFECT), ("refused", flags.REFUSED)):
        listed = {name for names, _, _ in table for name in names}
        assert {name for name, said in named.items() if said == status} == listed
