"""`art init`: writes a project of one of the templates into a folder, file by file, over nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

from art.client.options.learning_rates import LORA_RATE, spelled_rate, starting_rate
from art.errors import ConfigurationError, MissingExtraError, did_you_mean, install_command, require_extra


@dataclass(frozen=True, kw_only=True)
class Template:
    """A project: its files (name in the package -> name in the project) and what its README says of it."""

    about: str
    files: Mapping[str, str]
    lines: tuple[str, ...]
    """Lines of the README's list: what each file is."""
    base_model: str
    own_rate: float | None = None
    """The learning rate for `base_model`, where it is not that of its rollouts."""
    extras: tuple[str, ...] = ("local",)
    words: Mapping[str, str] = field(default_factory=dict)
    """Further words of the files -> what stands in their place."""
    each: tuple[str, ...] = ()
    """A file whose name has {} is written once for each of these, which stands there and for __EACH__."""

    def targets(self) -> list[tuple[str, str, str]]:
        """Returns each file: its name in the package, that in the project, and what __EACH__ is there."""
        found = {**_COMMON, **self.files}.items()
        return [
            (source, target.format(one), one)
            for source, target in found
            for one in (self.each if "{}" in target else ("",))
        ]


_TRAIN = "- `train.py`: the agent, its reward and the training loop. Put your own agent here."
_INBOX = "- `inbox.py`: the system that the agent works with, and the scenarios. Put your own system here."
_LOOP = (
    "- `train.py`: the training loop. This command trains on the same, and evaluates before and after:",
    "  `art train --environment __ENVIRONMENT__ --base-model __BASE_MODEL__`",
)
_OPTIONS = "OPTIONS: dict = {}"
_FORM = r"""OPTIONS: dict = {
    "max_turns": 1,
    "system_prompt": "",
    # The form that a reply has to have. Leave both out for a model that writes commands by itself.
    "request": {"extra_body": {"guided_regex": r"```bash\necho (yes|no|maybe) > answer\.txt\n```"}},
}"""
TEMPLATES: Mapping[str, Template] = MappingProxyType(
    {
        "agent": Template(
            about="An agent of your own that learns from a reward: it answers with yes, no or maybe.",
            files={f"agent/{name}": name for name in ("scenarios.py", "rollout.py", "train.py")},
            lines=(
                "- `scenarios.py`: what the agent is asked to do; training and test scenarios.",
                "- `rollout.py`: one rollout and its reward. Put your own agent here.",
                "- `train.py`: the training loop.",
            ),
            base_model="art/nano-games",
        ),
        "tools": Template(
            about="An agent that calls tools: it searches an inbox, reads a mail and answers a question.",
            files={"tools/train.py": "train.py", "inbox.py": "inbox.py"},
            lines=(_TRAIN, _INBOX),
            base_model="art/nano-tools",
        ),
        "langgraph": Template(
            about="A LangGraph agent with tools: it searches an inbox, reads a mail and answers a question.",
            files={"langgraph/train.py": "train.py", "inbox.py": "inbox.py"},
            lines=(_TRAIN, _INBOX),
            base_model="art/nano-tools",
            extras=("local", "langgraph"),
        ),
        "mcp": Template(
            about="An agent that uses the tools of an MCP server: it answers questions about the weather.",
            files={"mcp/train.py": "train.py"},
            lines=("- `train.py`: the server, the tasks, the reward and the training loop.",),
            base_model="art/nano-mcp",
            extras=("local", "mcp"),
        ),
        "sft": Template(
            about="Supervised fine-tuning: a model learns the answers of given conversations.",
            files={"sft/train.py": "train.py", "sft/data.jsonl": "data.jsonl"},
            lines=(
                "- `data.jsonl`: the examples, one per line. Put your own data here: rows with `prompt` and",
                "  `completion`, with `messages`, or with ShareGPT's `conversations`.",
                "- `train.py`: the training, and a measurement before and after.",
            ),
            base_model="art/nano-games",
            own_rate=3e-3,
        ),
        "environment": Template(
            about="An environment of your own: the model says whether a number is even.",
            files={
                "environment/train.py": "train.py",
                "environment/parity.py": "parity.py",
                "environment/test_environment.py": "test_environment.py",
            },
            lines=(
                "- `parity.py`: the environment: its scenarios, a rollout, the reward. Put your own here.",
                "- `test_environment.py`: its test, which needs no model: `python -m pytest`.",
                *_LOOP,
            ),
            base_model="art/nano-games",
            words={"__ENVIRONMENT__": "python:parity:EvenNumbers"},
        ),
        "verifiers": Template(
            about="A taskset of verifiers with a harness: the model says the word that it is asked for.",
            files={
                "environment/train.py": "train.py",
                "verifiers/say_words.py": "say_words.py",
                "verifiers/test_taskset.py": "test_taskset.py",
            },
            lines=(
                "- `say_words.py`: the taskset: its tasks and their rewards. Put your own here.",
                "- `test_taskset.py`: its test, which needs no model: `python -m pytest`.",
                *_LOOP,
                "  with `--harness null`. `null` asks once; others are agents: `bash`, `mini_swe_agent`, ...",
            ),
            base_model="art/nano-games",
            extras=("local", "verifiers-tasksets"),
            words={
                "__ENVIRONMENT__": "verifiers:say_words",
                _OPTIONS: 'OPTIONS: dict = {"harness": "null"}',
                "k=8": "k=4",
            },
        ),
        "harbor": Template(
            about="Task folders of Harbor: the model writes a command, and the task's tests give the reward.",
            files={
                "environment/train.py": "train.py",
                "harbor/test_tasks.py": "test_tasks.py",
                **{
                    f"harbor/{source}": f"tasks/{{}}/{target}"
                    for source, target in {
                        "task.toml": "task.toml",
                        "instruction.md": "instruction.md",
                        "Dockerfile": "environment/Dockerfile",
                        "test.sh": "tests/test.sh",
                        "solve.sh": "solution/solve.sh",
                    }.items()
                },
            },
            each=("yes", "no", "maybe"),
            lines=(
                "- `tasks/`: the tasks, a folder each: an instruction, an environment, tests and a solution.",
                "- `test_tasks.py`: their test, which needs no model: `python -m pytest`.",
                *_LOOP,
                "  There the model has to write commands by itself; `train.py` gives its replies their form.",
            ),
            base_model="art/nano-games",
            words={
                "__ENVIRONMENT__": "harbor:tasks",
                _OPTIONS: _FORM,
                "k=8": "k=2",
                "default=4)": "default=32)",
            },
        ),
    }
)
_COMMON = {"README.md": "README.md", "gitignore": ".gitignore"}


def find_template(name: str) -> Template:
    """Returns a template. Raises ConfigurationError, which lists them."""
    if name not in TEMPLATES:
        hint = did_you_mean(name, TEMPLATES)
        raise ConfigurationError(
            f"--template {name}: no such template{hint and f', {hint}'}; known: {', '.join(TEMPLATES)}"
        )
    return TEMPLATES[name]


def create_project(
    folder: Path, *, template: str = "agent", base_model: str | None = None, project: str | None = None
) -> list[Path]:
    """Writes the files of a template and returns their paths.

    Raises ConfigurationError when one of them is there already (nothing is written), when the folder's name
    cannot be a project's, or for an unknown template.
    """
    chosen = find_template(template)
    name = project or folder.resolve().name
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ConfigurationError(
            f"{name!r} cannot be a project's name (letters, digits, '.', '_' and '-'): "
            "give one with --project"
        )
    targets = chosen.targets()
    if there := [str(folder / target) for _, target, _ in targets if (folder / target).exists()]:
        raise ConfigurationError(f"{', '.join(there)}: there already; nothing was written")
    base = base_model or chosen.base_model
    rate = chosen.own_rate if base == chosen.base_model else None
    words = {
        "__FILES__": "\n".join(chosen.lines),
        **chosen.words,
        "__PROJECT__": name,
        "__BASE_MODEL__": base,
        "__LEARNING_RATE__": spelled_rate(rate or starting_rate(base)),
        "__LORA_RATE__": spelled_rate(LORA_RATE),
        "__WORDS_RATE__": spelled_rate(starting_rate("art/nano-words")),
        "__ABOUT__": chosen.about,
        "__INSTALL__": _install(chosen),
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for source, target, each in targets:
        text = (files("art_extensions.init") / "skeleton" / source).read_text(encoding="utf-8")
        for word, value in {**words, "__EACH__": each}.items():
            text = text.replace(word, value)
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        (folder / target).write_text(text, encoding="utf-8")
        written.append(folder / target)
    return written


def _install(template: Template) -> str:
    return install_command(",".join(template.extras))


def init(
    path: Annotated[
        Path, typer.Argument(help="The project's folder. It is created if it does not exist.")
    ] = Path("."),
    template: Annotated[
        str,
        typer.Option(
            help="The kind of project: agent, tools, langgraph, mcp, sft, environment, verifiers or harbor."
        ),
    ] = "agent",
    base_model: Annotated[
        str | None,
        typer.Option(
            help="The model to train: a hub name, a folder, or a built-in one. Default: the template's own."
        ),
    ] = None,
    project: Annotated[str | None, typer.Option(help="The project's name. Default: the folder's.")] = None,
) -> None:
    """Write a project that trains as it is, to put your own task into. Existing files are never overwritten.

    Templates: `agent` (an agent of your own; the default), `tools` (an agent that calls tools), `langgraph`
    (a LangGraph agent), `mcp` (an agent that uses an MCP server), `sft` (supervised fine-tuning),
    `environment` (an environment of your own), `verifiers` (a taskset of verifiers), `harbor` (task folders
    of Harbor).
    """
    try:
        written = create_project(path, template=template, base_model=base_model, project=project)
    except ConfigurationError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    for file in written:
        typer.echo(f"wrote {file}")
    chosen = find_template(template)
    steps = [f"cd {path}", "python train.py"]
    try:
        for extra in chosen.extras:
            require_extra(extra, template)
    except MissingExtraError:
        steps.insert(0, _install(chosen))
    typer.echo("\nNext:\n" + "\n".join(f"  {step}" for step in steps))
