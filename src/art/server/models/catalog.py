"""Which names are served, by which engine, with which adapter, and how many requests use each adapter.

    base model         "art/nano-games"
    newest step        "player", or "games/player" with its project
    one step           "player@17", "games/player@17", "player:step17"

Projects are those of the inside (`art.server.tenants.tenancy`). A tenant is shown, and can ask for, its own
models and their base models alone; the operator asks for a tenant's model with its project,
`alice~games/player`.

The gateway resolves and leases; training publishes and retires. One event loop owns a catalog: nothing in it
blocks, and nothing can happen between `await resolve(...)` and entering `lease(...)` right after it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace

from art.engine.protocol import Engine
from art.errors import ConfigurationError, NotFoundError
from art.rendering.chat import ChatRenderer
from art.server.models.leases import Lease, Leases
from art.server.models.served import ServedName, Serving, Target
from art.server.models.served_bases import ServedBases
from art.server.models.served_names import Key, ServedNames, at_step
from art.server.tenants.tenancy import Tenant, outside, tenant_of

LoadMissing = Callable[[str, str, int], Awaitable[str | None]]
"""`(project, name, step)` -> adapter name of a step that it has loaded; NotFoundError if the step is gone."""

_LISTED = 20
"""So many names are listed when one is unknown."""


@dataclass(kw_only=True, slots=True)
class _Model:
    base_model: str
    newest: int
    adapters: dict[int, str | None] = field(default_factory=dict)
    """Loaded steps."""


class Catalog:
    """The served models."""

    def __init__(self) -> None:
        self.load_missing: LoadMissing | None = None
        """Set by whoever owns checkpoints; None means that only loaded steps answer."""
        self.promotions: Counter[tuple[str, str, str]] = Counter()
        """How often another step of (base model, project, name) became the one that is served."""
        self._bases = ServedBases()
        self._models: dict[Key, _Model] = {}
        self._names = ServedNames()
        self._used_bases: set[tuple[Tenant, str]] = set()
        self._serving: dict[Key, Serving] = {}
        self._targets: dict[tuple[Key, int], Target] = {}
        """Made when first asked for; none after any change."""
        self._leases = Leases()
        self._loading: dict[tuple[str, str, int], asyncio.Future[None]] = {}

    # -- what is served --

    def add_base(
        self,
        base_model: str,
        engine: Engine,
        renderer: ChatRenderer,
        *,
        max_context: int,
        aliases: Collection[str] = (),
    ) -> None:
        """Serve a base model under its name and aliases."""
        self._targets.clear()
        self._bases.add(base_model, engine, renderer, max_context=max_context, aliases=aliases)

    def has_base(self, base_model: str, tenant: Tenant = None) -> bool:
        """Whether it answers to this name. A tenant needs a model on it."""
        name = self._bases.name_of(base_model)
        return name in self._bases and (tenant is None or (tenant, name) in self._used_bases)

    def base_of(self, base_model: str) -> Target:
        """The base model's own target. Raises: NotFoundError."""
        target = self._bases.target(base_model)
        if target is None:
            raise self._unknown(base_model, None)
        return target

    def served_as(self, project: str, name: str, base_model: str) -> Target:
        """The base model's target with the format and the length of the model. Raises: NotFoundError."""
        base, own = self.base_of(base_model), self._serving.get((project, name), Serving())
        length = min(base.max_context, own.max_context or base.max_context)
        return replace(base, renderer=own.renderer or base.renderer, max_context=length)

    def replace_engine(
        self, base_model: str, engine: Engine, *, adapters: Collection[str] | None = None
    ) -> None:
        """Send new requests to another engine, after a restart.

        `adapters`: those that the new engine has loaded (None: all); other steps are loaded when asked for.
        """
        self._targets.clear()
        self._bases.replace_engine(base_model, engine)
        if adapters is None:
            return
        for model in self._models.values():
            if model.base_model == base_model:
                kept = {s: a for s, a in model.adapters.items() if a is None or a in adapters}
                model.adapters = kept

    def publish(self, project: str, name: str, base_model: str, step: int, adapter: str | None) -> None:
        """Make a loaded step the one that the bare name means. Adapter None: the base model's own weights."""
        if base_model not in self._bases:
            known = ", ".join(map(repr, self._bases)) or "none"
            raise ConfigurationError(
                f"base model {base_model!r} of {project}/{name} is not served; served: {known}. Add it first."
            )
        model = self._models.get((project, name))
        if model is None:
            model = self._models[project, name] = _Model(base_model=base_model, newest=step)
            self._names.add(project, name)
            self._used_bases.add((tenant_of(project), base_model))
        elif model.base_model != base_model:
            raise ConfigurationError(
                f"model {project}/{name} has base model {model.base_model!r}, not {base_model!r}; "
                "use another name"
            )
        self._targets.clear()
        if model.newest != step:
            self.promotions[base_model, project, name] += 1
        model.adapters[step] = adapter
        model.newest = step

    def serve_as(self, project: str, name: str, serving: Serving) -> None:
        """Say how a model's steps are served from now on."""
        self._targets.clear()
        self._serving[project, name] = serving

    def retire(self, project: str, name: str, step: int) -> str | None:
        """Give a step that is not the newest to no new request. Returns its adapter: unload it once drained.

        Raises: NotFoundError, ConfigurationError (it is the newest step).
        """
        model = self._models.get((project, name))
        if model is None or step not in model.adapters:
            raise self._unknown(f"{project}/{name}@{step}", None)
        if model.newest == step:
            raise ConfigurationError(
                f"step {step} of {project}/{name} is the newest; publish another one first"
            )
        self._targets.clear()
        return model.adapters.pop(step)

    def remove(self, project: str, name: str) -> list[str]:
        """Serve a model no longer, in any step. Returns the adapters that were loaded for it."""
        self._targets.clear()
        model = self._models.pop((project, name), None)
        self._serving.pop((project, name), None)
        if model is None:
            raise self._unknown(f"{project}/{name}", None)
        self._names.remove(project, name)
        self._used_bases = {(tenant_of(other), one.base_model) for (other, _), one in self._models.items()}
        return [adapter for adapter in model.adapters.values() if adapter is not None]

    def newest_steps(self) -> list[tuple[str, str, str, int]]:
        """Project, name, base model and served step of each model."""
        return [(*key, model.base_model, model.newest) for key, model in self._models.items()]

    def inference_name(self, project: str, name: str, tenant: Tenant = None) -> str:
        """What to send as `model`: the bare name where it is unambiguous among one's own."""
        return self._names.shown(project, name, tenant)

    def loaded_steps(self, project: str, name: str) -> dict[int, str | None]:
        """Loaded steps and their adapters."""
        model = self._models.get((project, name))
        return dict(model.adapters) if model else {}

    def served(self, tenant: Tenant = None) -> list[ServedName]:
        """Every base model, every model (its newest step), every loaded step that the asker may see."""
        rows = [ServedName(id=base, base_model=base) for base in self._bases if self.has_base(base, tenant)]
        for (project, name), model in self._models.items():
            if tenant is not None and tenant_of(project) != tenant:
                continue
            shown = self.inference_name(project, name, tenant)
            common = {"base_model": model.base_model, "project": outside(tenant, project)}
            rows.append(ServedName(id=shown, step=model.newest, **common))
            rows += [ServedName(id=f"{shown}@{step}", step=step, **common) for step in sorted(model.adapters)]
        return rows

    def describe(self, name: str, tenant: Tenant = None) -> ServedName:
        """The row of a served name, bare or with its project. Raises: NotFoundError."""
        spelled = at_step(name)
        for row in self.served(tenant):
            if spelled in (row.id, f"{row.project}/{row.id}"):
                return row
        if self.has_base(name, tenant):
            return ServedName(id=name, base_model=self.base_of(name).base_model)
        raise self._unknown(name, tenant)

    # -- who answers --

    async def resolve(self, name: str, tenant: Tenant = None) -> Target:
        """The target of a name that this asker is served; loads an older step when it is asked for.

        Raises: NotFoundError (404, lists what is served), and whatever loading a missing step raises.
        """
        if self.has_base(name, tenant):
            return self.base_of(name)
        found = self._names.find(name, tenant)
        if found is None:
            raise self._unknown(name, tenant)
        key, step = found
        while True:
            model = self._models.get(key)
            if model is None:
                raise self._unknown(name, tenant)
            wanted = model.newest if step is None else step
            if wanted in model.adapters:
                return self._target(key, model, wanted)
            await self._load(key, wanted, name)

    def _target(self, key: Key, model: _Model, step: int) -> Target:
        known = self._targets.get((key, step))
        if known is None:
            served = self.served_as(*key, model.base_model)
            known = replace(served, project=key[0], name=key[1], step=step, adapter=model.adapters[step])
            self._targets[key, step] = known
        return known

    async def _load(self, key: Key, step: int, name: str) -> None:
        if self.load_missing is None:
            raise self._unknown(name, tenant_of(key[0]))
        load = (*key, step)
        pending = self._loading.get(load)
        if pending is None:
            pending = asyncio.ensure_future(self._load_once(self.load_missing, key, step))
            self._loading[load] = pending
            pending.add_done_callback(lambda _: self._loading.pop(load, None))
        # Shielded: a client that goes away must not cancel the load that others wait for.
        await asyncio.shield(pending)

    async def _load_once(self, load_missing: LoadMissing, key: Key, step: int) -> None:
        adapter = await load_missing(*key, step)
        model = self._models.get(key)
        if model is not None:
            self._targets.clear()
            model.adapters[step] = adapter

    def _unknown(self, name: str, tenant: Tenant) -> NotFoundError:
        names = [row.id for row in self.served(tenant)]
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        listed = ", ".join(map(repr, names[:_LISTED])) or "nothing yet"
        return NotFoundError(
            f"model {name!r} is not served here; served: {listed}{more}", status=404, code="model_not_found"
        )

    # -- requests in flight --

    def lease(self, target: Target) -> Lease:
        """`async with catalog.lease(target)`: its adapter is in use until the block ends."""
        return Lease(self._leases, target.adapter)

    def in_flight(self, adapter: str) -> int:
        """Requests that use the adapter now."""
        return self._leases.count(adapter)

    async def drained(self, adapter: str, *, timeout: float = 600.0) -> None:
        """Return once no request uses the adapter. `timeout` in seconds. Raises: DeadlineError."""
        await self._leases.drained(adapter, timeout=timeout)
