"""What the ranks wrote into the store about their own failures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfring.launch.rendezvous import StoreClient


@dataclass(frozen=True)
class Records:
    """Who says what about the end of the job.

    Attributes:
        claimed: The rank that wrote itself down as the first to fail, or None.
        text: Its words.
        secondary: Ranks that ended only because a peer was lost, and their words.
    """

    claimed: int | None = None
    text: str = ""
    secondary: Mapping[int, str] = field(default_factory=dict)


def read(address: str, secret: str, job: str, ranks: Iterable[int]) -> Records:
    """Reads the claim of the first failure, and the marks of `ranks`.

    Args:
        address: `host:port` of the store.
        secret: What the store was given.
        job: The job's identity.
        ranks: The ranks that failed.

    Raises:
        CommunicationError: The store does not answer within a second.
        ValueError: A record is no JSON object.
    """
    with StoreClient(address, secret, timeout=1.0) as client:
        claim = _object(client.get(f"failure/{job}"))
        marks = {rank: client.get(f"secondary/{job}/{rank}") for rank in ranks}
    secondary = {
        rank: str(_object(mark).get("text", "")) for rank, mark in marks.items() if mark is not None
    }
    return Records(claim.get("rank"), str(claim.get("text", "")), secondary)


def _object(value: bytes | None) -> dict[str, Any]:
    found = json.loads(value) if value else {}
    if not isinstance(found, dict):
        raise ValueError(f"a record of a failure must be a JSON object. Received: {found!r}")
    return found
