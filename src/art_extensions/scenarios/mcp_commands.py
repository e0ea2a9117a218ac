"""`art mcp`: inspect an MCP server, generate scenarios for its tools, train a model on them."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from art.cli.config_file import ConfigFile
from art.cli.run_options import (
    DATA_DIR,
    BaseModel,
    DataDir,
    JsonFile,
    Project,
    plain_console,
    print_error,
    run_reported,
    run_resumable,
    settings_verb,
    show_report,
    write_json,
)
from art.errors import ConfigurationError
from art.process import environment
from art.process.foreign_files import parse_json
from art_extensions.scenarios.judge_options import AskedOptions, GeneratorOptions, Name, takes_asked
from art_extensions.scenarios.judges import JUDGE

if TYPE_CHECKING:
    from art.rewards.judge_checks import JudgeChecks
    from art_extensions.scenarios.mcp import Server


mcp = typer.Typer(
    name="mcp",
    help="Train a model to use the tools of an MCP server: inspect it, generate scenarios, train.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)
SETTINGS = "art_extensions.scenarios.mcp_rl.settings:TrainSettings"
OWN_WORDS = {"allow_interspersed_args": False}
"""What follows the server's command is the server's, dashes included."""

ServerWords = Annotated[
    list[str], typer.Argument(help="After --: the command that starts the server, or its http(s) address.")
]
ReadOnly = Annotated[
    list[str] | None,
    typer.Option(help="A tool that only reads, if the server does not mark it; '*': all. May be repeated."),
]
AllowWrite = Annotated[
    list[str] | None,
    typer.Option(help="A writing tool that may be called; '*': all. May be repeated."),
]
Env = Annotated[
    list[str] | None,
    typer.Option(help="The name of an environment variable to pass to the server. May be repeated."),
]
Header = Annotated[
    list[str] | None,
    typer.Option(
        help="A header for an http server, NAME=VARIABLE, with its value in a variable. May be repeated."
    ),
]
Bearer = Annotated[
    str | None,
    typer.Option(
        metavar="VARIABLE",
        help="The environment variable with an http server's token, sent as 'Authorization: Bearer ...'.",
    ),
]
Scenarios = Annotated[Path | None, typer.Option(help="A file of scenarios instead of generated ones.")]
CheckJudge = Annotated[
    bool,
    typer.Option(
        "--check-judge", help="Check the judge during training: a tenth of the groups is judged twice."
    ),
]


@dataclass(frozen=True, kw_only=True)
class McpAskedOptions(AskedOptions):
    """The judge of rollouts with a server, which may be the base model."""

    judge: Annotated[
        str,
        typer.Option(help="The judge (RULER) of the rollouts: provider/model; base: the base model itself."),
    ] = JUDGE


@mcp.command(context_settings=OWN_WORDS)
def inspect(
    server: ServerWords,
    read_only: ReadOnly = None,
    env: Env = None,
    header: Header = None,
    bearer: Bearer = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the tools, documents and prompts of a server, and the tools that a rollout may call."""
    place = server_arguments(server, read_only, env, header, bearer)
    raise typer.Exit(run_reported(lambda: inspect_server(place, as_json=as_json)))


@settings_verb(
    mcp,
    SETTINGS,
    only=("num_train", "num_test", "instructions", "similarity", "call_timeout", "seed"),
    context_settings=OWN_WORDS,
)
@takes_asked
def generate(
    server: ServerWords,
    *,
    output: Annotated[Path, typer.Option(help="The file to write.")] = Path("scenarios.json"),
    asked: GeneratorOptions,
    allow_write: AllowWrite = None,
    read_only: ReadOnly = None,
    env: Env = None,
    header: Header = None,
    bearer: Bearer = None,
    data_dir: DataDir = DATA_DIR,
    **settings: Any,
) -> None:
    """Generate scenarios for a server's tools, check them on the server, and write them to a file.

    `art mcp train --scenarios FILE` takes the file; edit it as you like before.
    """
    place = server_arguments(server, read_only, env, header, bearer)
    keywords = {**settings, "allow_writes": writes_of(allow_write), "path": data_dir}
    raise typer.Exit(generate_file(place, keywords, asked, output))


@settings_verb(
    mcp, SETTINGS, leave_out=("allow_writes",), unset=("learning_rate",), context_settings=OWN_WORDS
)
@takes_asked
def train(
    server: ServerWords,
    base_model: BaseModel,
    *,
    config: ConfigFile = None,
    name: Name = "mcp-agent",
    project: Project = "mcp",
    asked: McpAskedOptions,
    check_judge: CheckJudge = False,
    scenarios: Scenarios = None,
    allow_write: AllowWrite = None,
    read_only: ReadOnly = None,
    env: Env = None,
    header: Header = None,
    bearer: Bearer = None,
    data_dir: DataDir = DATA_DIR,
    json_file: JsonFile = None,
    **settings: Any,
) -> None:
    """Train a model to use a server's tools, without labels, and compare it before and after.

    To resume after a stop or a kill, repeat the command. It pays for no answer twice.
    """
    place = server_arguments(server, read_only, env, header, bearer)
    keywords = {
        **settings,
        **{"base_model": base_model, "name": name, "project": project, "path": data_dir},
        "allow_writes": writes_of(allow_write),
        "checks": judge_checks(data_dir / project / "mcp" / name) if check_judge else None,
    }
    raise typer.Exit(train_run(place, keywords, asked, scenarios, json_file))


EVERYTHING = "*"


@dataclass(frozen=True, kw_only=True)
class ServerArguments:
    """The server's address, as given on the command line."""

    words: list[str]
    read_only: list[str]
    env: list[str]
    headers: list[str]
    bearer: str | None = None
    """The variable with the token of an http server."""

    def server(self) -> Server:
        """Raises ConfigurationError for a variable that is not set, or does not fit the kind of server."""
        from art_extensions.scenarios.mcp import HttpServer, StdioServer, parse_server

        server = parse_server(self.words)
        more: dict[str, Any] = {"read_only": tuple(self.read_only)}
        if isinstance(server, StdioServer):
            if self.headers or self.bearer:
                raise ConfigurationError(
                    f"{'--header' if self.headers else '--bearer'} is for an http server; a command takes "
                    "variables with --env"
                )
            more["env"] = {name: env_value(name, "--env") for name in self.env}
        elif isinstance(server, HttpServer):
            if self.env:
                raise ConfigurationError(
                    "--env is for a command; an http server takes --bearer VARIABLE or --header NAME=VARIABLE"
                )
            more["headers"] = dict(header(text) for text in self.headers)
            if self.bearer:
                if any(name.lower() == "authorization" for name in more["headers"]):
                    raise ConfigurationError(
                        "--bearer and --header Authorization=... are one header: give one"
                    )
                more["headers"]["Authorization"] = f"Bearer {header_value(self.bearer, '--bearer')}"
        return dataclasses.replace(server, **more)


def server_arguments(
    words: list[str],
    read_only: list[str] | None,
    env: list[str] | None,
    headers: list[str] | None,
    bearer: str | None,
) -> ServerArguments:
    """Returns the server's address of a command's options."""
    return ServerArguments(
        words=words, read_only=read_only or [], env=env or [], headers=headers or [], bearer=bearer
    )


def header(text: str) -> tuple[str, str]:
    name, equals, variable = text.partition("=")
    if not (name and equals and variable):
        raise ConfigurationError(f"--header {text!r}: write NAME=VARIABLE, such as Authorization=MY_TOKEN")
    return name, header_value(variable, "--header")


def env_value(variable: str, option: str) -> str:
    """Returns the value of an environment variable. Raises ConfigurationError when it is not set."""
    value = environment.variable(variable)
    if value is None:
        raise ConfigurationError(f"{option} names the environment variable {variable!r}, which is not set")
    return value


def header_value(variable: str, option: str) -> str:
    """`env_value` without white space around it. Raises ConfigurationError where no header can hold it."""
    value = env_value(variable, option).strip()
    if not (value and value.isascii() and value.isprintable()):  # untold: it is a secret
        raise ConfigurationError(
            f"{option} names the environment variable {variable!r}, whose value no HTTP header can hold: "
            "give it one line of printable ASCII"
        )
    return value


async def inspect_server(place: ServerArguments, *, as_json: bool) -> None:
    """Print what the server offers."""
    from art_extensions.scenarios.mcp import connect

    async with connect(place.server()) as session:
        tools, resources, prompts = await session.tools(), await session.resources(), await session.prompts()
        templates = await session.resource_templates()
    offered: dict[str, list[Any]] = {"tools": tools, "resources": resources}
    offered |= {"resource_templates": templates, "prompts": prompts}
    if as_json:
        plain = {name: [dataclasses.asdict(one) for one in found] for name, found in offered.items()}
        sys.stdout.write(json.dumps({"server": session.label, **plain}, indent=1, ensure_ascii=False) + "\n")
        return
    console = plain_console()

    def print_plain(text: str) -> None:
        console.print(text, markup=False)

    counts = ", ".join(f"{len(found)} {name.replace('_', ' ')}" for name, found in offered.items())
    print_plain(f"{session.label}: {counts}")
    for tool in tools:
        kind = {True: "reads", False: "writes", None: "does not say whether it writes"}[tool.read_only]
        print_plain(f"  {tool.name}({', '.join(tool.parameters.get('properties', {}))})  [{kind}]")
        print_plain(f"    {first_line(tool.description)}")
    for resource in resources:
        print_plain(f"  {resource.uri}  {first_line(resource.description)}")
    for template in templates:
        print_plain(f"  {template.uri_template}  {first_line(template.description)}")
    for prompt in prompts:
        print_plain(f"  prompt {prompt.name}  {first_line(prompt.description)}")
    shut = [tool.name for tool in tools if tool.read_only is not True]
    if shut:
        print_plain(
            f"Rollouts may not call {', '.join(shut)}: name those that only read with --read-only, those "
            "that may be called though they write with --allow-write."
        )


def first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def writes_of(allowed: list[str] | None) -> tuple[str, ...] | Literal[True]:
    """`allow_writes` of `art.mcp.train`."""
    return True if EVERYTHING in (allowed or []) else tuple(allowed or [])


def judge_checks(folder: Path) -> JudgeChecks:
    """Returns the checks of the judge for the run in `folder`, which a resumed run continues."""
    from art.rewards import JudgeChecks

    return JudgeChecks(record=folder / "judge-checks.jsonl")


def generate_file(
    place: ServerArguments, keywords: Mapping[str, Any], asked: GeneratorOptions, output: Path
) -> int:
    """Write checked scenarios to a file. Returns the exit code."""

    async def work() -> None:
        from art_extensions.scenarios.mcp_rl.mcp_run import scenario_generator
        from art_extensions.scenarios.mcp_rl.settings import TrainSettings, checked_scenarios_of
        from art_extensions.scenarios.run_costs import answer_cache_in

        chosen = dict(keywords)
        channel = scenario_generator(cache=answer_cache_in(chosen.pop("path")), **asked.keywords())
        made = await checked_scenarios_of(place.server(), channel, TrainSettings.from_options(chosen))
        write_json(output, made.to_dict())
        rejected = ", ".join(f"{name} {count}" for name, count in made.rejections.items()) or "none"
        covered = ", ".join(f"{name} {count}" for name, count in made.tools.items())
        sys.stdout.write(
            f"{len(made.train)} scenarios to train on and {len(made.test)} held out are in {output}.\n"
            f"Rejected: {rejected}. In plans: {covered}.\n"
        )

    if output.exists():
        print_error(ConfigurationError(f"{str(output)!r} is there already: give another --output"))
        return 1
    return run_reported(work)


def train_run(
    place: ServerArguments,
    keywords: Mapping[str, Any],
    asked: AskedOptions,
    scenarios: Path | None,
    json_file: Path | None,
) -> int:
    """Train, and show the report. Returns the exit code."""
    console = plain_console()

    async def work() -> None:
        from art_extensions.scenarios.mcp_rl.training import train

        report = await train(
            place.server(),
            scenarios=None if scenarios is None else read_scenarios_file(scenarios),
            tell=lambda line: console.print(line, markup=False),
            **keywords,
            **asked.keywords(),
        )
        show_report(console, report, json_file)

    return run_resumable(work, console)


def read_scenarios_file(path: Path) -> Any:
    """A file of `art mcp generate`, or a list of scenarios. Raises ConfigurationError for another one."""
    from art_extensions.scenarios.mcp.types import as_planned, scenario_list
    from art_extensions.scenarios.mcp_rl.checked_scenarios import ScenarioSet

    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--scenarios {str(path)!r} cannot be read as JSON: {error}") from error
    if isinstance(data, dict) and {"train", "test"} <= data.keys():
        return ScenarioSet.from_dict(data)
    return [as_planned(item) for item in scenario_list(data)]
