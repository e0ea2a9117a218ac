"""Plans are tried on the real server, which may not survive them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

from art.errors import McpError
from art.mcp.scenarios.checks import Rejection, try_plan
from art.mcp.scenarios.planned import PlannedScenario
from art.mcp.sessions.session import connect
from art.mcp.types import MCPTool

if TYPE_CHECKING:
    from art.mcp.sessions.session import Session


class Probe:
    """Makes the calls of plans that only read, in a session that is opened again when the server died.

    `async with Probe(server, tools) as probe`. server: as `art.mcp.connect` takes it. call_timeout: seconds.
    """

    def __init__(self, server: Any, tools: Sequence[MCPTool], *, call_timeout: float = 30.0) -> None:
        self._server, self._tools, self._call_timeout = server, tools, call_timeout
        self._stack = AsyncExitStack()
        self._session: Session | None = None

    async def __aenter__(self) -> Probe:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def rejection(self, scenario: PlannedScenario) -> Rejection | None:
        """failed_call, with what the server said; None when all that was called gave results, or nothing was.

        A server that dies of a call has failed it, and is started again. Raises McpError when it cannot be.
        """
        if not scenario.plan:
            return None
        session = await self._open()
        try:
            return await try_plan(scenario, session, self._tools, timeout=self._call_timeout)
        except McpError as error:
            await self._stack.aclose()
            self._session = None
            return Rejection(task=scenario.task, reason="failed_call", detail=str(error)[:300])

    async def _open(self) -> Session:
        if self._session is None:
            self._stack = AsyncExitStack()
            self._session = await self._stack.enter_async_context(connect(self._server))
        return self._session
