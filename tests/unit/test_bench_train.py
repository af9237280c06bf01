"""`tfring bench train`: where a step's time goes, what is said of it, wrong arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tfring._records import Record
from tfring.bench import plot as _plot
from tfring.bench.train import checks, cli, models, plot, report, worker
from tfring.bench.train.parts import Parts, mean, split
from tfring.bench.train.result import Result

MS = 1_000_000


def record(submitted: float, agreed: float, began: float, ended: float, last: int = 1) -> Record:
    times = [int(ms * MS) for ms in (submitted, agreed, began, ended)]
    return Record("g", "allreduce", 4, 4, 1, 0, last, *times)


def milliseconds(parts: Parts) -> tuple[float, dict[int, float], float, float, float]:
    waiting = {rank: round(1e3 * s, 6) for rank, s in parts.waiting.items()}
    others = (parts.compute, parts.transfer, parts.update, parts.hidden)
    compute, transfer, update, hidden = (round(1e3 * s, 6) for s in others)
    return compute, waiting, transfer, update, hidden


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        pytest.param([], (100, {}, 0, 0, 0), id="nothing is reduced"),
        pytest.param([record(60, 60, 60, 70)], (60, {}, 10, 30, 0), id="nobody waits"),
        pytest.param([record(60, 75, 75, 80)], (60, {1: 15}, 5, 20, 0), id="late peer"),
        pytest.param([record(60, 75, 75, 80, 0)], (60, {}, 20, 20, 0), id="not for itself"),
        pytest.param(
            [record(20, 20, 20, 30), record(60, 60, 60, 70)],
            (60, {}, 10, 30, 10),
            id="the first is hidden",
        ),
        pytest.param(
            [record(20, 50, 50, 66), record(60, 61, 66, 70)],
            (60, {}, 10, 30, 10),
            id="the first is hidden in part",
        ),
        pytest.param(
            [record(20, 70, 70, 74), record(60, 80, 80, 85, 2)],
            (60, {1: 10, 2: 6}, 9, 15, 0),
            id="two are waited for",
        ),
        pytest.param([record(60, 60, 65, 70)], (60, {}, 10, 30, 0), id="waking is transfer"),
        pytest.param([record(-5, -5, -5, 2)], (100, {}, 0, 0, 0), id="of the step before"),
    ],
)
def test_parts_of_a_step(records: list[Record], expected: tuple[Any, ...]) -> None:
    parts = split(0, 100 * MS, records, rank=0)
    assert milliseconds(parts) == expected
    whole = parts.compute + sum(parts.waiting.values()) + parts.transfer + parts.update
    assert whole == pytest.approx(0.1)


def test_mean_counts_a_rank_that_was_not_waited_for_as_nothing() -> None:
    steps = [Parts(1.0, {1: 0.4}, 0.2, 0.3, 0.1), Parts(3.0, {}, 0.4, 0.5, 0.3)]
    parts = mean(steps)
    assert (parts.compute, parts.update) == (2.0, 0.4)
    assert parts.waiting == {1: 0.2}


def answers(seconds: float, parts: dict[str, Any] | None) -> list[dict[str, Any]]:
    one: dict[str, Any] = {"seconds": [seconds, seconds], "processor": seconds / 2}
    if parts is not None:
        one["parts"] = json.loads(json.dumps(parts))
    return [dict(one, rank=0), dict(one, rank=1)]


def result() -> Result:
    """Rounds: 2 x 8 / 0.5 s independent, 2 x 8 / (0.5, 0.64, 1) s distributed."""
    made = Result("cnn", 2, "tfring 1", 700_000, 8)
    for seconds in (0.5, 0.64, 1.0):
        made.add("alone", [{"seconds": [0.4], "processor": 0.4}, {"rank": 1}])
        made.add("independent", answers(0.5, None))
        parts = vars(Parts(0.3, {1: 0.1}, 0.05, 0.05, 0.02))
        made.add("distributed", answers(seconds, parts))
        made.add_exchange([{"seconds": [0.02, 0.01, 0.03]}, {"seconds": [0.01]}])
    return made


def test_throughput_counts_the_examples_of_all_ranks() -> None:
    assert result().throughput("alone") == pytest.approx(20)
    assert result().throughput("independent") == pytest.approx(32)
    assert result().throughput("distributed") == pytest.approx(25)


def test_efficiency_is_the_median_of_rounds() -> None:
    assert result().efficiencies() == pytest.approx([1.0, 0.78125, 0.5])
    assert result().efficiency() == pytest.approx(0.78125)


def test_an_exchange_takes_as_long_as_on_its_slowest_rank() -> None:
    made = result()
    assert made.exchanges == [0.02] * 3
    made.exchanges[0] = 0.03
    assert "| 20.0 ms (20.0 ms to 30.0 ms) |" in report.speeds([made])


def test_both_tables_tell_of_the_same_round() -> None:
    made = Result("cnn", 2, "tfring 1", 700_000, 8)
    for seconds in (0.5, 0.64, 1.0):
        made.add("distributed", answers(seconds, vars(Parts(compute=seconds))))
    assert made.step("distributed") == pytest.approx(0.64)
    assert made.parts_of(1).compute == 0.64


@pytest.mark.parametrize(
    ("seconds", "above"), [([0.5], False), ([0.49], True), ([0.49, 0.5, 0.51], False)]
)
def test_more_than_everything_is_explained(seconds: list[float], above: bool) -> None:
    made = Result("cnn", 2, "tfring 1", 700_000, 8)
    for one in seconds:
        made.add("independent", answers(0.5, None))
        made.add("distributed", answers(one, vars(Parts())))
    assert ("cnn: above 100%" in report.footnotes([made])) == above


@pytest.mark.parametrize(
    ("model", "seconds", "row"),
    [
        ("cnn", 0.51, "| 98.0% | at least 98% | yes |"),
        ("cnn", 0.512, "| 97.7% | at least 98% | **no** |"),
        ("mlp", 0.53, "| 94.3% | at least 94% | yes |"),
        ("transformer", 0.5, "Nothing to check"),
    ],
)
def test_checks(model: str, seconds: float, row: str) -> None:
    made = Result(model, 2, "tfring 1", 700_000, 8)
    made.add("independent", answers(0.5, None))
    made.add("distributed", answers(seconds, vars(Parts())))
    assert row in checks.markdown([made])


@pytest.mark.parametrize(
    ("seconds", "row"), [(0.54, "| 103.8% | at most 105% | yes |"), (0.55, "| 105.8% |")]
)
def test_a_step_under_xla_costs_itself_and_the_exchange(seconds: float, row: str) -> None:
    """0.5 s without collectives and 0.02 s of exchange."""
    made = result()
    made.xla = True
    assert made.shares() == pytest.approx([0.5 / 0.52, 0.64 / 0.52, 1.0 / 0.52])
    assert "| 123.1% (96.2 to 192.3) |" in report.speeds([made])
    assert "XLA compiles" in report.caption([made])
    made = Result("transformer", 4, "tfring 1", 700_000, 8, xla=True)
    made.add("independent", 2 * answers(0.5, None))
    made.add("distributed", 2 * answers(seconds, vars(Parts())))
    made.add_exchange([{"seconds": [0.02]}])
    assert row in checks.markdown([made])
    assert ("**no**" in checks.markdown([made])) == (seconds == 0.55)


def test_tables_and_json() -> None:
    speeds = report.speeds([result()])
    assert (
        "| cnn | 0.7M | 8 | 20/s, step 400 ms | 32/s, step 500 ms | 25/s, step 640 ms |" in speeds
    )
    assert "| 78.1% (50.0 to 100.0) | 20.0 ms | 320 ms | 250 ms |" in speeds
    row = "| cnn | 1 | 500 ms | 300 ms | 100 ms for rank 1 | 50.0 ms | 50.0 ms | 20.0 ms |"
    assert row in report.steps([result()])
    content = json.loads(json.dumps(report.as_json([result()], "command")))
    assert content["results"][0]["efficiency"] == pytest.approx(0.78125)
    assert content["results"][0]["mean_parts"][0]["waiting"]["1"] == pytest.approx(0.1)


@pytest.mark.skipif(not _plot.available(), reason="needs matplotlib")
def test_plot(tmp_path: Path) -> None:
    plot.save([result()], str(tmp_path / "p.png"))
    assert (tmp_path / "p.png").read_bytes()[1:4] == b"PNG"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-np", "1"], "-np must be at least 2"),
        (["-np", "two"], "-np takes positive integers"),
        (["--model", "cnn,rnn"], "--model takes some of cnn, mlp, transformer. Received: 'rnn'"),
        (["--batch", "0"], "--batch must be positive. Received: --batch 0"),
        (["--repeat", "0"], "--repeat must be positive. Received: --repeat 0"),
        (["--seconds", "nan"], "--seconds must lie between 0 and 30"),
        (["--json", "/no/such/folder/x.json"], "cannot write to the folder /no/such/folder"),
    ],
)
def test_wrong_arguments_are_told(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert exit_.value.code == 2
    assert said in capsys.readouterr().err


def test_help_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 26
    assert max(map(len, lines)) <= 80
    assert "examples:" in lines


@pytest.mark.parametrize(("name", "millions"), [("cnn", 0.7), ("mlp", 25.1), ("transformer", 5.8)])
def test_models_have_the_size_that_is_said(name: str, millions: float) -> None:
    model = models.recipe(name).build()
    assert round(model.count_params() / 1e6, 1) == millions


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("xla", [False, True])
def test_a_rank_trains_both_models_alike(xla: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> Any:
        return keras.Sequential([keras.Input([2]), keras.layers.Dense(2)])

    def data(batch: int, _: Any) -> tuple[Any, Any]:
        return np.ones([batch, 2], "float32"), np.zeros([batch], "int32")

    tiny = models.Recipe("tiny", 4, build, data)
    monkeypatch.setattr(worker, "recipe", lambda _: tiny)
    trainee = worker.Trainee("tiny", None, xla)
    assert [model.jit_compile for model in trainee._models.values()] == [xla, xla]
    assert len(trainee.turn("independent", 3)["seconds"]) == 3
    assert set(trainee.turn("distributed", 3)) == {"seconds", "processor", "parts"}
    assert len(trainee.exchange(4)["seconds"]) == 4
