"""A way to a server that a test makes slow or silent: a proxy on a port of its own."""

from __future__ import annotations

import selectors
import socket
import threading
import time

from servers import free_port


class SlowWay:
    """Passes bytes on, at most so many a second, or none while silent. One thread for all connections.

    Thread-safe."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self.silent = False
        self.bytes_per_s: float | None = None
        self.connections = self.passed = 0
        self._listener = socket.create_server(("127.0.0.1", free_port()))
        self.port = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._over, self._wake = socket.socketpair()
        self._allowed_from = time.monotonic()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._wake.close()
        self._thread.join()

    def _run(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._over, selectors.EVENT_READ, None)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._over:
                    return self._end()
                if key.fileobj is self._listener:
                    self._accept()
                elif not self.silent:
                    self._pass_on(key.fileobj, key.data)
            if self.silent:
                threading.Event().wait(0.005)  # what waits to be read stays readable

    def _accept(self) -> None:
        ours, _ = self._listener.accept()
        theirs = socket.create_connection(("127.0.0.1", self._to_port))
        self.connections += 1
        self._selector.register(ours, selectors.EVENT_READ, theirs)
        self._selector.register(theirs, selectors.EVENT_READ, ours)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            data = source.recv(1500 if self.bytes_per_s else 1 << 20)
            if data:
                if self.bytes_per_s:  # as a link of this rate does
                    self._allowed_from = max(self._allowed_from, time.monotonic()) + len(data) / self.bytes_per_s
                    threading.Event().wait(max(0.0, self._allowed_from - time.monotonic()))
                self.passed += len(data)
                return target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            if end.fileno() >= 0:
                self._selector.unregister(end)
                end.close()

    def _end(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()
        self._selector.close()
