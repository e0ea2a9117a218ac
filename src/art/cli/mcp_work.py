"""What the verbs of `art mcp` do, and how it is told."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from art import environment
from art.cli.long_run import (
    budget_of,
    complain,
    params_of,
    plain_console,
    reported,
    resumable,
    show_report,
    write_json,
)
from art.errors import ConfigurationError

if TYPE_CHECKING:
    from art.mcp import Server
    from art.rewards.checks import JudgeChecks

EVERYTHING = "*"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the server is, as the command line says it."""

    words: list[str]
    read_only: list[str]
    env: list[str]
    headers: list[str]
    bearer: str | None = None
    """The variable with the token of an http server."""

    def server(self) -> Server:
        """Raises ConfigurationError for a variable that is not set, or does not fit the kind of server."""
        from art.mcp import HttpServer, StdioServer, parse_server

        server = parse_server(self.words)
        more: dict[str, Any] = {"read_only": tuple(self.read_only)}
        if isinstance(server, StdioServer):
            if self.headers or self.bearer:
                raise ConfigurationError(
                    f"{'--header' if self.headers else '--bearer'} is for an http server; a command takes "
                    "variables with --env"
                )
            more["env"] = {name: value_of(name, "--env") for name in self.env}
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


def header(text: str) -> tuple[str, str]:
    name, equals, variable = text.partition("=")
    if not (name and equals and variable):
        raise ConfigurationError(f"--header {text!r}: write NAME=VARIABLE, such as Authorization=MY_TOKEN")
    return name, header_value(variable, "--header")


def value_of(variable: str, option: str) -> str:
    """Of an environment variable. Raises ConfigurationError when it is not set."""
    value = environment.variable(variable)
    if value is None:
        raise ConfigurationError(f"{option} names the environment variable {variable!r}, which is not set")
    return value


def header_value(variable: str, option: str) -> str:
    """`value_of` without white space around it. Raises ConfigurationError where no header can hold it."""
    value = value_of(variable, option).strip()
    if not (value and value.isascii() and value.isprintable()):  # untold: it is a secret
        raise ConfigurationError(
            f"{option} names the environment variable {variable!r}, whose value no HTTP header can hold: "
            "give it one line of printable ASCII"
        )
    return value


async def inspect_server(place: Place, *, as_json: bool) -> None:
    """Print what the server offers."""
    from art.mcp import connect

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

    def say(text: str) -> None:
        console.print(text, markup=False)

    counts = ", ".join(f"{len(found)} {name.replace('_', ' ')}" for name, found in offered.items())
    say(f"{session.label}: {counts}")
    for tool in tools:
        kind = {True: "reads", False: "writes", None: "does not say whether it writes"}[tool.read_only]
        say(f"  {tool.name}({', '.join(tool.parameters.get('properties', {}))})  [{kind}]")
        say(f"    {first_line(tool.description)}")
    for resource in resources:
        say(f"  {resource.uri}  {first_line(resource.description)}")
    for template in templates:
        say(f"  {template.uri_template}  {first_line(template.description)}")
    for prompt in prompts:
        say(f"  prompt {prompt.name}  {first_line(prompt.description)}")
    shut = [tool.name for tool in tools if tool.read_only is not True]
    if shut:
        say(
            f"Rollouts may not call {', '.join(shut)}: name those that only read with --read-only, those "
            "that may be called though they write with --allow-write."
        )


def first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def writes_of(allowed: list[str] | None) -> tuple[str, ...] | Literal[True]:
    """`allow_writes` of `art.mcp.train`."""
    return True if EVERYTHING in (allowed or []) else tuple(allowed or [])


def judge_params(base_url: str | None) -> dict[str, Any]:
    """Options of a judge by name."""
    return params_of(base_url, environment.JUDGE_API_KEY)


def generator_params(base_url: str | None) -> dict[str, Any]:
    """Options of a generator by name."""
    return params_of(base_url, environment.GENERATOR_API_KEY)


def judge_checks(folder: Path) -> JudgeChecks:
    """Of the judge of the run in `folder`, which a resumed run goes on with."""
    from art.rewards.checks import JudgeChecks

    return JudgeChecks(record=folder / "judge-checks.jsonl")


def generate_file(place: Place, keywords: Mapping[str, Any], limits: Mapping[str, Any], output: Path) -> int:
    """Write checked scenarios to a file. limits: of what the generator may cost. Returns the exit code."""

    async def work() -> None:
        from art.mcp.asked import generator_of
        from art.mcp.scenarios.origin import checked_scenarios_of
        from art.mcp.settings import TrainSettings
        from art.runs.serving import cache_in

        chosen = dict(keywords)
        cache, budget = cache_in(chosen.pop("path")), budget_of(**limits)
        channel = generator_of(
            chosen.pop("generator"), chosen.pop("generator_params"), cache=cache, budget=budget
        )
        made = await checked_scenarios_of(place.server(), channel, TrainSettings.of(chosen))
        write_json(output, made.to_dict())
        told = ", ".join(f"{name} {count}" for name, count in made.rejections.items()) or "none"
        covered = ", ".join(f"{name} {count}" for name, count in made.tools.items())
        sys.stdout.write(
            f"{len(made.train)} scenarios to train on and {len(made.test)} held out are in {output}.\n"
            f"Rejected: {told}. In plans: {covered}.\n"
        )

    if output.exists():
        complain(ConfigurationError(f"{str(output)!r} is there already: give another --output"))
        return 1
    return reported(work)


def train_run(
    place: Place,
    keywords: Mapping[str, Any],
    limits: Mapping[str, Any],
    scenarios: Path | None,
    json_file: Path | None,
) -> int:
    """Train, and show the report. limits: of what generator and judge may cost. Returns the exit code."""
    console = plain_console()

    async def work() -> None:
        from art.mcp.training import train

        report = await train(
            place.server(),
            scenarios=None if scenarios is None else read_scenarios_file(scenarios),
            budget=budget_of(**limits),
            tell=lambda line: console.print(line, markup=False),
            **keywords,
        )
        show_report(console, report, json_file)

    return resumable(work, console)


def read_scenarios_file(path: Path) -> Any:
    """A file of `art mcp generate`, or a list of scenarios. Raises ConfigurationError for another one."""
    from art.mcp import ScenarioSet
    from art.mcp.scenarios.planned import as_planned, scenario_list

    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--scenarios {str(path)!r} cannot be read as JSON: {error}") from error
    if isinstance(data, dict) and {"train", "test"} <= data.keys():
        return ScenarioSet.from_dict(data)
    return [as_planned(item) for item in scenario_list(data)]
