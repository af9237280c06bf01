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
    """Reads the identity; without any variable of it, it is a world of one.

    Rank, size and host name may also come from `HOROVOD_*` variables, where ours are not set but
    say where to meet.

    Raises:
        ValueError: variables contradict each other, or one that is needed is missing.
    """
    family = _family(environment)
    size = _number(environment, f"{family}_SIZE")
    rank = _number(environment, f"{family}_RANK")
    if size is None and rank is None:
        _refuse_foreign_job(environment)
        size, rank = 1, 0
    if size is None or rank is None or not 0 <= rank < size:
        raise ValueError(
            f"{family}_RANK and {family}_SIZE must both be set, with 0 <= rank < size. Received: "
            f"{family}_RANK={environment.get(f'{family}_RANK')!r}, "
            f"{family}_SIZE={environment.get(f'{family}_SIZE')!r}. {_REMEDY}"
        )
    store = environment.get("TFRING_RENDEZVOUS") or None
    secret = environment.get("TFRING_SECRET") or None
    if size > 1 and (store is None or secret is None):
        missing = "TFRING_RENDEZVOUS" if store is None else "TFRING_SECRET"
        raise ValueError(f"{family}_SIZE={size}, but {missing} is not set. {_REMEDY}")
    return Identity(
        rank=rank,
        size=size,
        host=environment.get("TFRING_HOSTNAME") or environment.get("HOROVOD_HOSTNAME") or None,
        store=store,
        secret=secret,
        job=environment.get("TFRING_JOB_ID") or "job",
    )


def _family(environment: Mapping[str, str]) -> str:
    """Returns the prefix of the variables that hold rank and size."""
    own = environment.get("TFRING_SIZE") or environment.get("TFRING_RANK")
    return "TFRING" if own or not environment.get("TFRING_RENDEZVOUS") else "HOROVOD"


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
