"""Responses that can be continued by their id, or looked up: in memory, each tenant's own, bounded in bytes.

Each holds what was new with it; a conversation is put together along `previous_response_id`.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import orjson

from art.errors import NotFoundError
from art.server.bodies import decode_json
from art.server.dialects.responses_items import Item, sample_named
from art.server.tenants.tenancy import Tenant


@dataclass(frozen=True, slots=True)
class Stored:
    """A response and its new input, as JSON."""

    response: bytes
    items: bytes
    previous: str | None

    @property
    def size(self) -> int:
        """Bytes held."""
        return len(self.response) + len(self.items)


class ResponseStore:
    """The least recently used are forgotten first."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[tuple[Tenant, str], Stored] = OrderedDict()

    @property
    def size(self) -> int:
        """Bytes held."""
        return self._bytes

    def keep(self, tenant: Tenant, response: dict[str, Any], items: list[Item]) -> None:
        """Remember a response, and what of its input was new."""
        stored = Stored(orjson.dumps(response), orjson.dumps(items), response["previous_response_id"])
        self._kept[tenant, response["id"]] = stored
        self._bytes += stored.size
        while self._bytes > self._max_bytes and self._kept:
            _, forgotten = self._kept.popitem(last=False)
            self._bytes -= forgotten.size

    def response(self, tenant: Tenant, response_id: str) -> bytes:
        """The response as it was sent. Raises: NotFoundError."""
        return self._find(tenant, response_id).response

    def delete(self, tenant: Tenant, response_id: str) -> None:
        """Forget one. Those that continue it cannot be continued any more. Raises: NotFoundError."""
        self._bytes -= self._find(tenant, response_id).size
        del self._kept[tenant, response_id]

    def conversation(self, tenant: Tenant, response_id: str) -> list[Item]:
        """All items up to and with the response's output, oldest first. Raises: NotFoundError."""
        newest = self._find(tenant, response_id, continued_by=response_id)
        output: list[Item] = decode_json(newest.response)["output"]
        return [*self.input_items(tenant, response_id), *output]

    def input_items(self, tenant: Tenant, response_id: str) -> list[Item]:
        """All items that the response answers, oldest first. Raises: NotFoundError."""
        parts: list[list[Item]] = []
        current: str | None = response_id
        while current is not None:
            stored = self._find(tenant, current, continued_by=response_id)
            parts.append(decode_json(stored.items))
            current = stored.previous
            if current is not None:
                before = self._find(tenant, current, continued_by=response_id)
                parts.append(decode_json(before.response)["output"])
        return [item for part in reversed(parts) for item in part]

    def item(self, tenant: Tenant, item_id: str) -> Item:
        """One item of a response's output. Raises: NotFoundError."""
        sample = sample_named(item_id)
        if sample is not None:
            stored = self._find(tenant, response_id_of(sample))
            for item in decode_json(stored.response)["output"]:
                if item["id"] == item_id:
                    found: Item = item
                    return found
        raise NotFoundError(
            f"no item {item_id!r} is stored here: send the item itself", status=404, code="item_not_found"
        )

    def _find(self, tenant: Tenant, response_id: str, *, continued_by: str | None = None) -> Stored:
        stored = self._kept.get((tenant, response_id))
        if stored is None:
            where = "" if continued_by in (None, response_id) else f" (which {continued_by!r} continues)"
            raise NotFoundError(
                f"no response {response_id!r}{where} is stored here: it was not stored (store = false), was "
                "deleted, or is forgotten (a restart, the limit `stored_responses`); send the whole "
                "conversation as input",
                status=404,
                code="previous_response_not_found" if continued_by else "response_not_found",
            )
        with contextlib.suppress(KeyError):
            # A thread may ask, while the event loop lets it go.
            self._kept.move_to_end((tenant, response_id))
        return stored


def response_id_of(sample_id: str) -> str:
    """The id of the response that a sample is."""
    return f"resp_{sample_id.rpartition('_')[2]}"
