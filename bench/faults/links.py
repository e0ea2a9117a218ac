"""A connection that can stall or be lost without a word: a TCP relay between a client and a server."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

_CHUNK = 65536
_PAUSE_S = 0.02
_TCP_REPAIR = 19
"""Of Linux; Python does not name it."""


class Relay:
    """Listens on loopback and passes on bytes to a port of this machine. Threads end with the process.

    `stall`: nothing passes any more, on old and new connections, until `resume`. `lose_connections`: this end
    forgets those that are open, or those by their numbers from 1 on, and sends no word of it, as a machine
    without power does; new ones work.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._passes = threading.Event()
        self._passes.set()
        self._lost: set[int] = set()
        self._open: set[int] = set()
        self._count = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def connections(self) -> int:
        """Those that are open."""
        return len(self._open - self._lost)

    def stall(self) -> None:
        self._passes.clear()

    def resume(self) -> None:
        self._passes.set()

    def lose_connections(self, *numbers: int) -> None:
        self._lost |= set(numbers) or self._open

    def close(self) -> None:
        """Takes no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._count += 1
            threading.Thread(target=self._connect, args=(near, self._count), daemon=True).start()

    def _connect(self, near: socket.socket, number: int) -> None:
        self._open.add(number)
        self._passes.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            near.close()
            self._open.discard(number)
            return
        near.settimeout(_PAUSE_S)
        far.settimeout(_PAUSE_S)
        back = threading.Thread(target=self._pump, args=(far, near, number), daemon=True)
        back.start()
        self._pump(near, far, number)
        back.join()
        self._open.discard(number)
        if number in self._lost:
            near.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)  # so that closing it sends nothing
        near.close()
        far.close()

    def _pump(self, source: socket.socket, sink: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):
            while number not in self._lost:
                try:
                    content = source.recv(_CHUNK)
                except TimeoutError:
                    continue
                while not self._passes.wait(_PAUSE_S):
                    pass
                if number in self._lost:
                    return
                if not content:
                    break
                self._send(sink, content, number)
            if number not in self._lost:
                sink.shutdown(socket.SHUT_WR)

    def _send(self, sink: socket.socket, content: bytes, number: int) -> None:
        left = memoryview(content)
        while left and number not in self._lost:
            try:
                left = left[sink.send(left) :]
            except TimeoutError:
                time.sleep(_PAUSE_S)
