"""The catalog says which names are served, by which engine, with which adapter, and counts the requests of
each adapter.

    base model         "art/nano-games"
    newest step        "player", or "games/player" with its project
    one step           "player@17", "games/player@17", "player:step17"

`ServedBases` holds the base models, `ServedNames` how a model is called, `ExpectedNames` what a server that
begins will serve, `InUse` the requests of each adapter: it is unloaded only when the last of them has ended.
Projects are those of the inside (`art.server.tenancy`). A tenant is shown, and can ask for, its own models
and their base models alone; the operator asks for a tenant's model with its project, `alice~games/player`.

The gateway resolves and uses; training publishes and retires. One event loop owns a catalog: nothing in it
blocks, and nothing can happen between `await resolve(...)` and entering `using(...)` right after it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass, field, replace

from art.engine.protocol import Engine
from art.errors import ConfigurationError, DeadlineError, NotFoundError, ServerError
from art.process.in_use import InUse, Use
from art.rendering.chat_renderer import ChatRenderer
from art.server.step_times import StepClock
from art.server.tenancy import Tenant, external_name, internal_name, tenant_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The target of a request: everything the gateway needs about a served name."""

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
    max_context: int
    """Tokens of prompt and completion."""
    project: str | None = None
    step: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """The serving options of a model that differ from its base."""

    renderer: ChatRenderer | None = None
    max_context: int | None = None
    """Never more than the base model allows."""


@dataclass(kw_only=True, slots=True)
class _Base:
    engine: Engine
    renderer: ChatRenderer
    max_context: int


class ServedBases:
    """Base models under their names and aliases."""

    def __init__(self) -> None:
        self._bases: dict[str, _Base] = {}
        self._aliases: dict[str, str] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._bases)

    def __contains__(self, name: str) -> bool:
        return name in self._bases

    def add(
        self,
        name: str,
        engine: Engine,
        renderer: ChatRenderer,
        *,
        max_context: int,
        aliases: Collection[str],
    ) -> None:
        self._bases[name] = _Base(engine=engine, renderer=renderer, max_context=max_context)
        self._aliases.update(dict.fromkeys(aliases, name))

    def replace_engine(self, name: str, engine: Engine) -> None:
        self._bases[name].engine = engine

    def name_of(self, asked: str) -> str:
        """The name that an alias stands for; any other is its own."""
        return self._aliases.get(asked, asked)

    def target(self, asked: str) -> Target | None:
        """The base model's own weights; None when it is not served."""
        name = self.name_of(asked)
        base = self._bases.get(name)
        if base is None:
            return None
        return Target(
            project=None,
            name=name,
            base_model=name,
            step=None,
            adapter=None,
            engine=base.engine,
            renderer=base.renderer,
            max_context=base.max_context,
        )


ModelKey = tuple[str, str]
"""Project, as it is inside, and name."""

_STEP = ":step"


class ServedNames:
    """The names of the served models, by whose they are."""

    def __init__(self) -> None:
        self._projects: dict[tuple[Tenant, str], list[str]] = {}

    def add(self, project: str, name: str) -> None:
        self._projects.setdefault((tenant_of(project), name), []).append(project)

    def remove(self, project: str, name: str) -> None:
        spelled = tenant_of(project), name
        self._projects[spelled].remove(project)
        if not self._projects[spelled]:
            del self._projects[spelled]

    def shown(self, project: str, name: str, tenant: Tenant = None) -> str:
        """Returns the name that this caller sends as `model`. The model need not be served yet."""
        own = tenant_of(project) == tenant
        if own and self._projects.get((tenant, name)) in (None, [project]):
            return name
        return f"{external_name(tenant, project)}/{name}"

    def find(self, asked: str, tenant: Tenant) -> tuple[ModelKey, int | None] | None:
        """The model, and the step if one is named; None when it is not served to this asker.

        Raises NotFoundError for a bare name that is in several projects.
        """
        plain, step = _split(asked[:_LONGEST_NAME])
        projects = self._projects.get((tenant, plain))
        if projects:
            if len(projects) > 1:
                choices = ", ".join(f"{external_name(tenant, project)}/{plain}" for project in projects)
                raise NotFoundError(
                    f"model {asked!r} is in several projects; ask for one of: {choices}",
                    status=404,
                    code="model_not_found",
                )
            return (projects[0], plain), step
        spelled, slash, name = plain.partition("/")
        project = internal_name(tenant, spelled)
        if slash and project in self._projects.get((tenant_of(project), name), ()):
            return (project, name), step
        return None


def normalize_step_name(asked: str) -> str:
    """The name in our own spelling: upstream's servers call `name@3` `name:step3`."""
    plain, mark, digits = asked.rpartition(_STEP)
    return f"{plain}@{digits}" if mark and digits.isdigit() and "@" not in plain else asked


def _split(asked: str) -> tuple[str, int | None]:
    plain, at, digits = normalize_step_name(asked).rpartition("@")
    if at and digits.isascii() and digits.isdigit() and len(digits) <= 12:
        return plain, int(digits)
    return asked, None


class ExpectedNames:
    """Models and base models that are served as soon as their workers run: who asks meanwhile waits."""

    def __init__(self) -> None:
        self._names = ServedNames()
        self._models: dict[ModelKey, asyncio.Event] = {}
        self._bases: dict[str, asyncio.Event] = {}

    def add(self, project: str, name: str) -> None:
        """Expects a model."""
        self._models[project, name] = asyncio.Event()
        self._names.add(project, name)

    def add_base(self, *names: str) -> None:
        """Expects a base model, by all its names."""
        self._bases.update(dict.fromkeys(names, asyncio.Event()))

    def end(self, project: str, name: str) -> None:
        """The model is served now, or cannot be: those who wait ask again."""
        self._names.remove(project, name)
        self._models.pop((project, name)).set()

    def end_base(self, *names: str) -> None:
        """The same for a base model."""
        for name in names:
            self._bases.pop(name).set()

    async def wait(self, asked: str, tenant: Tenant) -> bool:
        """Returns True once a name is not expected any more, False at once where it was not.

        Raises: NotFoundError for a bare name that is in several projects, ServerError (503) after
        `EXPECTED_SECONDS`.
        """
        found = self._names.find(asked, tenant)
        ended = self._models[found[0]] if found else self._bases.get(asked) if tenant is None else None
        if ended is None:
            return False
        try:
            async with asyncio.timeout(EXPECTED_SECONDS):
                await ended.wait()
        except TimeoutError as error:
            raise ServerError(
                f"model {asked!r} is still being loaded after {EXPECTED_SECONDS:g} s: ask again, and see "
                "`art status` or the server's log for what it waits for",
                status=503,
                code="model_loading",
            ) from error
        return True


LoadMissing = Callable[[str, str, int], Awaitable[str | None]]
"""`(project, name, step)` -> adapter name of a step that it has loaded; NotFoundError if the step is gone."""

_REGISTER = "Have one served: `await model.register(backend)`"
_HOW_TO_SERVE = {
    True: f"{_REGISTER}, `art serve --model PROJECT/NAME`, or `art serve --base-model NAME`",
    False: _REGISTER,
}
_LONGEST_NAME = 2_000
_LISTED = 20
"""The number of names that are listed when a name is unknown."""
EXPECTED_SECONDS = 300.0
"""The longest wait in seconds of a request for a model that a starting server is going to serve."""


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
        self._models: dict[ModelKey, _Model] = {}
        self.names = ServedNames()
        self.expected = ExpectedNames()
        self._used_bases: set[tuple[Tenant, str]] = set()
        self._serving: dict[ModelKey, Serving] = {}
        self._targets: dict[tuple[ModelKey, int], Target] = {}
        """Made when first asked for; none after any change."""
        self.in_use = InUse[str]()
        """Adapters, by the requests that use each."""
        self._loading: dict[tuple[str, str, int], asyncio.Future[None]] = {}
        self._clocks: dict[ModelKey, StepClock] = {}
        self.changed = asyncio.Event()
        """Set after each change, for whoever tells others what is served, and clears it."""

    def _note_change(self) -> None:
        self._targets.clear()
        self.changed.set()

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
        self._note_change()
        self._bases.add(base_model, engine, renderer, max_context=max_context, aliases=aliases)

    def has_base(self, base_model: str, tenant: Tenant = None) -> bool:
        """Returns whether it answers to this name. A tenant needs a model on it."""
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
        self._note_change()
        self._bases.replace_engine(base_model, engine)
        if adapters is None:
            return
        for model in self._models.values():
            if model.base_model == base_model:
                still_loaded = {s: a for s, a in model.adapters.items() if a is None or a in adapters}
                model.adapters = still_loaded

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
            self.names.add(project, name)
            self._used_bases.add((tenant_of(project), base_model))
        elif model.base_model != base_model:
            raise ConfigurationError(
                f"model {project}/{name} has base model {model.base_model!r}, not {base_model!r}; "
                "use another name"
            )
        self._note_change()
        if model.newest != step:
            self.promotions[base_model, project, name] += 1
        model.adapters[step] = adapter
        model.newest = step

    def serve_as(self, project: str, name: str, serving: Serving) -> None:
        """Sets how a model's steps are served from now on."""
        self._note_change()
        self._serving[project, name] = serving

    def retire(self, project: str, name: str, step: int) -> str | None:
        """Closes a step that is not the newest to new requests. Returns its adapter: unload it once drained.

        Raises: NotFoundError, ConfigurationError (it is the newest step).
        """
        model = self._models.get((project, name))
        if model is None or step not in model.adapters:
            raise self._unknown(f"{project}/{name}@{step}", None)
        if model.newest == step:
            raise ConfigurationError(
                f"step {step} of {project}/{name} is the newest; publish another one first"
            )
        self._note_change()
        return model.adapters.pop(step)

    def remove(self, project: str, name: str) -> list[str]:
        """Serve a model no longer, in any step. Returns the adapters that were loaded for it."""
        self._note_change()
        model = self._models.pop((project, name), None)
        self._serving.pop((project, name), None)
        self._clocks.pop((project, name), None)
        if model is None:
            raise self._unknown(f"{project}/{name}", None)
        self.names.remove(project, name)
        self._used_bases = {(tenant_of(other), one.base_model) for (other, _), one in self._models.items()}
        return [adapter for adapter in model.adapters.values() if adapter is not None]

    def newest_steps(self) -> list[tuple[str, str, str, int]]:
        """Project, name, base model and served step of each model."""
        return [(*key, model.base_model, model.newest) for key, model in self._models.items()]

    def served_step(self, project: str, name: str) -> int | None:
        """The step that the model's name answers with; None where it is not served."""
        model = self._models.get((project, name))
        return None if model is None else model.newest

    def loaded_steps(self, project: str, name: str) -> dict[int, str | None]:
        """Loaded steps and their adapters."""
        model = self._models.get((project, name))
        return dict(model.adapters) if model else {}

    def served(self, tenant: Tenant = None) -> list[ServedName]:
        """Every base model, every model (its newest step), every loaded step that the asker may see."""
        rows = [self._describe_base(base) for base in self._bases if self.has_base(base, tenant)]
        for (project, name), model in self._models.items():
            if tenant is not None and tenant_of(project) != tenant:
                continue
            shown = self.names.shown(project, name, tenant)
            newest = ServedName(
                id=shown,
                base_model=model.base_model,
                max_context=self.served_as(project, name, model.base_model).max_context,
                project=external_name(tenant, project),
                step=model.newest,
            )
            rows.append(newest)
            rows += [replace(newest, id=f"{shown}@{step}", step=step) for step in sorted(model.adapters)]
        return rows

    def describe(self, name: str, tenant: Tenant = None) -> ServedName:
        """The row of a served name, bare or with its project. Raises: NotFoundError."""
        spelled = normalize_step_name(name)
        for row in self.served(tenant):
            if spelled in (row.id, f"{row.project}/{row.id}"):
                return row
        if self.has_base(name, tenant):
            return self._describe_base(name)
        raise self._unknown(name, tenant)

    def _describe_base(self, name: str) -> ServedName:
        base = self.base_of(name)
        return ServedName(id=name, base_model=base.base_model, max_context=base.max_context)

    # -- who answers --

    async def resolve(self, name: str, tenant: Tenant = None) -> Target:
        """The target of a name that this asker is served; loads an older step when it is asked for, and waits
        for what is expected.

        Raises: NotFoundError (404, lists what is served), ServerError (503, it is still expected), and
        whatever loading a missing step raises.
        """
        while True:
            if self.has_base(name, tenant):
                return self.base_of(name)
            found = self.names.find(name, tenant)
            if found is not None:
                break
            if not await self.expected.wait(name, tenant):
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

    def _target(self, key: ModelKey, model: _Model, step: int) -> Target:
        known = self._targets.get((key, step))
        if known is None:
            served = self.served_as(*key, model.base_model)
            known = replace(served, project=key[0], name=key[1], step=step, adapter=model.adapters[step])
            self._targets[key, step] = known
        return known

    async def _load(self, key: ModelKey, step: int, name: str) -> None:
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

    async def _load_once(self, load_missing: LoadMissing, key: ModelKey, step: int) -> None:
        adapter = await load_missing(*key, step)
        model = self._models.get(key)
        if model is not None:
            self._note_change()
            model.adapters[step] = adapter

    def _unknown(self, name: str, tenant: Tenant) -> NotFoundError:
        names = [row.id for row in self.served(tenant)]
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        listed, how = ", ".join(map(repr, names[:_LISTED])) or "nothing yet", _HOW_TO_SERVE[tenant is None]
        return NotFoundError(
            f"model {name[:99]!r} is not served here; served: {listed}{more}. {how}",
            status=404,
            code="model_not_found",
        )

    def clock(self, project: str | None, name: str) -> StepClock:
        """Returns where the time of a model's steps is booked, for as long as the model is served."""
        return self._clocks.setdefault((project or "", name), StepClock())

    # -- adapters in use --

    def using(self, target: Target) -> Use[str]:
        """`with catalog.using(target)`: its adapter is in use until the block ends."""
        return self.in_use.using(target.adapter)

    async def wait_until_unused(self, adapter: str, *, timeout: float = 600.0) -> None:
        """Return once no request uses the adapter. `timeout` in seconds. Raises: DeadlineError."""
        try:
            await self.in_use.wait_until_unused(adapter, timeout)
        except TimeoutError as error:
            raise DeadlineError(
                f"adapter {adapter!r} still has {self.in_use.count(adapter)} requests after {timeout:g} s"
            ) from error
