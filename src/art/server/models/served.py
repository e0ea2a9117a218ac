"""What is served: the records that the catalog hands out and is given."""

from __future__ import annotations

from dataclasses import dataclass, replace

from art.engine.protocol import Engine
from art.rendering.chat import ChatRenderer
from art.server.tenants.tenancy import Tenant


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What answers a request: everything the gateway needs to know of a served name."""

    project: str | None
    """None for a base model."""
    name: str
    base_model: str
    step: int | None
    """None for a base model."""
    adapter: str | None
    """The engine's name of the adapter, or None for the base model's own weights."""
    engine: Engine
    renderer: ChatRenderer
    max_context: int
    """Prompt plus completion, in tokens."""

    def confined_for(self, tenant: Tenant) -> Target:
        """The same for who asks: to a tenant no template may use up this process."""
        if tenant is None or self.renderer.confined() is self.renderer:
            return self
        return replace(self, renderer=self.renderer.confined())


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedName:
    """One row of `GET /v1/models`."""

    id: str
    base_model: str
    project: str | None = None
    step: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """How a model is served, where it differs from its base."""

    renderer: ChatRenderer | None = None
    max_context: int | None = None
    """Never more than the base model allows."""
