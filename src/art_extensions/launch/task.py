"""The task that SkyPilot is given for a box: a plain dictionary in the form of its YAML, without a secret.

`setup` installs the same version of ART on each machine; `run` starts the server on the first one, on its
loopback address, and joins the others to its Ray cluster. No port is opened: ssh is the only way in.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from art.errors import DISTRIBUTION, ConfigurationError, install_command

BOX = ".art-box"
"""The folder of everything of ours in the home folder of a box."""
DATA = f"{BOX}/data"
KEY_SECRET, TOKEN_SECRET = "ART_API_KEY", "RAY_AUTH_TOKEN"
"""The names under which the box finds the server's key and Ray's token."""
RAY_PORT = 6379
SERVED = ("builtin", "vllm")
HIDDEN = "<secret>"
SOURCE_PARTS = ("pyproject.toml", "README.md", "LICENSE", "src")
"""What a wheel is made of."""


@dataclass(frozen=True, kw_only=True)
class BoxPlan:
    """The machines of a box and what they run. Raises ConfigurationError for what no task can be made of."""

    name: str
    """The name of SkyPilot's cluster."""
    version: str | Path
    """ART on the box: a version, or a folder with its source."""
    gpu: str | None = None
    """The GPUs of a machine, as SkyPilot spells them: `H100` or `H100:8`. None: a box without."""
    resources: Mapping[str, Any] = field(default_factory=dict)
    """SkyPilot's own `resources`, as in its YAML."""
    cloud: str | None = None
    nodes: int = 1
    idle_minutes: float = 30.0
    """Minutes without a request of a client after which the server ends; 0: it never does."""
    engine: str = "builtin"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?", self.name):
            raise ConfigurationError(
                f"cluster_name {self.name!r} is no name of a cluster: begin with a letter, go on with "
                "letters, digits, '-', '_' or '.'"
            )
        if not self.gpu and not self.resources:
            raise ConfigurationError(
                f"box {self.name!r} has neither a GPU nor resources: give --gpus H100:1 (gpu='H100:1' in a "
                "program), or --resource cpus=4+ (resources={'cpus': '4+'})"
            )
        if self.gpu and "accelerators" in self.resources:
            raise ConfigurationError(
                f"gpu={self.gpu!r} and resources['accelerators'] are one thing: give one"
            )
        if self.cloud and {"cloud", "infra"} & set(self.resources):
            raise ConfigurationError(
                f"cloud={self.cloud!r} and the cloud of resources are one thing: give one"
            )
        if self.nodes < 1:
            raise ConfigurationError(f"nodes={self.nodes}: a box has at least one machine")
        if self.idle_minutes < 0:
            raise ConfigurationError(f"idle_minutes={self.idle_minutes:g}: give 0 (never) or more")
        if self.engine not in SERVED:
            raise ConfigurationError(f"engine {self.engine!r} is none of {', '.join(SERVED)}")


def task_of(plan: BoxPlan) -> dict[str, Any]:
    """Returns the task, in the form of SkyPilot's YAML. It names no secret's value."""
    resources = dict(plan.resources)
    if plan.gpu:
        resources["accelerators"] = plan.gpu
    if plan.cloud:
        resources["infra"] = plan.cloud
    task: dict[str, Any] = {"name": plan.name, "resources": resources, "num_nodes": plan.nodes}
    if isinstance(plan.version, Path):
        task["file_mounts"] = {f"~/{BOX}/source": str(plan.version)}
    task["setup"] = _setup(plan)
    task["run"] = _run_text(plan)
    return task


def _setup(plan: BoxPlan) -> str:
    extras = "local,cluster" if plan.nodes > 1 else "local"
    if plan.engine == "vllm":
        extras += ",vllm"
    if isinstance(plan.version, Path):
        package, check = f'"$BOX/source[{extras}]"', "false"
    else:
        package = shlex.quote(f"{DISTRIBUTION}[{extras}]=={plan.version}")
        installed = shlex.quote(f"art {plan.version}")
        check = f'[ "$(art --version 2>/dev/null)" = {installed} ]'
    lines = [
        "set -euo pipefail",
        "umask 077",
        f'BOX="$HOME/{BOX}"',
        'mkdir -p "$BOX"',
        'export PATH="$BOX/venv/bin:$HOME/.local/bin:$PATH"',
        f"if ! {check}; then",
        "  command -v uv >/dev/null || python3 -m pip install --quiet --user uv",
        '  uv venv --quiet --allow-existing --python 3.12 "$BOX/venv"',
        f'  uv pip install --quiet --python "$BOX/venv/bin/python" {package}',
        "fi",
        "art --version",
    ]
    if plan.engine == "vllm":
        lines.append("art runtime install")
    return "\n".join(lines) + "\n"


def _run_text(plan: BoxPlan) -> str:
    serve = [
        *("python", "-m", "art_extensions.launch.box"),
        *("--idle-seconds", f"{plan.idle_minutes * 60:g}", "--data-dir", f"$HOME/{DATA}", "--"),
        *("--engine", plan.engine),
    ]
    if plan.nodes > 1:
        serve += ["--cluster", "auto"]
    words = " ".join(f'"{word}"' if word.startswith("$") else shlex.quote(word) for word in serve)
    lines = ["set -euo pipefail", "umask 077", f'export PATH="$HOME/{BOX}/venv/bin:$PATH"']
    if plan.nodes > 1:
        lines += _ray_lines()
        lines.append(words)
    else:
        lines.append(f"exec {words}")
    return "\n".join(lines) + "\n"


def _ray_lines() -> list[str]:
    """Returns how the machines make a Ray cluster of their own, beside SkyPilot's, which has port 6380.

    `ray stop` would end SkyPilot's too, so each machine ends the process that it started.
    """
    return [
        "export RAY_AUTH_MODE=token",
        'HEAD="$(printf "%s\\n" "$SKYPILOT_NODE_IPS" | head -n 1)"',
        'if [ "$SKYPILOT_NODE_RANK" -ne 0 ]; then',
        "  for TRY in $(seq 300); do",
        f'    (exec 3<>"/dev/tcp/$HEAD/{RAY_PORT}") 2>/dev/null && break',
        "    sleep 2",
        "  done",
        f'  exec ray start --address "$HEAD:{RAY_PORT}" --block',
        "fi",
        f'ray start --head --port {RAY_PORT} --node-ip-address "$HEAD" --include-dashboard=false --block &',
        'trap "kill $!" EXIT',
        "for TRY in $(seq 150); do",
        f'  (exec 3<>"/dev/tcp/$HEAD/{RAY_PORT}") 2>/dev/null && break',
        "  sleep 2",
        "done",
    ]


def as_resources(given: Any) -> dict[str, Any]:
    """Returns resources as in SkyPilot's YAML: of a dictionary, or of a `sky.Resources`.

    Raises ConfigurationError for anything else.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping) and hasattr(given, "to_yaml_config"):
        given = given.to_yaml_config()
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"resources is a {type(given).__name__}: give a dictionary, as in YAML, or sky.Resources"
        )
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(given)))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"resources hold something that YAML cannot: {error}") from error
    return plain


def resolve_version(art_version: str | None, installed: str, origin: Path | None) -> str | Path:
    """Returns the ART that a box gets: of a version, of a folder, or (None) the one that asks.

    origin: the folder that this installation is edited in, if it is. Raises ConfigurationError.
    """
    if art_version is None:
        return origin or installed
    if re.fullmatch(r"\d+(\.\d+)*([-.]?(a|b|rc|dev|post)\.?\d+)?", art_version):
        return art_version
    folder = Path(art_version).expanduser().absolute()
    if not (folder / "pyproject.toml").is_file():
        raise ConfigurationError(
            f"art_version {art_version!r} is neither a version nor a folder with ART's source. To install "
            f"here: {install_command('local')}"
        )
    return folder


def stage_source(folder: Path, place: Path) -> Path:
    """Copies what ART is installed from, and nothing else of the folder; returns the copy."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True, mode=0o700)
    for part in SOURCE_PARTS:
        if (folder / part).is_dir():
            shutil.copytree(folder / part, place / part, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        elif (folder / part).is_file():
            shutil.copyfile(folder / part, place / part)
    return place
