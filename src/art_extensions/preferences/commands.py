"""`art dpo` and `art kto`, with their options."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from art.cli.run_options import DATA_DIR, BaseModel, DataDir, Project, plain_console, run_reported
from art.errors import require_extra
from art.types import TrainResult

File = Annotated[Path, typer.Argument(metavar="FILE", help="The file of JSON lines.")]
Name = Annotated[str, typer.Option(help="The name of the trained model. Each run makes its next step.")]
Beta = Annotated[float, typer.Option(help="How strongly the reference is held to.")]
Reference = Annotated[
    str,
    typer.Option(help="What the model is compared with: base, a step's number, or a checkpoint's folder."),
]
LearningRate = Annotated[float, typer.Option(help="The learning rate of all batches.")]
BatchSize = Annotated[int, typer.Option(help="The lines of one update.")]
Epochs = Annotated[int, typer.Option(help="How often the file is trained.")]
Seed = Annotated[int, typer.Option(help="The seed of the order of each epoch.")]


def dpo(
    file: File,
    base_model: BaseModel,
    name: Name = "dpo",
    project: Project = "preferences",
    beta: Beta = 0.1,
    loss: Annotated[str, typer.Option(help="sigmoid, or ipo: the squared loss.")] = "sigmoid",
    label_smoothing: Annotated[
        float, typer.Option(help="The share of pairs with a wrong label (cDPO).")
    ] = 0.0,
    length_normalised: Annotated[
        bool, typer.Option("--length-normalised", help="Take means over tokens, not sums.")
    ] = False,
    reference: Reference = "base",
    learning_rate: LearningRate = 5e-5,
    batch_size: BatchSize = 8,
    epochs: Epochs = 1,
    seed: Seed = 0,
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Train a model on pairs of a better and a worse reply (DPO): one step, which can be served at once.

    A line of FILE is {"prompt": ..., "chosen": ..., "rejected": ...}, with texts or lists of messages.

    `art dpo pairs.jsonl --base-model art/nano-games --learning-rate 2e-3` trains a built-in model.
    """
    options: dict[str, Any] = {
        **{"beta": beta, "loss": loss, "label_smoothing": label_smoothing, "reference": _policy(reference)},
        **{"length_normalised": length_normalised, "learning_rate": learning_rate},
        **{"batch_size": batch_size, "epochs": epochs, "seed": seed},
    }

    async def train(model: Any) -> TrainResult:
        from art_extensions.preferences import read_pairs, train_dpo

        return await train_dpo(model, read_pairs(file), verbose=True, **options)

    raise typer.Exit(_run("art dpo", base_model, name, project, data_dir, train))


def kto(
    file: File,
    base_model: BaseModel,
    name: Name = "kto",
    project: Project = "preferences",
    beta: Beta = 0.1,
    desirable_weight: Annotated[float, typer.Option(help="The weight of desirable replies.")] = 1.0,
    undesirable_weight: Annotated[float, typer.Option(help="The weight of undesirable replies.")] = 1.0,
    reference: Reference = "base",
    learning_rate: LearningRate = 5e-5,
    batch_size: BatchSize = 8,
    epochs: Epochs = 1,
    seed: Seed = 0,
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Train a model on replies that are good or bad (KTO): one step, which can be served at once.

    A line of FILE is {"prompt": ..., "completion": ..., "label": true or false}.

    `art kto replies.jsonl --base-model art/nano-games --learning-rate 2e-3` trains a built-in model.
    """
    options: dict[str, Any] = {
        **{"beta": beta, "reference": _policy(reference), "learning_rate": learning_rate},
        **{"desirable_weight": desirable_weight, "undesirable_weight": undesirable_weight},
        **{"batch_size": batch_size, "epochs": epochs, "seed": seed},
    }

    async def train(model: Any) -> TrainResult:
        from art_extensions.preferences import read_labelled, train_kto

        return await train_kto(model, read_labelled(file), verbose=True, **options)

    raise typer.Exit(_run("art kto", base_model, name, project, data_dir, train))


def _policy(reference: str) -> int | str:
    return int(reference) if reference.isascii() and reference.isdigit() else reference


def _run(
    verb: str,
    base_model: str,
    name: str,
    project: str,
    data_dir: Path,
    train: Callable[[Any], Awaitable[TrainResult]],
) -> int:
    """Makes a step on a server of this machine, and prints its metrics. Returns the exit code."""
    console = plain_console()

    async def work() -> None:
        require_extra("local", verb)
        from art.cli.quickstart import check_base_model
        from art.client.backends.local_backend import LocalBackend
        from art.model import TrainableModel

        check_base_model(base_model)
        model: TrainableModel[Any, Any] = TrainableModel(
            name=name, project=project, base_model=base_model, base_path=str(data_dir)
        )
        async with LocalBackend(path=str(data_dir)) as backend:
            await model.register(backend)
            result = await train(model)
        for metric, value in sorted(result.metrics.items()):
            if metric.startswith(("loss/train", "objective/")):
                console.print(f"{metric:28} {value:.4g}", markup=False)
        console.print(f"step {result.step} of {project}/{name}: {result.checkpoint_path}", markup=False)

    return run_reported(work)
