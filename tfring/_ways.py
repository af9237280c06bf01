"""Which way each sparse sum takes next, see `_sparse`."""

from __future__ import annotations

import weakref

import tensorflow as tf

_all: weakref.WeakSet[Ways] = weakref.WeakSet()


class Ways:
    """One choice for each of `count` tables: True is dense. They start as False.

    The choices are a variable, so that traced functions and eager calls share them.
    """

    def __init__(self, count: int) -> None:
        with tf.init_scope():
            self.are_dense = tf.Variable(tf.zeros([count], tf.bool), trainable=False)
        _all.add(self)


def start_over() -> None:
    """Sets all choices of this process back to where they started.

    After it, ranks choose alike, also those that have not taken part in the same sums.
    """
    for ways in list(_all):
        ways.are_dense.assign(tf.zeros_like(ways.are_dense))
