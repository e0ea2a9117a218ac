"""The memory plan against the measured peak: one training step of four sizes, a row of 8,192 tokens each.

Twice planned: by the trainer before the step, from what its own forward pass keeps, and by `art doctor
--plan`, from the configuration alone, whose figures are those of docs/guides/hardware.md.
"""

from __future__ import annotations

import sys
from multiprocessing import get_context

import torch

from art.errors import TrainingError
from art.training.memory_plan import TWICE
from art.training.trainer import Trainer
from art.wire.training import LoraSpec
from art_extensions.doctor.hardware import plan_hardware
from bench.gpu.results import Session
from bench.gpu.shapes import find_shape, make_policy, start_peak
from bench.gpu.trainer import dense_row, step_request

SIZES = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b")
CONTEXT = 8192


def measure_size(session: Session, name: str) -> None:
    """One step of a fresh LoRA; records plan and peak."""
    shape = find_shape(name, dry=session.dry)
    context = shape.row if session.dry else CONTEXT
    title = f"{shape.name}: a step of one row of {context:,}, layers computed twice"
    start_peak(session.device)
    try:
        trainer = Trainer(
            make_policy(shape, session.device, twice=True), token_budget=context, checkpointing="on"
        )
        trainer.open("bench", LoraSpec(), seed=0)
        batch = dense_row(shape, context)
        metrics = trainer.train(batch.tree, batch.entries, step_request(batch))
    except (torch.OutOfMemoryError, TrainingError) as error:
        session.record(title, None, "GiB", note=str(error).partition("; ")[0])
        return
    note = ""
    if not session.dry:
        plan = plan_hardware(name, context=CONTEXT)
        computed = (plan.weights + 4 * plan.shape.adapter + plan.footprint.bytes(CONTEXT, TWICE)) / 2**30
        note = f"from the configuration alone {computed:.2f} GiB, without the share kept free"
    session.record(
        title,
        metrics["memory/peak_mb"] / 1024,
        "GiB",
        peer=metrics["memory/planned_mb"] / 1024,
        peer_name="planned",
        note=note,
    )


def main(arguments: list[str]) -> None:
    session, _ = Session.open("memory", arguments)
    for name in SIZES:
        # Each in a process of its own: what one leaves in the GPU's memory would count as the next one's.
        fork = get_context("fork").Process(target=measure_size, args=(session, name))
        fork.start()
        fork.join()
        if fork.exitcode:
            raise SystemExit(f"{name} ended with exit code {fork.exitcode}")


if __name__ == "__main__":
    main(sys.argv[1:])
