"""Whose job is next: tenants take turns, and within a tenant its models; a model's jobs keep their order.

Worked example, where `a~p/x` has asked for three jobs before the others came:

    asked     a~p/x 1, a~p/x 2, a~p/x 3, a~p/y 1, b~p/z 1
    taken     a~p/x 1, b~p/z 1, a~p/y 1, a~p/x 2, a~p/x 3
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from art.process.fair_queue import FairQueue
from art.server.tenants.tenancy import tenant_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticket:
    """A job that waits. What was asked for stays on disk until it runs: it may be large."""

    job_id: str
    project: str
    name: str

    @property
    def model(self) -> str:
        return f"{self.project}/{self.name}"


class JobQueue:
    """The waiting jobs of one trainer."""

    def __init__(self) -> None:
        self._tenants: FairQueue[str] = FairQueue()
        """A tenant's name for each of its jobs."""
        self._jobs: dict[str, FairQueue[Ticket]] = {}
        """By tenant; their owners are its models."""
        self._changed = asyncio.Event()

    def put(self, ticket: Ticket) -> None:
        """Behind the other jobs of its model."""
        tenant = str(tenant_of(ticket.project))
        self._jobs.setdefault(tenant, FairQueue()).put(ticket.model, ticket)
        self._tenants.put(tenant, tenant)
        self._changed.set()

    async def take(self) -> Ticket:
        """The next job; waits for one (until cancelled, when the server ends)."""
        while not self._tenants:
            self._changed.clear()
            await self._changed.wait()
        tenant = self._tenants.take()
        jobs = self._jobs[tenant]
        ticket = jobs.take()
        if not jobs:
            del self._jobs[tenant]
        return ticket
