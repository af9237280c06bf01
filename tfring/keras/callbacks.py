"""Another name of `tfring.callbacks`, for `from tfring.keras.callbacks import ...`."""

from __future__ import annotations

import sys

import tfring.callbacks

sys.modules[__name__] = tfring.callbacks
