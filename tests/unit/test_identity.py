from __future__ import annotations

import pytest

from tfring import _identity

WORKER = {
    "TFRING_RANK": "1",
    "TFRING_SIZE": "2",
    "TFRING_RENDEZVOUS": "127.0.0.1:1",
    "TFRING_SECRET": "s",
    "TFRING_JOB_ID": "j",
    "TFRING_HOSTNAME": "a",
}


def test_nothing_set_is_a_world_of_one() -> None:
    identity = _identity.from_environment({})
    assert (identity.rank, identity.size, identity.store) == (0, 1, None)


def test_worker() -> None:
    expected = _identity.Identity(1, 2, "a", "127.0.0.1:1", "s", "j")
    assert _identity.from_environment(WORKER) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"TFRING_RANK": "2"}, "0 <= rank < size.*TFRING_RANK='2'"),
        ({"TFRING_RANK": ""}, "must both be set"),
        ({"TFRING_SIZE": ""}, "must both be set"),
        ({"TFRING_SIZE": "two"}, "TFRING_SIZE must be a whole number.*'two'"),
        ({"TFRING_RENDEZVOUS": ""}, "TFRING_RENDEZVOUS is not set.*tfringrun"),
        ({"TFRING_SECRET": ""}, "TFRING_SECRET is not set.*tfringrun"),
    ],
)
def test_contradictions_are_told(change: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _identity.from_environment({**WORKER, **change})


def test_foreign_launcher_is_told() -> None:
    with pytest.raises(ValueError, match="HOROVOD_SIZE=2 is set"):
        _identity.from_environment({"HOROVOD_SIZE": "2", "HOROVOD_RANK": "0"})


def test_horovods_names_where_ours_are_not_set() -> None:
    theirs = {name.replace("TFRING", "HOROVOD"): value for name, value in WORKER.items()}
    place = {name: WORKER[name] for name in ("TFRING_RENDEZVOUS", "TFRING_SECRET")}
    identity = _identity.from_environment({**theirs, **place})
    assert identity == _identity.Identity(1, 2, "a", "127.0.0.1:1", "s", "job")
    assert _identity.from_environment({**theirs, "HOROVOD_RANK": "9", **WORKER}).rank == 1
    with pytest.raises(ValueError, match="HOROVOD_RANK='2'"):
        _identity.from_environment({**theirs, **place, "HOROVOD_RANK": "2"})
