"""Checkpoints of a training on several ranks."""

from __future__ import annotations

from tfring.checkpoints.checkpoint import Checkpoint

__all__ = ["Checkpoint"]
