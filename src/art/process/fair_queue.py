"""A queue in which owners take turns: whoever asks for much does not make the others wait for all of it."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Waiting items by owner; each owner's items keep their order.

    Worked example: owner a has put 1, 2, 3, then b puts 4. They are taken as 1, 4, 2, 3.
    """

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, owner: str, item: T) -> None:
        """Adds an item behind the owner's other items."""
        self._queues.setdefault(owner, deque()).append(item)
        self._count += 1

    def put_back(self, owner: str, item: T) -> None:
        """An item that was taken too early is the first of its owner again."""
        self._queues.setdefault(owner, deque()).appendleft(item)
        self._count += 1

    def take_next(self) -> T:
        """The next item; its owner is the last in line from now on. Raises KeyError when nothing waits."""
        owner = self._next_owner()
        queue = self._queues.pop(owner)
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
        """Removes and returns all waiting items."""
        items = [item for queue in self._queues.values() for item in queue]
        self._queues.clear()
        self._count = 0
        return items

    def _next_owner(self) -> str:
        """Raises KeyError when nothing waits."""
        if not self._queues:
            raise KeyError("nothing waits")
        return next(iter(self._queues))
