"""Makes the modules of older import paths (`art.compat.import_paths`) when they are first imported.

    import art.utils.retry        a module of names, each loaded from the module it is in now on first use
    import art.megatron.train     a module whose names raise NotBuiltError when they are used
    python -m art_extensions.testing         another name of a whole package: the same module objects, its
    `__main__` too

The finder stands before Python's own: the submodules of a package that has two names must be found under the
one that they have now, or each would be loaded twice. It answers for the names of the table alone.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any, NoReturn

from art.compat.import_paths import NEWER_NAMES, NEWER_PLACES, NO_INFERENCE, PATHS, Names
from art.errors import NotBuiltError


def install() -> None:
    """Installs the finder of the table's paths. Installing it again changes nothing."""
    if not any(type(finder).__module__ == __name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, OlderPathFinder())


class OlderPathFinder:
    """Python's import system asks it for every module, first of all."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Returns how to make the module; None for every name that the table does not have."""
        if fullname == "art_inference":
            raise ModuleNotFoundError(NO_INFERENCE, name=fullname)
        if not fullname.startswith("art."):
            return None
        entry = PATHS.get(fullname)
        if isinstance(entry, Names):
            is_package = any(other.startswith(f"{fullname}.") for other in PATHS)
            return _spec(fullname, NamesLoader(entry), is_package=is_package)
        current = current_name(fullname)
        if current is None:
            return None
        from importlib.util import find_spec

        found = find_spec(current)
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return _spec(fullname, AliasLoader(found), origin=found.origin, is_package=is_package)


def _spec(name: str, loader: Any, *, is_package: bool, origin: str | None = None) -> ModuleSpec:
    # Typed as Any: `importlib.abc`, whose class a loader would be, takes longer to load than all of this.
    return ModuleSpec(name, loader, origin=origin, is_package=is_package)


def is_there(path: str) -> bool:
    """Returns whether the folder of the extension is there that gives the names of an older path."""
    from importlib.util import find_spec

    entry = PATHS[path]
    place = next(iter(entry.places.values())) if isinstance(entry, Names) else entry
    try:
        found = find_spec(".".join(place.split(".")[:2]))
    except ModuleNotFoundError:  # no extension is there at all
        return False
    return found is not None and found.submodule_search_locations is not None


def current_name(fullname: str) -> str | None:
    """The name today of a module that the table has, or a package above it, under an older one."""
    name, below = fullname, ""
    while "." in name:
        entry = PATHS.get(name)
        if entry is not None:
            return entry + below if isinstance(entry, str) else None
        name, _, last = name.rpartition(".")
        below = f".{last}{below}"
    return None


class AliasLoader:
    """Loads a module under its older name, too: it stays one module."""

    def __init__(self, current: ModuleSpec) -> None:
        self._current = current

    def create_module(self, spec: ModuleSpec) -> None:
        """Leaves it to Python to make a module, which `exec_module` replaces. A loaded module keeps its
        spec.
        """

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(self._current.name)

    def get_code(self, fullname: str) -> CodeType | None:
        """Returns the code for `python -m`."""
        loader: Any = self._current.loader
        code: CodeType | None = loader.get_code(self._current.name)
        return code


class NamesLoader:
    """Makes a module whose names come from other modules."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        kind = CallableModule if spec.name.rpartition(".")[2] in self._names.places else NamesModule
        return kind(spec.name, self._names)

    def exec_module(self, module: ModuleType) -> None:
        """Loads nothing: each name is loaded on its first use."""


class NamesModule(ModuleType):
    """An older path's module."""

    def __init__(self, path: str, names: Names) -> None:
        super().__init__(
            path, "An import path of older programs; `art.compat.import_paths` says what it leads to."
        )
        vars(self)["_names"] = names
        self.__all__ = sorted(names.places)

    def __getattr__(self, name: str) -> Any:
        names: Names = vars(self)["_names"]
        path = f"{self.__name__}.{name}"
        if name in names.places:
            module, _, attribute = names.places[name].partition(":")
            value = vars(self)[name] = getattr(import_module(module), attribute)
            return value
        if name in names.unbuilt:
            return Unbuilt(path, names.unbuilt[name])
        if path in PATHS:
            return import_module(path)
        if names.instead is not None and not name.startswith("__"):
            return Unbuilt(path, names.instead)
        known = ", ".join(sorted({*names.places, *names.unbuilt}))
        has = f"; it has {known}" if known else ""
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}{has}")

    def __setattr__(self, name: str, value: Any) -> None:
        # Python binds a submodule that it has imported in its package: a function of that name wins.
        names: Names = vars(self)["_names"]
        if not (isinstance(value, ModuleType) and (name in names.places or name in names.unbuilt)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        names: Names = vars(self)["_names"]
        return sorted({*names.places, *names.unbuilt, *(name for name in vars(self) if name != "_names")})


class CallableModule(NamesModule):
    """One that has a function of its own name: where Python binds the module in that function's place in
    `art`, it can be called all the same.
    """

    @property
    def __wrapped__(self) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)


def newer_name(name: str) -> Any:
    """Returns what a name of later releases means here, or a stand-in for it; None for any other."""
    if name in NEWER_PLACES:
        module, _, attribute = NEWER_PLACES[name].partition(":")
        return getattr(import_module(module), attribute)
    instead = NEWER_NAMES.get(name)
    return None if instead is None else Unbuilt(f"art.{name}", instead)


class Unbuilt:
    """A stand-in for a function or class that has no code behind it yet: calling, subclassing and asking for
    an attribute raise `NotBuiltError` with what to use instead. Importing it works, for programs that need it
    only sometimes.

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
