"""How much of one tenant is in flight: more is refused, so that the engine's queue has room for others."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from art.errors import OverloadedError
from art.server.tenants.tenancy import Tenant

_UNBOUNDED = contextlib.nullcontext()


class InFlight:
    """Counts what each tenant has open. The operator, who holds the server's own key, is not bounded."""

    def __init__(self, most: int, what: str) -> None:
        """`what` is counted, in the words of the error: `requests`, `completions`."""
        self._most = most
        self._what = what
        self._open: Counter[Tenant] = Counter()

    def holding(self, tenant: Tenant) -> contextlib.AbstractContextManager[None]:
        """One more while the block runs. Raises: OverloadedError."""
        return _UNBOUNDED if tenant is None else self._holding(tenant)

    @contextlib.contextmanager
    def _holding(self, tenant: str) -> Iterator[None]:
        if self._open[tenant] >= self._most:
            raise OverloadedError(
                f"you have {self._open[tenant]} {self._what} in flight, the limit is {self._most}: wait for "
                "some of them",
                code="too_many_in_flight",
            )
        self._open[tenant] += 1
        try:
            yield
        finally:
            self._open[tenant] -= 1
            if not self._open[tenant]:
                del self._open[tenant]
