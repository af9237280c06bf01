"""The readers of folders between real processes; what they read is tested in tests/unit."""

from __future__ import annotations

import pathlib

import pytest

import tfring as hvd

pytestmark = pytest.mark.many_ranks


@pytest.fixture
def folder(tmp_path: pathlib.Path, rank: int) -> pathlib.Path:
    """The folder of rank 0, with two files of 4 and 3 rows."""
    shared = pathlib.Path(hvd.broadcast_object(str(tmp_path)))
    if rank == 0:
        (shared / "0.csv").write_text("id\n0\n1\n2\n3\n")
        (shared / "1.csv").write_text("id\n4\n5\n6\n")
    hvd.barrier()
    return shared


def test_parts_are_disjoint_and_of_one_length(folder: pathlib.Path, size: int) -> None:
    mine = [int(row["id"]) for row in hvd.data.read_csv(folder, shuffle=True)]
    parts = hvd.allgather_object(mine)
    everything = [i for part in parts for i in part]
    assert {len(part) for part in parts} == {7 // size}
    assert len(set(everything)) == len(everything)
    assert hvd.data.last_shard() == (size, 7, 7 // size, 7 % size, 0)


def test_what_is_wrong_on_one_rank_fails_all(folder: pathlib.Path, rank: int) -> None:
    error, text = (ValueError, "rank 1: FileNotFoundError") if rank != 1 else (OSError, "none")
    with pytest.raises(error, match=text):
        hvd.data.read_csv(folder / "none" if rank == 1 else folder)
    with pytest.raises(ValueError, match=r"Rank 1 finds others than rank 0: '1.csv' is missing"):
        hvd.data.read_csv(f"{folder}/0.csv" if rank == 1 else folder)
    assert hvd.allreduce(1, op=hvd.Sum) == hvd.size()


def test_a_damaged_file_of_one_rank_fails_all(folder: pathlib.Path, rank: int) -> None:
    if rank == 0:
        (folder / "1.csv").write_text('id\n4\n"5\n')
    hvd.barrier()
    with pytest.raises(ValueError, match=rf"{folder}/1\.csv: Reached end of file"):
        hvd.data.read_csv(folder)
