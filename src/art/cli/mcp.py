"""`art mcp`: train a model on the tools of an MCP server. All options; the work is in `mcp_work.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from art.cli.run_options import (
    DATA_DIR,
    BaseModel,
    BudgetCalls,
    BudgetTokens,
    BudgetUsd,
    DataDir,
    GeneratorUrl,
    JsonFile,
    JudgeUrl,
    Name,
    Project,
    Referee,
    settings_verb,
)
from art.runs.generator import GENERATOR
from art.runs.judges import JUDGE

mcp = typer.Typer(
    name="mcp",
    help="Teach a model to use the tools of an MCP server: inspect it, generate scenarios, train.",
    no_args_is_help=True,
)
SETTINGS = "art.mcp.settings:TrainSettings"
OWN_WORDS = {"allow_interspersed_args": False}
"""What follows the server's command is the server's, dashes included."""

Server = Annotated[
    list[str], typer.Argument(help="After --: the command that starts the server, or its http(s) address.")
]
ReadOnly = Annotated[
    list[str] | None,
    typer.Option(
        help="A tool that only reads, though the server does not say so; '*': all. May be repeated."
    ),
]
AllowWrite = Annotated[
    list[str] | None,
    typer.Option(help="A tool that may be called though it may write; '*': all. May be repeated."),
]
Env = Annotated[
    list[str] | None,
    typer.Option(help="NAME of an environment variable to pass on to the server. May be repeated."),
]
Header = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=VARIABLE: a header for an http server, its value from a variable. May be repeated."
    ),
]
Bearer = Annotated[
    str | None,
    typer.Option(
        metavar="VARIABLE",
        help="The environment variable with an http server's token, sent as 'Authorization: Bearer ...'.",
    ),
]
Generator = Annotated[str, typer.Option(help="Writes the scenarios: provider/model.")]
Judge = Annotated[
    str, typer.Option(help="Compares the attempts (RULER): provider/model; base: the base model itself.")
]
Scenarios = Annotated[Path | None, typer.Option(help="A file of scenarios instead of generated ones.")]
CheckJudge = Annotated[
    bool,
    typer.Option("--check-judge", help="Check it while it trains: a tenth of the groups are judged twice."),
]


@mcp.command(context_settings=OWN_WORDS)
def inspect(
    server: Server,
    read_only: ReadOnly = None,
    env: Env = None,
    header: Header = None,
    bearer: Bearer = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the tools, documents and prompts of a server, and which tools a rollout may call."""
    from art.cli.long_run import reported
    from art.cli.mcp_work import Place, inspect_server

    place = Place(words=server, read_only=read_only or [], env=env or [], headers=header or [], bearer=bearer)
    raise typer.Exit(reported(lambda: inspect_server(place, as_json=json)))


@settings_verb(
    mcp,
    SETTINGS,
    only=("num_train", "num_test", "instructions", "similarity", "call_timeout", "seed"),
    context_settings=OWN_WORDS,
)
def generate(
    server: Server,
    output: Annotated[Path, typer.Option(help="The file to write.")] = Path("scenarios.json"),
    generator: Generator = GENERATOR,
    generator_base_url: GeneratorUrl = None,
    allow_write: AllowWrite = None,
    read_only: ReadOnly = None,
    env: Env = None,
    header: Header = None,
    bearer: Bearer = None,
    budget_calls: BudgetCalls = None,
    budget_tokens: BudgetTokens = None,
    budget_usd: BudgetUsd = None,
    data_dir: DataDir = DATA_DIR,
    **settings: Any,
) -> None:
    """Have scenarios written for a server's tools, check them on the server, and keep them in a file.

    `art mcp train --scenarios FILE` takes the file; edit it as you like before.
    """
    from art.cli.mcp_work import Place, generate_file, generator_params, writes_of

    place = Place(words=server, read_only=read_only or [], env=env or [], headers=header or [], bearer=bearer)
    keywords = {
        **settings,
        "allow_writes": writes_of(allow_write),
        "generator": generator,
        "generator_params": generator_params(generator_base_url),
        "path": data_dir,
    }
    limits = {"calls": budget_calls, "tokens": budget_tokens, "usd": budget_usd}
    raise typer.Exit(generate_file(place, keywords, limits, output))


@settings_verb(
    mcp, SETTINGS, leave_out=("allow_writes",), unset=("learning_rate",), context_settings=OWN_WORDS
)
def train(
    server: Server,
    base_model: BaseModel,
    name: Name = "mcp-agent",
    project: Project = "mcp",
    judge: Judge = JUDGE,
    judge_base_url: JudgeUrl = None,
    check_judge: CheckJudge = False,
    referee: Referee = None,
    generator: Generator = GENERATOR,
    generator_base_url: GeneratorUrl = None,
    scenarios: Scenarios = None,
    allow_write: AllowWrite = None,
    read_only: ReadOnly = None,
    env: Env = None,
    header: Header = None,
    bearer: Bearer = None,
    budget_calls: BudgetCalls = None,
    budget_tokens: BudgetTokens = None,
    budget_usd: BudgetUsd = None,
    data_dir: DataDir = DATA_DIR,
    json: JsonFile = None,
    **settings: Any,
) -> None:
    """Train a model to use a server's tools, without labels, and compare it before and after.

    Stopped or killed, the same command goes on where it was, and pays for no answer twice.
    """
    from art.cli.mcp_work import Place, generator_params, judge_checks, judge_params, train_run, writes_of

    place = Place(words=server, read_only=read_only or [], env=env or [], headers=header or [], bearer=bearer)
    keywords = {
        **settings,
        **{"base_model": base_model, "name": name, "project": project, "path": data_dir},
        **{"judge": judge, "judge_params": judge_params(judge_base_url), "referee": referee},
        **{"generator": generator, "generator_params": generator_params(generator_base_url)},
        "allow_writes": writes_of(allow_write),
        "checks": judge_checks(data_dir / project / "mcp" / name) if check_judge else None,
    }
    limits = {"calls": budget_calls, "tokens": budget_tokens, "usd": budget_usd}
    raise typer.Exit(train_run(place, keywords, limits, scenarios, json))
