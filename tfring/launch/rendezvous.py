"""The store where the ranks of a job meet, served by the launcher."""

from __future__ import annotations

import ctypes
import secrets
from types import TracebackType

from tfring import _native
from tfring.launch.agent import join_address

_NOT_FOUND = 5  # TFR_NOT_FOUND


class StoreServer:
    """Serves a store that only holders of its random 32-byte secret can read or write.

    Args:
        host: The address to listen on; `""` is every address of this machine.

    Raises:
        CommunicationError: The address cannot be listened on.
    """

    def __init__(self, host: str) -> None:
        self.secret = secrets.token_hex(32)
        handle, port = ctypes.c_void_p(), ctypes.c_int32()
        _native.call(
            "tfr_store_serve",
            host.encode(),
            0,
            self.secret.encode(),
            ctypes.byref(handle),
            ctypes.byref(port),
        )
        self._handle: ctypes.c_void_p | None = handle
        self.port = port.value
        self.address = join_address(host or "127.0.0.1", self.port)

    def close(self) -> None:
        """Ends the server and all connections to it; may be called twice."""
        if self._handle is not None:
            _native.engine().tfr_store_server_close(self._handle)
            self._handle = None

    def __enter__(self) -> StoreServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class StoreClient:
    """A connection to a store. No call waits longer than its time-out.

    Args:
        address: `host:port` of the store.
        secret: What the server was given.
        timeout: Seconds to connect in.

    Raises:
        CommunicationError: The store does not answer or does not accept the secret; any call
            raises it when the launcher has ended.
    """

    def __init__(self, address: str, secret: str, timeout: float = 10.0) -> None:
        handle = ctypes.c_void_p()
        _native.call(
            "tfr_store_connect", address.encode(), secret.encode(), timeout, ctypes.byref(handle)
        )
        self._handle: ctypes.c_void_p | None = handle

    def set(self, key: str, value: bytes) -> None:
        """Stores `value` under `key`, in place of what was there."""
        _native.call("tfr_store_set", self._handle, key.encode(), value, len(value))

    def get(self, key: str) -> bytes | None:
        """Returns the value of `key`, or None when there is none now."""
        found, error = _native.Bytes(), _native.Error()
        engine = _native.engine()
        code = engine.tfr_store_get(
            self._handle, key.encode(), 0.0, ctypes.byref(found), ctypes.byref(error)
        )
        if code == _NOT_FOUND:
            return None
        _native.check(code, error)
        try:
            return ctypes.string_at(found.data, found.size) if found.size else b""
        finally:
            engine.tfr_bytes_free(ctypes.byref(found))

    def close(self) -> None:
        """Closes the connection; may be called twice."""
        if self._handle is not None:
            _native.engine().tfr_store_client_close(self._handle)
            self._handle = None

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
