"""Which modules are environments of a library that finds them by the name of their module, as verifiers does.

Nothing but the library itself is imported: a module counts where its text has what an environment has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path

REQUIRED = re.compile(r"[\w.-]+")
EXTRA_MARK = "extra =="
FIRST_FILE = "__init__.py"
LOADS = re.compile(
    r"^def load_environment\b|^from (?!verifiers\b)[.\w]+ import (\([^)]*|[^\n(]*)\bload_environment\b", re.M
)
"""The text of an environment of verifiers 0.1: it has the function, or takes it from a file beside it."""
TASKSET = re.compile(r"(?=.*^__all__\b)(?=.*Taskset)", re.M | re.S)
"""The text of a taskset of verifiers 0.4: it says which class it gives."""


def modules_that_need(library: str, form: re.Pattern[str]) -> dict[str, str]:
    """Returns modules, of which none needs anything: those of the current folder, and of installed packages
    that require the library, whose first file has the form. Raises what importing the library raises.
    """
    import_module(library)
    here = {path.stem: path for path in Path.cwd().glob("*.py")}
    here |= {path.parent.name: path for path in Path.cwd().glob(f"*/{FIRST_FILE}")}
    installed = {
        module: Path(spec.origin)
        for package in distributions()
        if package.name != library and library in _requirements(package)
        for module in _modules_of(package)
        if (spec := find_spec(module)) is not None and spec.origin is not None
    }
    found = {**installed, **here}
    texts = {name: path.read_text("utf-8", "replace") for name, path in sorted(found.items())}
    return {name: "" for name, text in texts.items() if form.search(text)}


def _requirements(package: Distribution) -> set[str]:
    """Returns the names of the packages that it always needs."""
    needed = [line for line in package.requires or () if EXTRA_MARK not in line]
    return {found[0].lower() for line in needed if (found := REQUIRED.match(line)) is not None}


def _modules_of(package: Distribution) -> Iterator[str]:
    """Yields its modules, and first the one that has its name: an editable installation lists no files."""
    yield package.name.replace("-", "_")
    names = {file.parts[0].removesuffix(".py") for file in package.files or () if file.suffix == ".py"}
    yield from (name for name in sorted(names) if name.isidentifier())
