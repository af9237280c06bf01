"""`evaluate` and `predict`: each rank works on its part, all get the whole result."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tfring import _keras, _metric_reports, _metric_states, errors, objects, world
from tfring.keras import _parts, _rows

__all__ = ["evaluate", "predict"]

_DEALT = "interleaved"


class _Outcome(NamedTuple):
    """What a rank says of its evaluation."""

    report: _metric_reports.Report
    order: list[str]  # of the results
    error: str = ""


def evaluate(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    verbose: Any = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Any = None,
    return_dict: bool = False,
    *,
    sharded: bool = False,
) -> Any:
    """Evaluates a model on all samples, each rank on its part of the batches.

    What `model.evaluate` gives in one process: every sample counts once, whatever the number of
    ranks; there may be fewer batches than ranks. The batches are those that one process would make.
    Metrics of several ranks become one as for `MetricAverageCallback`; those of `model` keep the
    state of this rank's part.

    Every rank must call it, with the same data and model. A rank that fails tells the others,
    which then raise too.

    Args:
        model: Compiled model of Keras.
        x: Arrays, tensors, nests of them, `tf.data.Dataset`, `keras.utils.PyDataset` or generator
            of batches: on all ranks the same samples in the same order, not shuffled. A dataset of
            unknown length, and a generator, are read as a whole on each rank.
        y: Targets, with arrays only.
        batch_size: Samples per batch, with arrays only. Default 32.
        verbose: As for `model.evaluate`; "auto" (default) shows progress on rank 0 only.
        sample_weight: Weights of samples, with arrays only.
        steps: Batches of all ranks together at which to stop. Default: all.
        callbacks: As for `model.evaluate`; they see this rank's part.
        return_dict: Whether to return a dict of results by name. Default: a list, or one number.
        sharded: Whether the data are this rank's own already, for example of `tfring.data.shard`
            without padding; then all of it is used, and `steps` counts this rank's batches.
            Default False.

    Returns:
        The results, the same on all ranks. Without any sample an empty dict or list.

    Raises:
        NotInitializedError: Before `init`.
        TypeError, ValueError: The data cannot be divided.
        RuntimeError: Another rank failed; the text has its rank and error.
        tf.errors.AbortedError: A peer is lost.

    Example:

    >>> import keras, numpy as np, tfring.keras as hvd
    >>> hvd.init()
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse", metrics=["mae"])
    >>> x = np.ones((100, 2), "float32")
    >>> logs = hvd.evaluate(model, x, x[:, :1], return_dict=True)
    >>> sorted(logs)
    ['loss', 'mae']
    """
    world.require_usable()
    given = {"x": x, "y": y, "sample_weight": sample_weight}
    limits = {"batch_size": batch_size, "steps": steps}
    common = {"verbose": _verbosity(verbose), "callbacks": callbacks}
    if world.size() == 1:
        return model.evaluate(**given, **limits, **common, return_dict=return_dict)

    def work() -> tuple[_metric_reports.Snapshot | None, _Outcome]:
        part = {**given, **limits} if sharded else _parts.of_rank(**given, **limits).data
        logs = {} if part is None else _logs(model, {**part, **common})
        snapshot = _metric_reports.snapshot(model) if logs else None
        report = _metric_reports.report(logs, [snapshot])
        return snapshot, _Outcome(report, _order(model) if logs else [])

    done, error = _tried(work)
    snapshot, mine = done or (None, _Outcome(_metric_reports.report({}, [None]), [], _text(error)))
    outcomes = objects.allgather_object(mine, name="evaluate")
    _raise_first("evaluate", [each.error for each in outcomes], error)
    logs = _metric_reports.combined(model, [snapshot], [each.report for each in outcomes])
    order: list[str] = next((each.order for each in outcomes if each.order), [])
    return logs if return_dict else _listed(logs, order)


def predict(
    model: Any,
    x: Any,
    batch_size: int | None = None,
    verbose: Any = "auto",
    steps: int | None = None,
    callbacks: Any = None,
    *,
    sharded: bool | str = False,
    root_rank: int | None = None,
) -> Any:
    """Returns a model's predictions for all samples, each rank working on its part of the batches.

    What `model.predict` gives in one process, in the order of the input. Every rank must call it,
    with the same data and model. A rank that fails tells the others, which then raise too. Beyond
    the result and this rank's part of it, gathering takes 16 MiB for each rank.

    Args:
        model: Model of Keras.
        x: As for `evaluate`.
        batch_size: Samples per batch, with arrays only. Default 32.
        verbose: As for `model.predict`; "auto" (default) shows progress on rank 0 only.
        steps: Batches of all ranks together at which to stop. Default: all.
        callbacks: As for `model.predict`; they see this rank's part.
        sharded: Whether the data are this rank's own already. True: the result has the rows of
            rank 0 first, then those of rank 1, and so on. "interleaved": the first row of each
            rank, then the second of each, and so on, the order in which samples are dealt one by
            one. Default False.
        root_rank: The rank that gets the result; None (default): all do.

    Returns:
        Array, or nest of arrays, as of `model.predict`; None on other ranks than `root_rank`.

    Raises:
        NotInitializedError: Before `init`.
        TypeError: The data cannot be divided.
        ValueError: There are no samples; or an argument breaks its rule.
        RuntimeError: Another rank failed; the text has its rank and error.
        tf.errors.AbortedError: A peer is lost.

    Example:

    >>> import keras, numpy as np, tfring.keras as hvd
    >>> hvd.init()
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> hvd.predict(model, np.ones((100, 2), "float32")).shape
    (100, 1)
    """
    world.require_usable()
    limits = {"batch_size": batch_size, "steps": steps}
    common = {"verbose": _verbosity(verbose), "callbacks": callbacks}

    def work() -> tuple[Any, _rows.Shape]:
        _check(sharded, root_rank)
        is_whole = bool(sharded) or world.size() == 1
        part = _parts.Part({"x": x, **limits}) if is_whole else _parts.of_rank(x, **limits)
        outputs = None if part.data is None else _predictions(model, {**part.data, **common})
        return outputs, _rows.shape(outputs, part.sizes, is_dealt=sharded == _DEALT)

    done, error = _tried(work)
    outputs, mine = done or (None, _rows.shape(None)._replace(error=_text(error)))
    shapes = objects.allgather_object(mine, name="predict")
    _raise_first("predict", [each.error for each in shapes], error)
    if not any(each.rows for each in shapes):
        raise ValueError("`x` must hold at least one sample. Received: no sample on any rank")
    is_here = root_rank in (None, world.rank())
    if world.size() == 1:
        return outputs
    return _rows.gathered(outputs, shapes, here=is_here)


def _check(sharded: Any, root_rank: Any) -> None:
    if sharded not in (True, False, _DEALT):
        raise ValueError(
            f"`sharded` must be False, True or {_DEALT!r}. Received: sharded={sharded!r}"
        )
    if root_rank is not None and root_rank not in range(world.size()):
        raise ValueError(
            f"`root_rank` must be None or a rank of the job, 0 to {world.size() - 1}. "
            f"Received: root_rank={root_rank!r}"
        )


# Of Keras' errors where there is no batch, which only reading the data shows.
_NO_BATCH = re.compile("batch_outputs|metric has not yet been built|Empty logs")


def _logs(model: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return model.evaluate(**arguments, return_dict=True)
    except ValueError as error:
        if _NO_BATCH.search(str(error)):
            return {}
        raise


def _predictions(model: Any, arguments: dict[str, Any]) -> Any:
    try:
        return model.predict(**arguments)
    except (UnboundLocalError, ValueError) as error:
        if _NO_BATCH.search(str(error)):
            return None
        raise


def _verbosity(verbose: Any) -> Any:
    return 0 if verbose == "auto" and world.rank() != 0 else verbose


def _tried(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Returns what `work` returns, or the error that other ranks must learn of."""
    try:
        return work(), None
    except Exception as error:  # models run code of the user, which may raise anything
        if errors.is_communication_error(error):
            raise
        return None, error


def _text(error: Exception | None) -> str:
    return "" if error is None else f"{type(error).__name__}: {error}"


def _raise_first(function: str, texts: Sequence[str], own: Exception | None) -> None:
    if own is not None:
        raise own
    for rank, text in enumerate(texts):
        if text:
            raise RuntimeError(f"`{function}` failed on rank {rank}: {text}")


def _order(model: Any) -> list[str]:
    """Returns names of results in the order in which Keras lists them."""
    if _keras.is_legacy(model):
        return list(model.metrics_names)
    return [metric.name for metric in _metric_states.metrics(model)]


def _listed(logs: dict[str, Any], order: Sequence[str]) -> Any:
    """Returns the results as Keras does where no dict is asked for."""
    rest = [name for name in sorted(logs) if name not in order]
    results = [logs[name] for name in (*order, *rest) if name in logs]
    return results[0] if len(results) == 1 else results
