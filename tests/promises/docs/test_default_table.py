"""docs/guides/migrating.md has every default of training in one table, its third column from the code."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

import art
from art.batch.algorithms import DEFAULT
from art.client.backends.remote_backend import RemoteBackend
from art.client.options.train_options import with_defaults
from art.client.requests.registration import optimizer_spec
from art.client.requests.train_request import UNSAID_ROWS, algorithm_of, compute_of
from art.client.sft.sft_request import sft_optimizer
from art.server.settings import ControlSettings
from art.training.logprobs import CHUNK_ELEMENTS
from art.training.losses.registry import LOSSES
from art.training.optimizer import make_optimizer
from art.training.policy import choose_placement
from art.wire.training import LoraSpec
from art_extensions.pipeline.settings import most_groups, pipeline_settings, queue_size
from art_extensions.pipeline.trainer import PipelineTrainer

PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "migrating.md").read_text()


def defaults(function: Any) -> dict[str, Any]:
    return {name: one.default for name, one in inspect.signature(function).parameters.items()}


def rows() -> dict[str, list[str]]:
    """The cells of each row behind its name."""
    section = PAGE.split("\n## Defaults\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: rest for name, *rest in cells}


def expected() -> dict[str, str]:
    train, pipeline = defaults(RemoteBackend.train), defaults(PipelineTrainer.__init__)
    algorithm, lora = algorithm_of({}), LoraSpec()
    adam, sft = optimizer_spec(train["learning_rate"], None, None), sft_optimizer(None)
    loss = algorithm.loss
    clip, ppo = loss.params, LOSSES["ppo"].params()
    settings = pipeline_settings({})
    most = f"{most_groups(settings) // settings['min_batch_size']} times the least"
    queued = queue_size(settings) // most_groups(settings)
    assert most_groups(settings) == 10 * settings["min_batch_size"] and algorithm.name == DEFAULT
    assert train["learning_rate"] == art.TrainConfig().learning_rate
    return {
        "objective": f"`{algorithm.name}`: {loss.name}, {algorithm.aggregation.kind}",
        "clip, `epsilon` and `epsilon_high`": f"{clip['epsilon']}, {clip['epsilon_high']}",
        'clip of `loss_fn="ppo"`': f"{ppo.epsilon}, {ppo.epsilon_high}",
        "ratio": f"{algorithm.ratio}, to the {algorithm.ratio_to}",
        "advantages": f"{algorithm.advantage.kind}, {algorithm.advantage.std}",
        "gradient's scale": "as they are" if algorithm.advantage.balance == 0 else "balanced",
        "rollouts of equal rewards": algorithm.zero_advantage,
        "`kl_penalty_coef`": repr(train["kl_penalty_coef"] if algorithm.kl is None else algorithm.kl),
        "correction engine against trainer": "none" if not algorithm.mismatch else "some",
        "learning rate of `train` and `TrainConfig`": repr(train["learning_rate"]),
        "learning rate of `PipelineTrainer`": repr(pipeline["learning_rate"]),
        "learning rate of `TrainSFTConfig`": repr(art.TrainSFTConfig().learning_rate),
        "schedule": f"{adam.schedule}, {adam.warmup_steps} warm-up",
        "optimizer": type(make_optimizer([torch.nn.Parameter(torch.zeros(1))], adam)).__name__,
        "betas": f"{adam.betas[0]}, {adam.betas[1]}",
        "`eps`": repr(adam.eps),
        "weight decay": repr(adam.weight_decay),
        "weight decay of SFT": repr(sft.weight_decay),
        "gradient clip": repr(adam.max_grad_norm),
        "gradient clip of SFT": repr(sft.max_grad_norm),
        "optimizer steps of a call": {(1, 1): "one"}[algorithm.updates.minibatches, algorithm.updates.epochs],
        "LoRA rank": repr(lora.r),
        "LoRA alpha": repr(lora.alpha),
        "LoRA dropout": repr(lora.dropout),
        "LoRA targets": str(lora.targets),
        "base weights": f"{choose_placement('cuda', 'auto')[1]} on a GPU, "
        f"{choose_placement('cpu', 'auto')[1]} on a CPU",
        "packing": f"a token tree of at most `{compute_of(with_defaults({}), None).max_length!r}` tokens",
        "rows of logits at once": f"{UNSAID_ROWS}, which is {CHUNK_ELEMENTS * 4 // 2**20} MiB of them",
        "stale rollouts": f"older than {ControlSettings().max_off_policy_steps} steps: left out",
        "`PipelineTrainer`: workers, least and most groups of a step": (
            f"{settings['num_rollout_workers']}, {settings['min_batch_size']}, {_word(most)}"
        ),
        "`PipelineTrainer`: `max_steps_off_policy`, queue": (
            f"{settings['max_steps_off_policy']}, {queued} largest batches"
        ),
        "`PipelineTrainer`: `discard_queue_multiplier`, `eval_every_n_steps`": (
            f"{settings['discard_queue_multiplier']}, {settings['eval_every_n_steps']}"
        ),
        "`PipelineTrainer`: `loss_fn`, `normalize_advantages`": (
            f"{pipeline['loss_fn']}, {pipeline['normalize_advantages']}"
        ),
    }


def _word(text: str) -> str:
    return text.replace("10 times", "ten times")


@pytest.mark.parametrize("name", expected())
def test_our_column_is_what_the_code_has(name: str) -> None:
    assert rows()[name][1] == expected()[name]


def test_the_table_has_each_default_once_and_a_reason_where_they_differ() -> None:
    assert set(rows()) == set(expected())
    for name, (theirs, ours, reason) in rows().items():
        if theirs == ours:
            assert not reason, f"{name}: nothing to explain"
    assert (
        "migrating.md#defaults"
        in (Path(__file__).parents[3] / "docs" / "reference" / "algorithms.md").read_text()
    )
