"""Who this process is in its job, as the launcher wrote it into the environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

_REMEDY = "Start the program with `tfringrun -np N`, which sets all of them."


@dataclasses.dataclass(frozen=True)
class Identity:
    """Rank and meeting point of this process.

    Attributes:
        rank: 0 to size - 1.
        size: number of processes of the job.
        host: host name as the user wrote it; ranks with equal names share memory. None: detect.
        store: `host:port` of the job's key-value store; None only where size is 1.
        secret: text that proves membership to the store.
        job: short text that no other job uses.
    """

    rank: int
    size: int
    host: str | None
    store: str | None
    secret: str | None
    job: str


def from_environment(environment: Mapping[str, str]) -> Identity:
    """Reads the identity; without any `TFRING_*` variable it is a world of one.

    Raises:
        ValueError: variables contradict each other, or one that is needed is missing.
    """
    size = _number(environment, "TFRING_SIZE")
    rank = _number(environment, "TFRING_RANK")
    if size is None and rank is None:
        _refuse_foreign_job(environment)
        size, rank = 1, 0
    if size is None or rank is None or not 0 <= rank < size:
        raise ValueError(
            "TFRING_RANK and TFRING_SIZE must both be set, with 0 <= rank < size. Received: "
            f"TFRING_RANK={environment.get('TFRING_RANK')!r}, "
            f"TFRING_SIZE={environment.get('TFRING_SIZE')!r}. {_REMEDY}"
        )
    store = environment.get("TFRING_RENDEZVOUS") or None
    secret = environment.get("TFRING_SECRET") or None
    if size > 1 and (store is None or secret is None):
        missing = "TFRING_RENDEZVOUS" if store is None else "TFRING_SECRET"
        raise ValueError(f"TFRING_SIZE={size}, but {missing} is not set. {_REMEDY}")
    return Identity(
        rank=rank,
        size=size,
        host=environment.get("TFRING_HOSTNAME") or None,
        store=store,
        secret=secret,
        job=environment.get("TFRING_JOB_ID") or "job",
    )


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} must be a whole number. Received: {name}={text!r}") from None


def _refuse_foreign_job(environment: Mapping[str, str]) -> None:
    # Training alone, once per process, would look like success.
    size = _number(environment, "HOROVOD_SIZE")
    if size is not None and size > 1:
        raise ValueError(
            f"HOROVOD_SIZE={size} is set, but TFRING_SIZE is not: this process was started by "
            f"another launcher. {_REMEDY}"
        )
