"""What an engine must have to be served as a worker process: the face that `art.engine.worker_face` shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from art.engine.protocol import Delta, GenerateRequest, Ranked
from art.errors import ARTError

if TYPE_CHECKING:
    from art.wire.engine import EngineHealth

Sink = Callable[[Delta | ARTError], None]
"""Takes each delta of a request, or the error that ended it, on the event loop that began the request."""
C = TypeVar("C")


class ServedEngine(Protocol[C]):
    """`art.engine.protocol.Engine` with begun requests in place of iterators; C is what identifies one."""

    def health(self) -> EngineHealth: ...

    def begin(self, request: GenerateRequest, sink: Sink) -> C:
        """Put a request into the queue. Raises: OverloadedError, WorkerError."""
        ...

    def cancel(self, call: C) -> None:
        """Free the request's place; after its end this does nothing."""
        ...

    async def load_adapter(self, name: str, path: Path) -> None: ...

    async def unload_adapter(self, name: str) -> None: ...

    async def score(self, adapter: str | None, rows: Sequence[Sequence[int]]) -> list[list[float]]: ...

    async def rank(self, adapter: str | None, rows: Sequence[Sequence[int]], most: int) -> list[Ranked]: ...

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...

    async def close(self) -> None: ...
