"""Recipes of tinker-cookbook, as their package has them, in an environment of their own."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tinker_service import ROOT, Service, serving

from art.engine import nano_models
from art.tracking.step_record import read_rollouts, recorded_steps
from waiting import eventually

PYTHON = ROOT / ".venv-cookbook" / "bin" / "python"
MISSING = not PYTHON.exists()
MODEL = nano_models.resolve("art/nano-words")
WAIT_S = 400
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3 * WAIT_S),
    pytest.mark.skipif(MISSING, reason="by hand: `make .venv-cookbook/.installed` (1.5 GB)"),
]


class Recipe:
    """A recipe that runs, and what it wrote down."""

    def __init__(self, service: Service, module: str, folder: Path, **options: Any) -> None:
        self.folder, self.log = folder, folder.with_suffix(".log")
        words = {"model_name": MODEL, "renderer_name": "qwen3_instruct", "log_path": folder, **options}
        command = [str(PYTHON), "-m", f"tinker_cookbook.recipes.{module}"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *(f"{name}={value}" for name, value in words.items())],
                env={**service.variables, "HF_HUB_OFFLINE": "1"},
                cwd=folder.parent,
                stdout=log,
                stderr=log,
            )

    def steps(self) -> list[dict[str, Any]]:
        """The metrics of the steps that are made."""
        file = self.folder / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [one for one in map(json.loads, lines) if "unclipped_grad_l2:mean" in one]

    def end(self) -> list[dict[str, Any]]:
        try:
            code = self.process.wait(WAIT_S)
        finally:
            self.process.kill()
        assert code == 0, self.log.read_text(errors="replace")[-3000:]
        return self.steps()


def test_supervised_on_a_file_it_learns(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "I am small."}]
    (tmp_path / "chats.jsonl").write_text(f"{json.dumps({'messages': asked})}\n" * 40)
    with serving(tmp_path / "data") as service:
        recipe = Recipe(
            service,
            "prompt_distillation.train",
            tmp_path / "run",
            file_path="chats.jsonl",
            batch_size=4,
            num_epochs=1,
            learning_rate=3e-3,
            max_length=128,
            eval_every=0,
        )
        losses = [one["train_mean_nll"] for one in recipe.end()]
    assert len(losses) == 10
    assert losses[-1] < 0.5 * losses[0]


def test_reinforced_it_goes_on_after_the_service_was_killed(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as service:
        recipe = Recipe(
            service,
            "math_rl.train",
            tmp_path / "run",
            env="arithmetic",
            groups_per_batch=4,
            group_size=4,
            max_steps=6,
            learning_rate=1e-3,
            loss_fn="importance_sampling",
            save_every=2,
        )
        eventually(lambda: len(recipe.steps()) >= 2 or recipe.process.poll() is not None, timeout=WAIT_S)
        service.kill("service")
        made = recipe.end()
        (folder,) = [one for one in service.data.glob("tinker/models/*") if recorded_steps(one)]
    assert recorded_steps(folder)[-1] == 6
    for step in recorded_steps(folder)[2:]:
        groups = Counter(one.group for one in read_rollouts(folder, step))
        assert [*groups.values()] == [4] * 4, "not the groups of the recipe"
    assert [one["step"] for one in made] == [0, 1, 2, 3, 4, 5]
    assert {one["learning_rate:mean"] for one in made} == {1e-3}
    assert max(one["optim/kl_sample_train_v2"] for one in made) < 1e-6
