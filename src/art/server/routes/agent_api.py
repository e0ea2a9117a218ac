"""What an extension of the kind `dialect` gives: routes that ask for completions, and their descriptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from art.server.dialects.completion_service import CompletionService
from art.server.dialects.dialect import Dialect
from art.server.http import TenantThreads
from art.server.routes.openapi import Operation
from art.server.settings import LimitSettings


class AgentApi(Protocol):
    """An API that agents speak, translated to chat requests by its dialects."""

    @property
    def operations(self) -> Mapping[tuple[str, str], Operation]:
        """Returns what `openapi.json` says, by method and path."""
        ...

    def make(
        self,
        service: CompletionService,
        limits: LimitSettings,
        threads: TenantThreads,
        left_out: Counter[tuple[str, str]],
    ) -> Mapping[str, Dialect]:
        """Returns the dialects of one server, by path. left_out: counts what requests say in vain."""
        ...
