"""Constraints of requests that wait for their grammar: compiled beside the steps, tenants in turn.

Each of the two threads has a helper process that tries a grammar first, under limits. A tenant has one of
them at a time, so that the other is for everybody else; requests for one constraint wait for one compilation.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from art.engine.constraints import Grammars, Guide
from art.engine.protocol import Constraint
from art.errors import ARTError, OverloadedError, WorkerError
from art.process.bounded import Bounded, WorkCancelledError

logger = logging.getLogger(__name__)

THREADS = 2
MOST_WAITING = 32
"""Constraints of one tenant that wait."""
_SEPARATOR = "~"

OnCompiled = Callable[[Guide | ARTError], None]


@dataclass(slots=True, eq=False)
class Waiter:
    """A request that waits for its constraint."""

    stops: Sequence[int]
    on_compiled: OnCompiled
    """Called once, on a thread of the compilers, unless it is withdrawn."""


@dataclass(slots=True, eq=False)
class _Compilation:
    constraint: Constraint
    tenant: str
    waiters: list[Waiter] = field(default_factory=list)
    helper: Bounded | None = None
    """Whose work it is; None: it waits."""


class Compilers:
    """Compiles constraints; its threads start with the first constraint."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, deque[_Compilation]] = OrderedDict()
        """The waiting compilations by tenant; the tenant whose turn is next comes first."""
        self._open: dict[tuple[str, Constraint], _Compilation] = {}
        self._running: set[str] = set()
        self._helpers: list[Bounded] = []
        self._closed = False

    def ask(
        self, owner: str, constraint: Constraint, stops: Sequence[int], on_compiled: OnCompiled
    ) -> Waiter:
        """Requests the compilation of a constraint. Raises: OverloadedError, WorkerError."""
        tenant = owner.partition(_SEPARATOR)[0] if _SEPARATOR in owner else ""
        waiter = Waiter(stops, on_compiled)
        with self._changed:
            if self._closed:
                raise WorkerError("the engine is closed")
            work = self._open.get((tenant, constraint))
            if work is None:
                queue = self._waiting.setdefault(tenant, deque())
                if len(queue) >= MOST_WAITING:
                    raise OverloadedError(
                        f"{len(queue)} constraints wait to be compiled, and {MOST_WAITING} are the most; "
                        "try again later",
                        code="queue_full",
                    )
                work = self._open[tenant, constraint] = _Compilation(constraint, tenant)
                queue.append(work)
            work.waiters.append(waiter)
            self._start()
            self._changed.notify()
        return waiter

    def withdraw(self, waiter: Waiter) -> bool:
        """Withdraws a request. A compilation without waiting requests ends. Returns False if it is too
        late.
        """
        with self._changed:
            for key, work in self._open.items():
                if waiter not in work.waiters:
                    continue
                work.waiters.remove(waiter)
                if not work.waiters:
                    del self._open[key]
                    if work.helper is None:
                        self._waiting[work.tenant].remove(work)
                    else:
                        work.helper.cancel()
                return True
        return False

    def close(self) -> None:
        """Take no more, and end what is being compiled."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            helpers = list(self._helpers)
        for helper in helpers:
            helper.close()

    def _start(self) -> None:
        if len(self._helpers) < THREADS:
            helper = self._grammars.new_helper()
            self._helpers.append(helper)
            name = f"art-engine-grammars-{len(self._helpers)}"
            threading.Thread(target=self._run, args=(helper,), name=name, daemon=True).start()

    def _run(self, helper: Bounded) -> None:
        while (work := self._next(helper)) is not None:
            outcome = self._compile(work, helper)
            with self._changed:
                self._running.discard(work.tenant)
                if self._open.get((work.tenant, work.constraint)) is work:
                    del self._open[work.tenant, work.constraint]
                waiters, work.waiters = work.waiters, []
                self._changed.notify_all()
            for waiter in waiters:
                waiter.on_compiled(outcome or self._guide(work.constraint, waiter))

    def _next(self, helper: Bounded) -> _Compilation | None:
        with self._changed:
            while not self._closed:
                for tenant, queue in self._waiting.items():
                    if queue and tenant not in self._running:
                        self._waiting.move_to_end(tenant)
                        self._running.add(tenant)
                        work = queue.popleft()
                        work.helper = helper
                        return work
                    if not queue:
                        del self._waiting[tenant]
                        break  # the books have changed: look again
                else:
                    # Woken by each request and each end; the timeout only bounds the wait.
                    self._changed.wait(timeout=60.0)
            return None

    def _compile(self, work: _Compilation, helper: Bounded) -> ARTError | None:
        """Returns why it could not be; None: it is kept."""
        try:
            self._grammars.open(work.constraint, (), by=helper)
        except ARTError as error:
            return error
        except WorkCancelledError:
            return WorkerError("nobody waits for the constraint any more")
        except Exception as error:
            logger.exception("a constraint's compiler failed")
            return WorkerError(f"the constraint's compiler failed: {type(error).__name__}: {error}")
        return None

    def _guide(self, constraint: Constraint, waiter: Waiter) -> Guide | ARTError:
        try:
            return self._grammars.open(constraint, waiter.stops)
        except ARTError as error:
            return error
        except Exception as error:  # the thread goes on: without it nobody's constraint is compiled
            logger.exception("a compiled constraint could not be opened")
            return WorkerError(
                f"the compiled constraint could not be opened: {type(error).__name__}: {error}"
            )
