"""`art doctor`: look at the installation, then do one complete miniature step through the real server."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

import art
from art.cli.findings import Finding, look
from art.errors import ARTError

MARKS = {"good": "[green]good[/green]", "note": "[yellow]note[/yellow]", "bad": "[red]bad [/red]"}
ATTEMPTS = 4
STEP_DEADLINE = 600.0
"""Seconds for the whole miniature step, on a machine that does other work as well."""


def examine(base_model: str) -> int:
    """Print every finding with its remedy. Returns 0 when the installation can train, else 1."""
    console = Console()
    findings = []
    for finding in look(Path.cwd()):
        findings.append(finding)
        show(console, finding)
    if any(finding.level == "bad" for finding in findings):
        console.print("The miniature step was not tried: mend the above first.")
        return 1
    healthy = asyncio.run(try_step(console, base_model))
    console.print(
        "[bold green]Ready to train.[/bold green]" if healthy else "[bold red]Not ready.[/bold red]"
    )
    return 0 if healthy else 1


def show(console: Console, finding: Finding) -> None:
    remedy = f"\n       -> {finding.remedy}" if finding.remedy else ""
    told = escape(f"{finding.subject:<14} {finding.what}{remedy}")  # `[local]` is no style
    console.print(f"{MARKS[finding.level]}  {told}", highlight=False)


async def try_step(console: Console, base_model: str) -> bool:
    """The miniature step, each of its stations a finding; the first that fails ends it."""
    with tempfile.TemporaryDirectory(prefix="art-doctor-") as folder:
        begin = time.perf_counter()
        try:
            async with asyncio.timeout(STEP_DEADLINE):
                async for subject, what in miniature_step(base_model, Path(folder)):
                    seconds = time.perf_counter() - begin
                    show(console, Finding(level="good", subject=subject, what=f"{what} ({seconds:.1f} s)"))
        except TimeoutError:
            what, remedy = (
                f"took more than {STEP_DEADLINE:g} s",
                "is the machine busy? try again, then report it",
            )
        except ARTError as error:
            what, remedy = (
                f"{type(error).__name__}: {error}",
                "the message says where; `art serve` shows the server's log",
            )
        else:
            return True
        show(console, Finding(level="bad", subject="step", what=what, remedy=remedy))
        return False


async def miniature_step(base_model: str, folder: Path) -> AsyncIterator[tuple[str, str]]:
    """Generate, train, publish, generate again. Yields (station, what was seen)."""
    model = art.TrainableModel(name="doctor", project="doctor", base_model=base_model)
    async with art.LocalBackend(path=str(folder)) as backend:
        await model.register(backend)
        yield "server", f"serves {base_model} as {model.get_inference_name()}"
        attempts = [await one_reply(model) for _ in range(ATTEMPTS)]
        yield "generate", f"{len(attempts)} replies from step {step_of(attempts[0])}"
        for number, attempt in enumerate(attempts):
            attempt.reward = float(number)  # any difference will do: the step must move the weights
        result = await model.train(
            [art.TrajectoryGroup(attempts)], config=art.TrainConfig(learning_rate=1e-3)
        )
        yield "train", f"step {result.step}, loss {result.metrics['loss/train']:+.3f}"
        reply = await one_reply(model)
        if step_of(reply) != result.step:
            raise art.errors.TrainingError(
                f"step {result.step} was trained, but step {step_of(reply)} answers"
            )
        yield "generate again", f"a reply from step {step_of(reply)}"


async def one_reply(model: art.TrainableModel) -> art.Trajectory:
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "yes, no or maybe?"}], reward=0.0
    )
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=8
    )
    trajectory.messages_and_choices.append(completion.choices[0])
    return trajectory


def step_of(trajectory: art.Trajectory) -> int:
    choice: Any = trajectory.messages_and_choices[-1]
    return int(choice.model_extra["step"])
