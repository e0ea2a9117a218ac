"""Stand-ins for names that older programs import and that have no code behind them yet.

Importing such a name works, so that a program that needs it only sometimes still runs; using it raises
`NotBuiltError` with what to use instead.
"""

from __future__ import annotations

from typing import Any, NoReturn

from art.errors import NotBuiltError


class Unbuilt:
    """A stand-in for a function or class: calling, subclassing and asking for an attribute raise.

    Annotations may name it: subscripts and unions give something that means "anything".
    """

    def __init__(self, name: str, instead: str) -> None:
        """name: the whole path. instead: what a program can do today, as a clause."""
        self.__name__ = self.__qualname__ = name.rpartition(".")[2]
        self.__module__ = name.rpartition(".")[0]
        self.__doc__ = f"Not built yet: {instead}."
        self._path, self._instead = name, instead

    def _refuse(self) -> NoReturn:
        raise NotBuiltError(f"{self._path} is not built yet: {self._instead}")

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse()

    def __mro_entries__(self, _: tuple[Any, ...]) -> NoReturn:
        self._refuse()

    def __instancecheck__(self, _: Any) -> NoReturn:
        self._refuse()

    def __iter__(self) -> NoReturn:
        # Without it, what can be subscripted would be iterated, and without an end.
        self._refuse()

    def __getattr__(self, name: str) -> NoReturn:
        # Python's own questions ("are you wrapped?", "can you be copied?") are answered, not refused.
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    def __getitem__(self, _: Any) -> Unbuilt:
        return self

    def __or__(self, _: Any) -> Any:
        return Any

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"<{self._path}: not built yet>"
