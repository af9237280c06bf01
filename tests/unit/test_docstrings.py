"""The examples in docstrings run, in a world of one."""

from __future__ import annotations

import doctest
import importlib

import pytest

import tfring as hvd

MODULES = {
    "tfring._gathers": 4,
    "tfring._graph_mode": 2,
    "tfring._queries": 1,
    "tfring._waits": 2,
    "tfring.collectives": 2,
    "tfring.compression": 1,
    "tfring.objects": 4,
    "tfring.process_sets": 3,
    "tfring.settings": 2,
    "tfring.world": 2,
}


@pytest.mark.parametrize(("name", "examples"), MODULES.items())
def test_examples(name: str, examples: int) -> None:
    module = importlib.import_module(name)
    tests = [test for test in doctest.DocTestFinder().find(module) if test.examples]
    assert len(tests) == examples
    runner = doctest.DocTestRunner()
    try:
        for test in tests:
            runner.run(test)
    finally:
        hvd.shutdown()
    assert runner.summarize().failed == 0
