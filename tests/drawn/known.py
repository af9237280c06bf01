"""Cases that once found a fault, as they were drawn; a comment says what was wrong."""

from __future__ import annotations

from .case import Case

# What a seed draws may change, so these are whole. Paste what a failure prints.
KNOWN: tuple[Case, ...] = ()
