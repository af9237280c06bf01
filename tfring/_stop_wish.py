"""Stopping within an epoch: all ranks after the same batch."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfring import collectives
from tfring._options import Options
from tfring.constants import Sum

FIRST_BATCH = 32  # of an epoch, after which ranks ask each other for the first time
SECONDS = 1.0  # between two questions, once there were enough batches to know how many


class StopWish:
    """Keeps a rank's wish to stop until all ranks know of it.

    `fit` leaves its loop over batches as soon as `model.stop_training` is true, and the other ranks
    would wait in their next update. So the attribute is false again when `fit` looks at it, until
    ranks have asked each other. They do after the same batches: at first after the 32nd batch
    of an epoch, then after twice as many at most, about once a second; and at the end of the epoch.
    In between nothing is sent. How many batches a second has is the mean of the ranks that still
    have data, which all know alike; a rank that has joined is not asked.

    Args:
        model: What is trained.
        options: Of its optimizer; they say which ranks stop together.
    """

    def __init__(self, model: Any, options: Options) -> None:
        self._model = model
        self._options = options
        self._asks = False
        self.begin_epoch()

    def know(self, steps_per_execution: Iterable[int | None]) -> None:
        """Learns whether callbacks of all ranks run after the same batches."""
        numbers = set(steps_per_execution)
        self._asks = len(numbers) == 1 and None not in numbers

    def begin_epoch(self) -> None:
        """Starts to count."""
        self._wished = False
        self._batches = 0
        self._gap = self._next = FIRST_BATCH
        self._asked_at = time.monotonic()

    def after_batch(self) -> None:
        """Keeps the wish, or grants it where it is time to ask the others."""
        if self._model.stop_training:
            self._wished, self._model.stop_training = True, False
        self._batches += 1
        if self._asks and self._batches >= self._next:
            self._ask()

    def before_epoch_end(self) -> None:
        """Gives the wish back, for callbacks to see it."""
        if self._wished:
            self._model.stop_training = True

    def _ask(self) -> None:
        now = time.monotonic()
        seconds = (now - self._asked_at) / self._gap
        self._asked_at = now
        wishes, total, ranks = collectives.allreduce(
            tf.constant([float(self._wished), seconds, 1.0]),
            op=Sum,
            name="callbacks/stop",
            process_set=self._options.process_set,
        ).numpy()
        if wishes > 0:
            self._wished = self._model.stop_training = True
        in_time = int(SECONDS * ranks / max(float(total), 1e-9))
        self._gap = max(1, min(2 * self._gap, in_time))
        self._next = self._batches + self._gap
