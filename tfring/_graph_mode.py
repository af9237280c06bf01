"""What scripts with `tf.compat.v1` graphs and sessions use to start alike."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring import objects
from tfring.errors import CommunicationError

__all__ = ["BroadcastGlobalVariablesHook", "broadcast_global_variables"]


def broadcast_global_variables(root_rank: int) -> Any:
    """Returns the operation that copies one rank's global variables to all ranks.

    For v1 graphs. Every rank must build it, when all variables are there, and run it in a session
    after the variables have been initialized. It covers `tf.compat.v1.global_variables()`, in one
    collective.

    Args:
        root_rank: rank whose values all get.

    Returns:
        The operation.

    Raises:
        NotInitializedError: before `init`.
        RuntimeError: in eager mode, where variables are in no collection.
        tf.errors.InvalidArgumentError: `root_rank` is no rank of this world.
        tf.errors.FailedPreconditionError: by the session, when the ranks' variables differ.
        tf.errors.AbortedError: by the session, when a peer is lost.

    Example:
        >>> import tensorflow as tf, tfring as hvd
        >>> hvd.init()
        >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        ...     v = tf.compat.v1.get_variable("v", initializer=3.0)
        ...     start_alike = hvd.broadcast_global_variables(root_rank=0)
        ...     session.run(tf.compat.v1.global_variables_initializer())
        ...     session.run(start_alike)
        ...     print(session.run(v))
        3.0
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables works in v1 graphs only: in eager mode TensorFlow keeps no "
            "list of variables. Call broadcast_variables(model.variables, root_rank), or give fit "
            "a callbacks.BroadcastGlobalVariablesCallback."
        )
    return objects.broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Copies one rank's global variables to all ranks when a monitored session starts.

    Give it to `tf.compat.v1.train.MonitoredTrainingSession` on every rank. What the session
    initializes or restores from a checkpoint, which only the root needs to have, is on all ranks
    before the first step.

    It also ends training when a peer is lost. A monitored session answers `AbortedError` by
    starting anew, for ever: TensorFlow takes it for a server that comes back. With this hook the
    second start raises instead.

    Args:
        root_rank: rank whose values all get.
        device: device on which the operation is created. Default: TensorFlow chooses.

    Raises:
        CommunicationError: when the session starts and a peer is lost, or when it starts anew
            after an error.
        tf.errors.FailedPreconditionError: when the session starts and the ranks' variables differ.

    Example:
        >>> import tensorflow as tf, tfring as hvd
        >>> hvd.init()
        >>> v1 = tf.compat.v1
        >>> with tf.Graph().as_default():
        ...     v = v1.get_variable("v", initializer=3.0)
        ...     hooks = [hvd.BroadcastGlobalVariablesHook(root_rank=0)]
        ...     with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
        ...         print(session.run(v))
        3.0
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self._root_rank = root_rank
        self._device = device
        self._operation: Any = None
        self._started = False

    def begin(self) -> None:
        """Creates the operation, once per graph."""
        self._started = False
        graph = tf.compat.v1.get_default_graph()
        if self._operation is None or self._operation.graph is not graph:
            with tf.device(self._device or None):
                self._operation = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Broadcasts; refuses to when the other ranks did not start anew as well."""
        if self._started:
            raise CommunicationError(
                "The monitored session starts anew after an error on this rank, perhaps a lost "
                "peer; the other ranks do not. The job must end; start it from a checkpoint."
            )
        self._started = True
        try:
            session.run(self._operation)
        except tf.errors.AbortedError as error:
            raise CommunicationError(error.message) from None
