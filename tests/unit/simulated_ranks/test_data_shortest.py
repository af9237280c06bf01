"""`tfring.data.shortest`: all ranks stop with the first that is out of data."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf

from tfring import world
from tfring.data import _board, _progress, _shortest, shortest


class Board:
    """Stands in for the job's store; counts what is asked of it."""

    def __init__(self) -> None:
        self.posts: dict[str, bytes] = {}
        self.changed = threading.Condition()
        self.calls = 0

    def post(self, key: str, value: bytes) -> None:
        with self.changed:
            self.calls += 1
            self.posts[key] = value
            self.changed.notify_all()

    def read(self, key: str) -> bytes | None:
        self.calls += 1
        return self.posts.get(key)

    def wait_for(self, number: int, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Waits until the posts of a pass are as they should be."""

        def fulfilled() -> bool:
            posts = {
                key: _progress.unpacked(value)
                for key, value in self.posts.items()
                if key.split("/")[-2] == str(number)
            }
            return condition({key.split("/")[-1]: post for key, post in posts.items()})

        with self.changed:
            assert self.changed.wait_for(fulfilled, 30)


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    board = Board()
    monkeypatch.setattr(_board, "board", lambda: board)
    monkeypatch.setattr(_shortest, "_passes", _shortest._Process())
    monkeypatch.setattr(world, "at_shutdown", lambda function: None)
    return board


@pytest.fixture
def ranks(ranks: Callable[..., Any]) -> Callable[..., Any]:
    def make(size: int, fail_after: float = 30.0) -> Any:
        simulation = ranks(size)
        vars(world.settings()).update(warn_after=0.0, fail_after=fail_after)
        return simulation

    return make


def unknown(*lengths: int) -> Any:
    """Gives range(length), another length in each pass, which nobody knows."""
    passes = iter(lengths)

    def elements() -> Iterator[int]:
        yield from range(next(passes))

    return tf.data.Dataset.from_generator(elements, output_signature=tf.TensorSpec((), tf.int64))


def read(dataset: Any) -> list[int]:
    return [int(element) for element in dataset]


@pytest.mark.parametrize(
    ("lengths", "expected"), [([5, 3], 3), ([0, 4], 0), ([4, -1], 4), ([2, 9, 5], 2)]
)
def test_known_lengths_are_compared_once(
    ranks: Callable[..., Any], board: Board, lengths: list[int], expected: int
) -> None:
    def body(rank: int) -> list[list[int]]:
        data = tf.data.Dataset.range(9).repeat()
        result = shortest(data if lengths[rank] < 0 else data.take(lengths[rank]))
        assert int(result.cardinality()) == expected
        return [read(result), read(result)]

    assert ranks(len(lengths)).run(body) == [[list(range(expected))] * 2] * len(lengths)
    assert board.calls == 0


def test_all_endless_stays_endless(ranks: Callable[..., Any], board: Board) -> None:
    data = tf.data.Dataset.range(2).repeat()
    results = ranks(2).run(lambda _: int(shortest(data).cardinality()))
    assert results == [tf.data.INFINITE_CARDINALITY] * 2


@pytest.mark.parametrize(
    "lengths",
    [
        [(5, 2, 7, 0, 30), (3, 6, 7, 4, 31)],
        [(1, 9), (8, 8), (2, 30)],
    ],
)
@pytest.mark.parametrize("ahead", [[0, 0, 0], [5, 1, 0]], ids=["together", "prefetched unalike"])
def test_unknown_lengths_may_differ_in_each_pass(
    ranks: Callable[..., Any], board: Board, lengths: list[tuple[int, ...]], ahead: list[int]
) -> None:
    def body(rank: int) -> list[list[int]]:
        result = shortest(unknown(*lengths[rank]))
        result = result.prefetch(ahead[rank]) if ahead[rank] else result
        return [read(result) for _ in lengths[rank]]

    expected = [list(range(min(of_pass))) for of_pass in zip(*lengths, strict=True)]
    assert ranks(len(lengths)).run(body) == [expected] * len(lengths)


def test_known_and_unknown_lengths_together(ranks: Callable[..., Any], board: Board) -> None:
    data = [tf.data.Dataset.range(9).repeat(), unknown(4), tf.data.Dataset.range(6)]
    assert ranks(3).run(lambda rank: read(shortest(data[rank]))) == [[0, 1, 2, 3]] * 3


def test_elements_of_every_kind(ranks: Callable[..., Any], board: Board) -> None:
    ragged = tf.ragged.constant([[1], [], [2, 3]])
    data = tf.data.Dataset.from_tensor_slices({"r": ragged, "s": ["a", "b", "c"]})
    data = data.map(lambda e: (e, tf.sparse.from_dense([[1, 0]]))).filter(lambda *_: True)

    def body(rank: int) -> Any:
        result = shortest(data.take(3 - rank))
        assert result.element_spec == data.element_spec
        return [(e["r"].numpy().tolist(), e["s"].numpy(), s.shape) for e, s in result]

    assert ranks(2).run(body) == [[([1], b"a", (1, 2)), ([], b"b", (1, 2))]] * 2


def test_a_loop_in_a_function(ranks: Callable[..., Any], board: Board) -> None:
    def body(rank: int) -> list[int]:
        @tf.function
        def total(dataset: Any) -> Any:
            result = tf.constant(0, tf.int64)
            for element in dataset:
                result += element
            return result

        result = shortest(unknown(4 + rank, 5 - rank))
        return [int(total(result)), int(total(result))]

    assert ranks(2).run(body) == [[0 + 1 + 2 + 3] * 2] * 2


def test_a_rank_that_breaks_off_leaves_nobody_waiting(
    ranks: Callable[..., Any], board: Board
) -> None:
    def body(rank: int) -> tuple[int, int]:
        result = shortest(unknown(40, 6))
        iterator = iter(result.prefetch(1 + 9 * rank))
        first = int(next(iterator))
        if rank == 0:
            del iterator  # rank 1 has asked, or will ask, for elements that nobody has any more
            board.wait_for(1, lambda posts: posts["0"].over)
            count = 1
        else:
            count = 1 + sum(1 for _ in iterator)
        assert first == 0 and 1 <= count <= 1 + 1 + 1 + _progress.AHEAD + 1
        return count, len(read(result))

    assert [later for _, later in ranks(2).run(body)] == [6, 6]


def test_a_waiting_pipeline_can_be_ended(ranks: Callable[..., Any], board: Board) -> None:
    def body(rank: int) -> str:
        iterator = iter(shortest(unknown(40)).prefetch(1 + 29 * rank))
        assert int(next(iterator)) == 0
        if rank == 1:
            # It asks for more than rank 0 reads ahead.
            board.wait_for(1, lambda posts: posts["1"].read > posts["0"].read + 1)
            del iterator
        board.wait_for(1, lambda posts: posts["1"].over)
        return "done"

    assert ranks(2).run(body) == ["done"] * 2


def test_a_rank_that_never_comes_is_named(ranks: Callable[..., Any], board: Board) -> None:
    def body(rank: int) -> None:
        result = shortest(unknown(3))
        if rank == 0:
            with pytest.raises(tf.errors.UnknownError, match="rank 1 has not begun.*equally often"):
                read(result)

    ranks(2, fail_after=0.2).run(body)


def test_a_rank_that_left_is_named_at_once(ranks: Callable[..., Any], board: Board) -> None:
    def body(rank: int) -> None:
        result = shortest(unknown(3))
        if rank == 1:
            _shortest._passes._leave(rank)
        else:
            with pytest.raises(tf.errors.UnknownError, match="rank 1 has not begun.* It left"):
                read(result)

    ranks(2, fail_after=0.0).run(body)


def test_a_rank_that_only_reads_no_further_is_no_failure(
    ranks: Callable[..., Any], board: Board
) -> None:
    """A long validation: what was read ahead on one rank waits, however long."""
    simulation = ranks(2, fail_after=0.05)
    member = [_progress.Member(None, [0, 1], place) for place in range(2)]  # type: ignore[arg-type]
    simulation.run(lambda _: None)
    slow, quick = (_progress.Progress(board, "pass", m, 1) for m in member)
    for _ in range(_progress.AHEAD):
        slow.note(True)
    for _ in range(_progress.AHEAD + 1):
        quick.note(True)
    verdicts = [quick.next() for _ in range(_progress.AHEAD)]
    assert verdicts == [_progress.GO] * _progress.AHEAD
    # 10 waits of 0.02 s.
    assert [quick.next() for _ in range(10)] == [_progress.PENDING] * 10
    # But when its training has used up what was read ahead, it waits for its data itself.
    assert [slow.next() for _ in range(_progress.AHEAD)] == [_progress.GO] * _progress.AHEAD
    with pytest.raises(tf.errors.AbortedError, match="rank 0 has read 4 elements"):
        while quick.next() == _progress.PENDING:
            pass


def test_posts_of_others_are_read_once_in_several_elements(
    ranks: Callable[..., Any], board: Board
) -> None:
    ranks(2).run(lambda _: None)
    mine, other = (
        _progress.Progress(board, "pass", _progress.Member(None, [0, 1], place), 1)  # type: ignore[arg-type]
        for place in range(2)
    )
    for _ in range(_progress.AHEAD):
        mine.note(True)
        other.note(True)
    mine.note(True)  # one more is left in the end
    before = board.calls
    assert [mine.next() for _ in range(_progress.AHEAD)] == [_progress.GO] * _progress.AHEAD
    assert board.calls == before + 1


def test_no_dataset_is_an_error_on_all_ranks(ranks: Callable[..., Any], board: Board) -> None:
    def body(rank: int) -> None:
        kind = TypeError if rank else ValueError
        with pytest.raises(kind, match="`dataset` must be a tf.data.Dataset. Received: .* list"):
            shortest([1, 2] if rank else tf.data.Dataset.range(3))

    ranks(2).run(body)
