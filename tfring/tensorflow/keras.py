"""Another name of `tfring.keras`, which `horovod.tensorflow.keras` becomes."""

from __future__ import annotations

import sys

import tfring.keras

sys.modules[__name__] = tfring.keras
