"""Whose job is next: tenants take turns, and within a tenant its models; a model's jobs keep their order.

Worked example, where `a~p/x` has asked for three jobs before the others came:

    asked     a~p/x 1, a~p/x 2, a~p/x 3, a~p/y 1, b~p/z 1
    taken     a~p/x 1, b~p/z 1, a~p/y 1, a~p/x 2, a~p/x 3
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass

from art.server.tenants.tenancy import Tenant, tenant_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticket:
    """A job that waits. What was asked for stays on disk until it runs: it may be large."""

    job_id: str
    project: str
    name: str

    @property
    def model(self) -> str:
        return f"{self.project}/{self.name}"


class Turns:
    """The waiting jobs of one trainer."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[Tenant, OrderedDict[str, deque[Ticket]]] = OrderedDict()
        self._came = asyncio.Event()

    def put(self, ticket: Ticket) -> None:
        """Behind the other jobs of its model."""
        models = self._tenants.setdefault(tenant_of(ticket.project), OrderedDict())
        models.setdefault(ticket.model, deque()).append(ticket)
        self._came.set()

    async def take(self) -> Ticket:
        """The next job; waits for one (until cancelled, when the server ends)."""
        while not self._tenants:
            self._came.clear()
            await self._came.wait()
        tenant, models = self._tenants.popitem(last=False)
        model, waiting = models.popitem(last=False)
        ticket = waiting.popleft()
        # Whoever still waits goes to the end of its row.
        if waiting:
            models[model] = waiting
        if models:
            self._tenants[tenant] = models
        return ticket
