"""`art mcp`: train a model on the tools of an MCP server. All options; the work is in `mcp_work.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
    Seed,
)
from art.runs.generator import GENERATOR
from art.runs.judges import JUDGE

mcp = typer.Typer(
    name="mcp",
    help="Teach a model to use the tools of an MCP server: inspect it, generate scenarios, train.",
    no_args_is_help=True,
)
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
Instructions = Annotated[str | None, typer.Option(help="More for the generator to pay attention to.")]
NumTrain = Annotated[int, typer.Option(min=1, help="Scenarios to train on.")]
NumTest = Annotated[int, typer.Option(min=1, help="Scenarios held out.")]
Similarity = Annotated[float, typer.Option(min=0, max=1, help="From which likeness two tasks are one.")]
CallTimeout = Annotated[float, typer.Option(help="Seconds a tool call may take.")]
Scenarios = Annotated[Path | None, typer.Option(help="A file of scenarios instead of generated ones.")]
Rubric = Annotated[str | None, typer.Option(help="What a good attempt is, for the judge.")]
CheckJudge = Annotated[
    bool,
    typer.Option("--check-judge", help="Check it while it trains: a tenth of the groups are judged twice."),
]
SystemPrompt = Annotated[str | None, typer.Option(help="Of the agent. Default: the rollout's.")]
Steps = Annotated[int | None, typer.Option(min=0, help="Training steps. Default: --epochs of them.")]
Epochs = Annotated[int, typer.Option(min=1, help="Passes over the scenarios.")]
GroupsPerStep = Annotated[int, typer.Option(min=1, help="Scenarios a step.")]
GroupSize = Annotated[int, typer.Option(min=2, help="Attempts at each.")]
LearningRate = Annotated[
    float | None,
    typer.Option(help="Of the adapter, at its height. Default: 1e-5; 3e-3 for the built-in art/nano models."),
]
WarmupSteps = Annotated[int, typer.Option(min=0, help="Steps in which the rate rises.")]
FinalShare = Annotated[float, typer.Option(min=0, max=1, help="Share of the rate that is left at the end.")]
Temperature = Annotated[float, typer.Option(min=0, help="Of the agent's sampling.")]
MaxTurns = Annotated[int, typer.Option(min=1, help="Completions of one attempt.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Of one completion.")]
Deadline = Annotated[float, typer.Option(help="Seconds an attempt may take.")]
ResultLimit = Annotated[int, typer.Option(min=1, help="Characters of a tool's result that it sees.")]
MaxFailed = Annotated[
    float, typer.Option(min=0, max=1, help="Share of a step's attempts that may fail before the run stops.")
]
TestAttempts = Annotated[int, typer.Option(min=1, help="At each held-out scenario, before and after.")]
DifficultyAttempts = Annotated[
    int, typer.Option(min=0, help="Of the base model, to measure difficulty; 0: none.")
]
Concurrency = Annotated[int, typer.Option(min=1, help="Attempts at once, each with its own session.")]


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


@mcp.command(context_settings=OWN_WORDS)
def generate(
    server: Server,
    output: Annotated[Path, typer.Option(help="The file to write.")] = Path("scenarios.json"),
    num_train: NumTrain = 16,
    num_test: NumTest = 8,
    generator: Generator = GENERATOR,
    generator_base_url: GeneratorUrl = None,
    instructions: Instructions = None,
    similarity: Similarity = 0.95,
    call_timeout: CallTimeout = 60.0,
    allow_write: AllowWrite = None,
    read_only: ReadOnly = None,
    env: Env = None,
    header: Header = None,
    bearer: Bearer = None,
    budget_calls: BudgetCalls = None,
    budget_tokens: BudgetTokens = None,
    budget_usd: BudgetUsd = None,
    seed: Seed = 0,
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Have scenarios written for a server's tools, check them on the server, and keep them in a file.

    `art mcp train --scenarios FILE` takes the file; edit it as you like before.
    """
    from art.cli.mcp_work import generate_file, options_of

    raise typer.Exit(generate_file(options_of(locals()), output))


@mcp.command(context_settings=OWN_WORDS)
def train(
    server: Server,
    base_model: BaseModel,
    name: Name = "mcp-agent",
    project: Project = "mcp",
    judge: Judge = JUDGE,
    judge_base_url: JudgeUrl = None,
    referee: Referee = None,
    generator: Generator = GENERATOR,
    generator_base_url: GeneratorUrl = None,
    scenarios: Scenarios = None,
    num_train: NumTrain = 16,
    num_test: NumTest = 8,
    instructions: Instructions = None,
    rubric: Rubric = None,
    check_judge: CheckJudge = False,
    similarity: Similarity = 0.95,
    system_prompt: SystemPrompt = None,
    steps: Steps = None,
    epochs: Epochs = 1,
    groups_per_step: GroupsPerStep = 2,
    group_size: GroupSize = 4,
    learning_rate: LearningRate = None,
    warmup_steps: WarmupSteps = 0,
    final_share: FinalShare = 1.0,
    temperature: Temperature = 1.0,
    max_turns: MaxTurns = 10,
    max_tokens: MaxTokens = None,
    deadline: Deadline = 300.0,
    call_timeout: CallTimeout = 60.0,
    result_limit: ResultLimit = 8000,
    max_failed: MaxFailed = 0.5,
    test_attempts: TestAttempts = 2,
    difficulty_attempts: DifficultyAttempts = 2,
    concurrency: Concurrency = 16,
    allow_write: AllowWrite = None,
    read_only: ReadOnly = None,
    env: Env = None,
    header: Header = None,
    bearer: Bearer = None,
    budget_calls: BudgetCalls = None,
    budget_tokens: BudgetTokens = None,
    budget_usd: BudgetUsd = None,
    seed: Seed = 0,
    data_dir: DataDir = DATA_DIR,
    json: JsonFile = None,
) -> None:
    """Train a model to use a server's tools, without labels, and compare it before and after.

    Stopped or killed, the same command goes on where it was, and pays for no answer twice.
    """
    from art.cli.mcp_work import options_of, train_run

    raise typer.Exit(train_run(options_of(locals()), scenarios, json))
