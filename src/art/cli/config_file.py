"""`--config run.yaml`: the options of a command from a file, checked as those of the command line are.

A key is an option's name, with `_` for `-`. What the command line says comes first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from art.errors import ARTError, ConfigurationError, did_you_mean, extra_needed

MOST_BYTES, MOST_DEPTH, MOST_ALIASES = 256 * 1024, 16, 100
NULL, TRUTH = "tag:yaml.org,2002:null", "tag:yaml.org,2002:bool"


def _take_options(ctx: typer.Context, config: Path | None) -> None:
    if config is None:
        return
    parameters: Any = ctx.command.get_params(ctx)
    try:
        ctx.default_map = read_options(
            config, [one for one in parameters if one.name not in ("help", "config")]
        )
    except ARTError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        is_eager=True,
        callback=_take_options,
        help="A YAML file of options, such as steps: 50. Options of the command line come first.",
    ),
]


def read_options(path: Path, parameters: Iterable[Any]) -> dict[str, str | list[str]]:
    """Returns the values of a file by the names of these parameters, as texts for their own checks.

    Raises ConfigurationError for a file that is no mapping in YAML, or that is longer, deeper or has more
    aliases than is allowed, and for an unknown key, with the nearest.
    """
    known = {one.name: one for one in parameters}
    found: dict[str, str | list[str]] = {}
    for key, node in _pairs(path):
        name = key.replace("-", "_")
        if name not in known:
            hint = did_you_mean(name, known)
            raise _refusal_of(path, f"{key!r} is no option{hint and f', {hint}'}; known: {', '.join(known)}")
        if name in found:
            raise _refusal_of(path, f"{key!r} is there twice: give it once")
        if node.tag != NULL:
            found[name] = _texts(path, key, node, known[name])
    return found


def _refusal_of(path: Path, what: str) -> ConfigurationError:
    return ConfigurationError(f"--config {str(path)!r}: {what}")


def _pairs(path: Path) -> list[tuple[str, Any]]:
    """Returns the keys of the file with the nodes of their values."""
    with extra_needed("local", "--config"):
        import yaml

    class BoundedLoader(yaml.SafeLoader):  # type: ignore[misc]
        depth = aliases = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.aliases, self.depth = self.aliases + self.check_event(yaml.AliasEvent), self.depth + 1
            if self.aliases > MOST_ALIASES or self.depth > MOST_DEPTH:
                raise _refusal_of(
                    path, f"it nests deeper than {MOST_DEPTH}, or has over {MOST_ALIASES} aliases"
                )
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise _refusal_of(path, f"it is longer than {MOST_BYTES >> 10} KiB")
        root = yaml.compose(text.decode(), Loader=BoundedLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _refusal_of(path, f"it cannot be read as YAML: {' '.join(str(error).split())}") from error
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode) or not all(isinstance(key.value, str) for key, _ in root.value):
        raise _refusal_of(path, "write one option a line, such as steps: 50")
    return [(key.value, node) for key, node in root.value]


def _texts(path: Path, key: str, node: Any, parameter: Any) -> str | list[str]:
    """Returns the value as the command line has it: a text, or a list for what may be repeated."""
    many = parameter.multiple or parameter.nargs != 1
    if isinstance(node.value, str):
        return [_plain(node)] if many else _plain(node)
    if many and node.id == "mapping" and all(isinstance(one.value, str) for two in node.value for one in two):
        return [f"{name.value}={_plain(value)}" for name, value in node.value]
    if many and node.id == "sequence" and all(isinstance(one.value, str) for one in node.value):
        return [_plain(one) for one in node.value]
    takes = "a value, or a list of values" if many else "one value"
    raise _refusal_of(path, f"{key!r} takes {takes}, on line {node.start_mark.line + 1}")


def _plain(node: Any) -> str:
    return json.dumps(node.value.lower() in ("true", "yes", "on")) if node.tag == TRUTH else str(node.value)
