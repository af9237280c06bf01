"""pyarrow, where it is installed: Parquet files opened, and columns as TensorFlow takes them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

_missing = ""
try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ImportError as error:  # also where it is there, but does not fit the NumPy that is
    pa = pc = pq = None
    _missing = str(error)

_NUMBERS = (
    *(tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64),
    *(tf.float16, tf.float32, tf.float64, tf.bool),
)


def require() -> None:
    """Raises ImportError where there is no pyarrow."""
    if pa is None:
        raise ImportError(
            f"tfring.data.read_parquet needs pyarrow, which cannot be imported: {_missing}. Run "
            "`pip install 'tfring[parquet]'`; with NumPy 1 (TensorFlow 2.16 and 2.17) "
            "`pip install 'pyarrow<21'`."
        )


class _Remote(tf.io.gfile.GFile):
    """A file of any file system of TensorFlow, as pyarrow reads it."""

    closed = False


@contextlib.contextmanager
def opened(path: str) -> Iterator[Any]:
    """Opens a file for the body of a `with`.

    Raises:
        ValueError: it is no Parquet file, or a damaged one, with its name; also from the body.
    """
    source = _Remote(path, "rb") if "://" in path else path
    try:
        with pq.ParquetFile(source) as parquet:
            yield parquet
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: {error}. Write the file again, or leave it out.") from error


def has_nulls(metadata: Any, column: str) -> bool:
    """Says whether a column is known to have nulls; files need not tell."""
    for group in range(metadata.num_row_groups):
        chunks = (metadata.row_group(group).column(i) for i in range(metadata.num_columns))
        for chunk in chunks:
            statistics = chunk.statistics
            if chunk.path_in_schema == column and statistics is not None and statistics.null_count:
                return True
    return False


def null_error(path: str, column: str) -> ValueError:
    """Returns the error of a null without a default."""
    return ValueError(
        f"Columns must not hold nulls. Received: column {column!r} with a null in {path}. Say what "
        f"to read in its place: defaults={{{column!r}: ...}}."
    )


def dtype(column: str, value: Any) -> tf.DType:
    """Returns the dtype that a user gave for a column.

    Raises:
        ValueError: it is none, or not one that can be cast to.
    """
    try:
        found = tf.as_dtype(value)
    except TypeError:
        found = None
    if found not in (*_NUMBERS, tf.string):
        names = ", ".join(known.name for known in (*_NUMBERS, tf.string))
        raise ValueError(f"`dtypes` must be of {names}. Received: {value!r} for {column!r}")
    return found


@dataclasses.dataclass(frozen=True)
class Column:
    """A column, and what becomes of it.

    Attributes:
        name: what it is called.
        type: the pyarrow.DataType in the file, or in the first of them.
        dtype: what to cast to; None: nothing.
        default: in place of nulls; None: there must be none.
    """

    name: str
    type: Any
    dtype: Any
    default: Any

    @property
    def spec(self) -> Any:
        """Returns the TensorSpec, or RaggedTensorSpec, of a batch.

        Raises:
            ValueError: TensorFlow has nothing like it.
        """
        target = _dtype_of(self._target)
        if pa.types.is_fixed_size_list(self.type):
            return tf.TensorSpec([None, self.type.list_size], target)
        if _is_list(self.type):
            return tf.RaggedTensorSpec([None, None], target)
        return tf.TensorSpec([None], target)

    @property
    def _target(self) -> Any:
        """Returns the pyarrow type of single values."""
        inner = self.type.value_type if _is_any_list(self.type) else self.type
        if pa.types.is_dictionary(inner):
            inner = inner.value_type
        if self.dtype is not None:
            wanted = dtype(self.name, self.dtype)
            target = pa.string() if wanted == tf.string else _from_dtype(wanted)
            self._check_cast(inner, target)
            return target
        if _dtype_of(inner) is None:
            raise ValueError(
                f"Column {self.name!r} has the type {self.type}, which TensorFlow does not have. "
                "Leave it out by `columns`, or cast it by `dtypes` where it is a number, a time or "
                "a text."
            )
        return inner

    def _check_cast(self, inner: Any, target: Any) -> None:
        try:
            pa.array([], inner).cast(target)
        except pa.ArrowException as error:
            raise ValueError(
                f"Column {self.name!r} of type {self.type} cannot be cast. "
                f"Received: dtypes={{{self.name!r}: {self.dtype!r}}}. {error}"
            ) from None

    def tensor(self, array: Any, path: str) -> Any:
        """Returns some rows as what `spec` says.

        Args:
            array: a pyarrow.Array of them.
            path: of the file, for errors.

        Raises:
            ValueError: there is a null without a default, or a value that cannot be cast.
        """
        if not _is_any_list(array.type):
            return self._values(array, path)
        if array.null_count:
            raise ValueError(
                f"List columns must not hold nulls in place of lists. Received: column "
                f"{self.name!r} with a null in {path}. Write empty lists, or leave the column out."
            )
        values = self._values(array.flatten(), path)
        if pa.types.is_fixed_size_list(array.type):
            return values.reshape(-1, array.type.list_size)
        lengths = array.value_lengths().to_numpy().astype(np.int64)
        return tf.RaggedTensor.from_row_lengths(values, lengths)

    def _values(self, array: Any, path: str) -> np.ndarray:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        target = self._target
        if array.type != target:
            try:
                array = array.cast(target)
            except pa.ArrowException as error:
                raise ValueError(f"{path}: column {self.name!r}: {error}") from error
        if array.null_count:
            if self.default is None:
                raise null_error(path, self.name)
            array = pc.fill_null(array, pa.scalar(self.default, target))
        if _dtype_of(target) != tf.string:
            return array.to_numpy(zero_copy_only=False)
        values = np.empty(len(array), object)
        values[:] = array.cast(pa.large_binary()).to_pylist()
        return values


def _is_list(kind: Any) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _is_any_list(kind: Any) -> bool:
    return _is_list(kind) or pa.types.is_fixed_size_list(kind)


def _from_dtype(wanted: tf.DType) -> Any:
    return pa.from_numpy_dtype(wanted.as_numpy_dtype)


def _dtype_of(kind: Any) -> tf.DType | None:
    """Returns the dtype of a tensor with values of a pyarrow type, None where there is none."""
    for found in _NUMBERS:
        if kind == _from_dtype(found):
            return found
    texts = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    return tf.string if kind in texts else None
