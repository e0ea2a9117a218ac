"""The served base models: the engine, the renderer and the length of each."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from art.engine.protocol import Engine
from art.rendering.chat import ChatRenderer
from art.server.models.served import Target


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
