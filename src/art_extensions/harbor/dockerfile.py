"""The part of a Dockerfile that the process jail can follow: folders, variables, files, commands.

The image of `FROM` is this machine's system, read-only. What cannot be done is refused by its line.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from art.errors import ConfigurationError
from art.process.foreign_files import parse_json, read_foreign

_WITHOUT_EFFECT = frozenset(
    {"CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "STOPSIGNAL", "USER", "VOLUME"}
)
_REFERENCE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")


@dataclass(frozen=True, kw_only=True)
class BuildStep:
    """A command, or files that are copied, at one place of a Dockerfile."""

    line: str
    workdir: str
    variables: dict[str, str]
    command: str | None = None
    sources: tuple[Path, ...] = ()
    target: str = ""


@dataclass(kw_only=True)
class Build:
    """The content of a Dockerfile: its steps, then the folder and the variables of what runs later."""

    steps: list[BuildStep] = field(default_factory=list)
    workdir: str = "/"
    variables: dict[str, str] = field(default_factory=dict)


def read_build(folder: Path) -> Build:
    """Returns the build of a task's `environment` folder; without a Dockerfile it is empty.

    Raises: ConfigurationError for a Dockerfile that needs more than the jail has, and for compose files.
    """
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if (folder / name).exists():
            raise ConfigurationError(f"{folder / name}: the jail has no services; use sandbox='docker'")
    path, build = folder / "Dockerfile", Build()
    if not path.is_file():
        return build
    stages = 0
    for number, word, rest in _lines(read_foreign(path).decode("utf-8", "replace")):
        where = f"{path}, line {number}"
        if word == "FROM":
            stages += 1
            if stages > 1:
                raise ConfigurationError(f"{where}: builds of several stages need sandbox='docker'")
        elif word not in _WITHOUT_EFFECT:
            _follow(build, word, rest, folder, where)
    return build


def _lines(text: str) -> Iterator[tuple[int, str, str]]:
    """Yields the number of each instruction's line, its word and the rest; continued lines are joined."""
    waiting, begun = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        begun = begun or number
        if line.rstrip().endswith("\\"):
            waiting += line.rstrip()[:-1] + " "
            continue
        word, _, rest = (waiting + line).strip().partition(" ")
        yield begun, word.upper(), rest.strip()
        waiting, begun = "", 0


def _follow(build: Build, word: str, rest: str, folder: Path, where: str) -> None:
    if word == "WORKDIR":
        build.workdir = posixpath.normpath(posixpath.join(build.workdir, _filled(rest, build)))
        build.steps.append(_step(build, where, command=f"mkdir -p {shlex.quote(build.workdir)}", workdir="/"))
    elif word in ("ENV", "ARG"):
        build.variables.update(_assignments(rest, build, where, may_lack=word == "ARG"))
    elif word == "RUN":
        if "<<" in rest.partition(" ")[0] or rest.startswith("--"):
            raise ConfigurationError(f"{where}: RUN with a here-document or options needs sandbox='docker'")
        words = _as_list(rest)
        build.steps.append(_step(build, where, command=rest if words is None else shlex.join(words)))
    elif word in ("COPY", "ADD"):
        build.steps.append(_copy(build, rest, folder, where))
    else:
        raise ConfigurationError(f"{where}: {word:.60} is not followed in the jail; use sandbox='docker'")


def _step(build: Build, line: str, *, command: str, workdir: str | None = None) -> BuildStep:
    place = build.workdir if workdir is None else workdir
    return BuildStep(line=line, workdir=place, variables=dict(build.variables), command=command)


def _assignments(text: str, build: Build, where: str, *, may_lack: bool) -> dict[str, str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    if words and "=" not in words[0]:
        if may_lack:
            return {}
        words = [f"{words[0]}={' '.join(words[1:])}"]
    pairs = (word.partition("=") for word in words)
    return {name: _filled(value, build) for name, _, value in pairs}


def _filled(text: str, build: Build) -> str:
    return _REFERENCE.sub(lambda found: build.variables.get(found[1] or found[2], ""), text.strip())


def _as_list(text: str) -> list[str] | None:
    """The words of the form `["word", ...]`, or None."""
    if not text.startswith("["):
        return None
    try:
        words = parse_json(text)
    except ValueError:
        return None
    return [str(word) for word in words] if isinstance(words, list) else None


def _copy(build: Build, rest: str, folder: Path, where: str) -> BuildStep:
    words = _as_list(rest) or shlex.split(rest)
    options = [word for word in words if word.startswith("--")]
    if any(not word.startswith(("--chown", "--chmod")) for word in options):
        raise ConfigurationError(f"{where}: {options[0]} needs sandbox='docker'")
    *names, target = [_filled(word, build) for word in words if not word.startswith("--")]
    if not names:
        raise ConfigurationError(f"{where}: a source and a target are needed")
    root, sources = folder.resolve(), []
    for name in names:
        if "://" in name:
            raise ConfigurationError(f"{where}: {name} is an address; the jail has no network")
        found = (
            sorted(root.glob(name.lstrip("/")))
            if any(one in name for one in "*?[")
            else [root / name.lstrip("/")]
        )
        for path in found:
            if not path.resolve().is_relative_to(root) or not path.exists():
                raise ConfigurationError(f"{where}: {name} is no file of {folder}")
        sources += found
    return BuildStep(
        line=where,
        workdir=build.workdir,
        variables=dict(build.variables),
        sources=tuple(sources),
        target=posixpath.join(build.workdir, target) + ("/" if target.endswith(("/", ".")) else ""),
    )
