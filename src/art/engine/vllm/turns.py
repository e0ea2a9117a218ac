"""Who is next among waiting requests: owners take turns, each owner's requests keep their order."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """Waiting things by owner.

    Worked example: owner a has put 1, 2, 3, then b puts 4. They are taken as 1, 4, 2, 3.
    """

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, owner: str, item: T) -> None:
        self._queues.setdefault(owner, deque()).append(item)
        self._count += 1

    def take(self) -> T:
        """The next one; its owner is the last in line from now on. Raises KeyError when nothing waits."""
        owner, queue = self._queues.popitem(last=False)
        item = queue.popleft()
        self._count -= 1
        if queue:
            self._queues[owner] = queue
        return item

    def remove(self, owner: str, item: T) -> None:
        """Raises ValueError when it does not wait."""
        queue = self._queues.get(owner, deque())
        queue.remove(item)
        self._count -= 1
        if not queue:
            del self._queues[owner]

    def clear(self) -> list[T]:
        """Everything that waited."""
        items = [item for queue in self._queues.values() for item in queue]
        self._queues.clear()
        self._count = 0
        return items
