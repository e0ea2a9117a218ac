"""The `art` command and its verbs, with every option; the work is done in the modules beside this one.

A verb's module is imported when the verb is used, so that `art --help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from art.cli.config_file import ConfigFile
from art.cli.model_verbs import readable_errors
from art.cli.older_spellings import spelled_today
from art.cli.run_options import settings_verb
from art.cli.server_groups import keys
from art.cli.training_verbs import train
from art.errors import ConfigurationError, require_extra
from art.extensions import COMMAND, extension_points, load_extension

VERB_ORDER = (
    "quickstart",
    "init",
    "train",
    "policies",
    "dpo",
    "kto",
    "environments",
    "harbor",
    "mcp",
    "autorl",
    "serve",
    "tinker",
    "launch",
    "chat",
    "resume",
    "models",
    "show",
    "ui",
    "explain",
    "replay",
    "report",
    "eval",
    "export",
    "import",
    "export-logs",
    "atif",
    "keys",
    "runtime",
    "cluster",
    "doctor",
    "audit-model",
    "algorithms",
    "migrate",
    "help",
)


class VerbGroup(TyperGroup):
    """The group of commands, those of extensions too, in the order of `VERB_ORDER`; others follow."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns the command that words name, with the words behind it."""
        return super().resolve_command(ctx, spelled_today(args))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns a command, or None. One of an extension is loaded when it is first needed."""
        if cmd_name not in self.commands and cmd_name in extension_points(COMMAND):
            self.commands[cmd_name] = _loaded_command(cmd_name)
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns the names of the commands."""
        known = list(dict.fromkeys((*super().list_commands(ctx), *extension_points(COMMAND))))
        return [verb for verb in VERB_ORDER if verb in known] + [
            verb for verb in known if verb not in VERB_ORDER
        ]


def _loaded_command(name: str) -> Any:
    """Returns the command of an extension; for one that cannot be loaded, a command that says so."""
    group = typer.Typer(
        name=name, add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False
    )
    context: dict[str, Any] = {}
    try:
        found = load_extension(COMMAND, name)
    except ConfigurationError as error:
        problem = str(error)

        def found() -> None:
            typer.echo(problem, err=True)
            raise typer.Exit(2)

        found.__doc__ = "Not there: its extension cannot be loaded."
        context = {"allow_extra_args": True, "ignore_unknown_options": True}
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    group.command(name, context_settings=context)(found)
    return typer.main.get_command(group)


def help_text(ctx: typer.Context, verb: str | None) -> str:
    """Returns the help text of `art` or of one command. Raises LookupError, which lists the commands."""
    root = ctx.find_root()
    if verb is None:
        return root.get_help()
    group = root.command
    assert isinstance(group, TyperGroup)
    command = group.get_command(root, verb)
    if command is None:
        raise LookupError(f"no verb {verb!r}; verbs: {', '.join(group.list_commands(root))}")
    return command.get_help(type(root)(command, info_name=verb, parent=root))


app = typer.Typer(
    name="art",
    cls=VerbGroup,
    help="Train small language models on multi-step tasks by reinforcement learning from their rollouts.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"art {version('agent-reinforcement-trainer')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Train small language models on multi-step tasks by reinforcement learning from their rollouts."""
    import logging

    from art.tracking.progress import show_log

    show_log(logging.WARNING)  # the commands have progress lines of their own


QuickstartTask = Annotated[
    str | None,
    typer.Argument(
        help="The task: tic-tac-toe, mail or yes-no-maybe. Default: tic-tac-toe for models that ship, "
        "yes-no-maybe for others."
    ),
]
QuickstartModel = Annotated[
    str | None,
    typer.Option(
        help="The model: art/nano-games, art/nano-tools, art/smollm2, a folder, a hub name. "
        "Default: the task's own.",
    ),
]
EvalRollouts = Annotated[
    int | None, typer.Option(min=1, help="Rollouts before and after training. Default: the task's own.")
]


@app.command()
def quickstart(
    task: QuickstartTask = None,
    config: ConfigFile = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the scenarios and of the adapter's initial weights.")
    ] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps. Default: the task's own.")] = None,
    groups_per_step: Annotated[
        int | None, typer.Option(min=1, help="Scenarios per step. Default: the task's own.")
    ] = None,
    group_size: Annotated[
        int | None, typer.Option(min=2, help="Rollouts per scenario. Default: the task's own.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="The learning rate. Default: the task's own.")
    ] = None,
    base_model: QuickstartModel = None,
    eval_rollouts: EvalRollouts = None,
    output: Annotated[
        Path | None, typer.Option(help="The run's folder. Default: a new one under ./runs.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option(help="Also write the result to this file.")] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue the run in --output, or the newest unfinished run."),
    ] = False,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic",
            help="Use a seed per request and one request at a time, so that a run is exactly repeatable.",
        ),
    ] = False,
) -> None:
    """Train a small language model on a task on this machine.

    Starts the server, plays the evaluation games, trains, plays them again, and shows the difference.
    """
    with readable_errors():
        require_extra("local", "art quickstart")
    from art.cli.quickstart import quickstart_command
    from art.environments.tasks import task_of
    from art.runs.quickstart import QuickstartChoices

    choices = QuickstartChoices(
        task=task or task_of(base_model),
        seed=seed,
        steps=steps,
        groups=groups_per_step,
        group_size=group_size,
        learning_rate=learning_rate,
        base_model=base_model,
        evaluation_games=eval_rollouts,
        deterministic=deterministic,
    )
    raise typer.Exit(quickstart_command(choices, output=output, json_file=json_file, resume=resume))


Host = Annotated[
    str, typer.Option(help="The address to listen on. Other addresses than loopback need ART_API_KEY.")
]
DataDir = Annotated[Path, typer.Option(help="The folder of ledger, jobs, checkpoints and logs.")]
BaseModels = Annotated[
    list[str] | None,
    typer.Option(help="Serve this base model under its own name at once. May be repeated."),
]
TrainerRanks = Annotated[
    int, typer.Option(min=1, help="The number of processes that train together, a GPU each.")
]
TrainerNodes = Annotated[
    int, typer.Option(min=1, help="The number of machines for them. More than one needs a cluster.")
]
TrainerSharding = Annotated[
    str, typer.Option(help="fsdp: each rank keeps a part of the base model. none: all of it.")
]
KeepSamplesSteps = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Remove the samples of a model's older steps from the ledger, except for those that a kept "
        "checkpoint's step or an unfinished job names. Not given: keep all samples.",
    ),
]
EngineOptions = Annotated[
    list[str] | None,
    typer.Option(help="An option of the engine, NAME=VALUE, with VALUE as JSON or text. May be repeated."),
]
KeepReplay = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        help="Keep the whole requests of the newest N steps of each model, for `art replay`. 0: of a request "
        "of more than 1 MiB only the settings are kept.",
    ),
]
ResumeJobs = Annotated[
    bool,
    typer.Option(
        "--resume-jobs",
        help="Go on at once with training jobs that an earlier server left unfinished. Not given: each waits "
        "for its program.",
    ),
]
TrainedModels = Annotated[
    list[str] | None,
    typer.Option(help="Serve this trained model, PROJECT/NAME, instead of all in DATA_DIR. May be repeated."),
]


EngineName = Annotated[
    str, typer.Option(help="The engine: builtin or vllm (run `art runtime install` first).")
]
Replicas = Annotated[
    int, typer.Option(min=1, help="The number of engine processes per base model, behind one address.")
]
ClusterAddress = Annotated[
    str | None,
    typer.Option(
        help="Run the workers on the nodes of a Ray cluster: auto, on one of its nodes, or HOST:6379."
    ),
]
ClusterOptions = Annotated[
    list[str] | None,
    typer.Option(help='A setting of the cluster, NAME=VALUE, such as engine={"gpus": 2}. May be repeated.'),
]
TrustNetwork = Annotated[
    bool, typer.Option(help="Use a Ray cluster that asks for no token. Only on a network that is closed.")
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        help="The Postgres that keeps samples and jobs: postgresql://USER@HOST/NAME, without a password."
    ),
]
ServerRole = Annotated[
    Literal["all", "gateway"],
    typer.Option(
        help="all: models, jobs, completions. gateway: completions, by the engines of another server."
    ),
]


Origins = Annotated[
    list[str] | None,
    typer.Option(
        help="The origin of a web page that may send requests (https://example.org). May be repeated."
    ),
]


@app.command()
def serve(
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port. 0: a free port.")] = 8000,
    data_dir: DataDir = Path(".art"),
    engine: EngineName = "builtin",
    engine_option: EngineOptions = None,
    replicas: Replicas = 1,
    trainer_ranks: TrainerRanks = 1,
    trainer_nodes: TrainerNodes = 1,
    trainer_sharding: TrainerSharding = "none",
    base_model: BaseModels = None,
    model: TrainedModels = None,
    new_ledger: Annotated[
        bool, typer.Option(help="Start with a new ledger if the folder's is lost. Its samples are lost too.")
    ] = False,
    keep_samples_steps: KeepSamplesSteps = None,
    keep_replay: KeepReplay = 0,
    resume_jobs: ResumeJobs = False,
    allow_origin: Origins = None,
    cluster: ClusterAddress = None,
    cluster_option: ClusterOptions = None,
    trust_network: TrustNetwork = False,
    database: DatabaseUrl = None,
    role: ServerRole = "all",
) -> None:
    """Start the server by hand: an OpenAI-compatible endpoint and a trainer behind one address.

    All models of DATA_DIR are served, or those that --model names. The key is read from the environment
    variable ART_API_KEY. Without it the server generates one in DATA_DIR/server/key.

    With --database, or its URL in ART_DATABASE_URL, a second server over the same DATA_DIR and database
    waits and takes over when the first one ends. Its password is read from ART_DATABASE_URL or PGPASSWORD.
    """
    with readable_errors():
        require_extra("local", "art serve")
    from art.cli.serve import cluster_settings, serve_forever

    raise typer.Exit(
        serve_forever(
            host=host,
            port=port,
            data_dir=data_dir,
            engine=engine,
            engine_options=engine_option or [],
            replicas=replicas,
            trainer={"ranks": trainer_ranks, "nodes": trainer_nodes, "sharding": trainer_sharding},
            new_ledger=new_ledger,
            keep_samples_steps=keep_samples_steps,
            replay_steps=keep_replay,
            resume_jobs=resume_jobs,
            allow_origins=allow_origin or [],
            base_models=base_model or [],
            models=model or [],
            cluster=cluster_settings(cluster, cluster_option or [], trust_network=trust_network),
            database=database,
            role=role,
        )
    )


@app.command(hidden=True)
def run(
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port. 0: a free port.")] = 7999,
    data_dir: DataDir = Path(".art"),
) -> None:
    """Start the server on port 7999. This is the older name of `art serve`."""
    with readable_errors():
        require_extra("local", "art run")
    from art.cli.serve import serve_forever

    typer.echo("art run is art serve under its older name, by default on port 7999.", err=True)
    raise typer.Exit(serve_forever(host=host, port=port, data_dir=data_dir))


settings_verb(
    app,
    "art.runs.environment_run:EnvironmentSettings",
    unset=("learning_rate",),
)(train)
app.add_typer(keys)


@app.command()
def algorithms(
    name: Annotated[str | None, typer.Argument(help="The algorithm to show with all its parts.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the named algorithms of `train(algorithm=...)`, or show one with all its parts."""
    from art.cli.algorithms import show_algorithms

    with readable_errors():
        show_algorithms(name, as_json=json)


@app.command("help")
def show_help(
    ctx: typer.Context, verb: Annotated[str | None, typer.Argument(help="The command to describe.")] = None
) -> None:
    """Show the commands of `art`, or the help of one command."""
    try:
        typer.echo(help_text(ctx, verb))
    except LookupError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
