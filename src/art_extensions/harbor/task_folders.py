"""Task folders as Harbor has them, and datasets of them.

task.toml           deadlines, variables
instruction.md      what the agent is told
environment/        a Dockerfile, and what it copies
tests/test.sh       writes /logs/verifier/reward.txt, or reward.json
solution/solve.sh   the oracle's
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from art.errors import ConfigurationError, did_you_mean
from art.process.environment import variable
from art.process.foreign_files import parse_json, read_foreign, too_deep

SETUP_S, AGENT_S, VERIFIER_S = 600.0, 600.0, 600.0
"""Harbor's deadlines, in seconds, where a task names none."""
SCRIPTS = {"tests": "test.sh", "solution": "solve.sh"}
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


@dataclass(frozen=True, kw_only=True)
class HarborTask:
    """One task folder."""

    folder: Path
    name: str
    instruction: str
    setup_s: float
    agent_s: float
    verifier_s: float
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of every command in the sandbox."""
    verifier_variables: Mapping[str, str] = field(default_factory=dict)
    solution_variables: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    """Where the agent's commands run; None: where the Dockerfile says."""

    @classmethod
    def read(cls, folder: Path) -> HarborTask:
        """Raises: ConfigurationError, which names the file and the field, for what is no task that can be run
        here: several steps, Windows, no instruction, no test.
        """
        settings = _settings(folder / "task.toml")
        where = f"{folder / 'task.toml'}"
        if settings.get("steps"):
            raise ConfigurationError(
                f"{where}: steps: tasks of several steps are not run; take each by itself"
            )
        environment = _table(settings, "environment", where)
        if environment.get("os", "linux") != "linux":
            raise ConfigurationError(f"{where}: environment.os is {environment['os']!r}: only linux is run")
        if environment.get("mcp_servers"):
            raise ConfigurationError(f"{where}: environment.mcp_servers: the agent here has a shell alone")
        instruction = folder / "instruction.md"
        if not instruction.is_file():
            raise ConfigurationError(f"{folder} has no instruction.md")
        if not (folder / "tests" / SCRIPTS["tests"]).is_file():
            raise ConfigurationError(f"{folder} has no tests/{SCRIPTS['tests']}, which gives the reward")
        verifier, agent = _table(settings, "verifier", where), _table(settings, "agent", where)
        solution = _table(settings, "solution", where)
        package = _table(settings, "task", where).get("name")
        return cls(
            folder=folder,
            name=package if isinstance(package, str) else folder.name,
            instruction=read_foreign(instruction).decode("utf-8", "replace").strip(),
            setup_s=_seconds(environment, "build_timeout_sec", SETUP_S, where),
            agent_s=_seconds(agent, "timeout_sec", AGENT_S, where),
            verifier_s=_seconds(verifier, "timeout_sec", VERIFIER_S, where),
            variables=_variables(environment, where),
            verifier_variables=_variables(verifier, where),
            solution_variables=_variables(solution, where),
            workdir=_text(environment, "workdir", where),
        )


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigurationError(f"{path.parent} is no task folder of Harbor: it has no task.toml")
    try:
        return tomllib.loads(read_foreign(path).decode())
    except RecursionError:
        raise ConfigurationError(f"{path}: {too_deep()}") from None
    except ValueError as error:  # also of a number with too many digits
        raise ConfigurationError(f"{path} is no TOML: {error}") from error


def _table(settings: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    found = settings.get(name, {})
    if not isinstance(found, Mapping):
        raise ConfigurationError(f"{where}: {name} is {found!r:.60}: a table is needed")
    return found


def _text(table: Mapping[str, Any], name: str, where: str) -> str | None:
    found = table.get(name)
    if found is not None and not isinstance(found, str):
        raise ConfigurationError(f"{where}: {name} is {found!r:.60}: a text is needed")
    return found


def _seconds(table: Mapping[str, Any], name: str, default: float, where: str) -> float:
    found = table.get(name)
    if found is None:
        return default
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < float("inf"):
        raise ConfigurationError(f"{where}: {name} is {found!r:.60}: a number of seconds is needed")
    return float(found)


def _variables(table: Mapping[str, Any], where: str) -> dict[str, str]:
    """The variables of a table; `${NAME}` is this program's own, `${NAME:-text}` with a default."""
    found = _table(table, "env", where)
    return {str(name): _filled_in(str(value), f"{where}: env.{name}") for name, value in found.items()}


def _filled_in(text: str, where: str) -> str:
    def own(match: re.Match[str]) -> str:
        value = variable(match[1])
        if value is None and match[2] is None:
            raise ConfigurationError(f"{where} needs the environment variable {match[1]}, which is not set")
        return match[2] if value is None else value

    return _VARIABLE.sub(own, text)


def find_tasks(name: str, registry: Path | None = None) -> list[Path]:
    """Returns the task folders that a name stands for, in the order of their names.

    name: a task folder, a folder of them, or, with a registry, one of its datasets (`name` or
    `name@version`). registry: a file of Harbor's form, whose tasks have a `path` below it. Raises:
    ConfigurationError.
    """
    if registry is not None:
        return _registered(name, registry)
    folder = Path(name).expanduser()
    if (folder / "task.toml").is_file():
        return [folder]
    found = sorted(path.parent for path in folder.glob("*/task.toml"))
    if not found:
        what = "has no task folder in it" if folder.is_dir() else "is no folder"
        raise ConfigurationError(
            f"harbor:{name}: {str(folder)!r} {what}. Name a folder with a task.toml, a folder of such "
            "folders, or a dataset together with registry=FILE"
        )
    return found


def dataset_names(registry: Path) -> list[str]:
    """Returns the datasets of a registry as `name@version`. Raises: ConfigurationError."""
    return [f"{one.get('name')}@{one.get('version')}" for one in _read_registry(registry)]


def _read_registry(registry: Path) -> list[dict[str, Any]]:
    try:
        sets = parse_json(read_foreign(registry))
    except ValueError as error:
        raise ConfigurationError(f"registry {registry} is no JSON: {error}") from error
    except OSError as error:
        raise ConfigurationError(f"registry {registry} cannot be read: {error}") from error
    if not isinstance(sets, list) or not all(isinstance(one, dict) for one in sets):
        raise ConfigurationError(f"registry {registry}: a list of datasets is needed")
    return sets


def _registered(name: str, registry: Path) -> list[Path]:
    sets = _read_registry(registry)
    wanted, _, version = name.partition("@")
    fits = [
        one
        for one in sets
        if one.get("name") == wanted and (not version or str(one.get("version")) == version)
    ]
    if not fits:
        known = dataset_names(registry)
        hint = did_you_mean(name, known)
        raise ConfigurationError(
            f"registry {registry} has no dataset {name!r}{hint and f', {hint}'}; it has {', '.join(known)}"
        )
    tasks = fits[-1].get("tasks")
    if not isinstance(tasks, Sequence) or isinstance(tasks, str) or not tasks:
        raise ConfigurationError(f"registry {registry}: dataset {name!r} has no tasks")
    return [_below(registry, one, f"{registry}, dataset {name!r}") for one in tasks]


def _below(registry: Path, task: Any, where: str) -> Path:
    path = task.get("path") if isinstance(task, Mapping) else None
    if not isinstance(path, str) or "\0" in path or task.get("git_url"):
        raise ConfigurationError(
            f"{where}: task {json.dumps(task)[:200]} lies elsewhere: download it with Harbor, and name "
            "its folder"
        )
    root = registry.parent.resolve()
    found = (root / path).resolve()
    if not found.is_relative_to(root):
        raise ConfigurationError(f"{where}: path {path!r} leaves the registry's folder")
    return found
