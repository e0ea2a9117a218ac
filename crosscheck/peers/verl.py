"""verl's side: its own `core_algos`, called with the fixtures. Runs in verl's environment.

The module that has `apply_kl_penalty` imports the server of its rollouts, which nothing here uses: it gets an
empty stand-in. The queue between its rollouts and its trainer is a dictionary here.
"""

from __future__ import annotations

import dataclasses
import runpy
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from verl.protocol import DataProto
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.workers.config import ActorConfig
from verl.workers.config.actor import PolicyLossConfig


class Queue(types.ModuleType):
    """The finished groups: of each prompt a tag, and of each of its rollouts a tag and a reward."""

    KVBatchMeta = types.SimpleNamespace

    def __init__(self) -> None:
        super().__init__("transfer_queue")
        self.tags: dict[str, dict[str, Any]] = {}
        self.rewards: dict[str, float] = {}

    def add(self, group: int, rewards: list[float]) -> None:
        self.tags[f"g{group}"] = {"is_prompt": True, "status": "finished", "global_steps": group}
        for number, reward in enumerate(rewards):
            self.tags[f"g{group}_{number}"] = {}
            self.rewards[f"g{group}_{number}"] = reward

    def kv_list(self) -> dict[str, dict[str, dict[str, Any]]]:
        return {"train": dict(self.tags)}

    def kv_batch_get(self, *, keys: list[str], **_: Any) -> dict[str, torch.Tensor]:
        return {"rm_scores": torch.tensor([[self.rewards[key]] for key in keys])}

    def kv_clear(self, *, keys: list[str], **_: Any) -> None:
        for key in keys:
            self.tags.pop(key, None)


QUEUE = Queue()
sys.modules[QUEUE.__name__] = QUEUE
SERVER = types.ModuleType("verl.workers.rollout.llm_server")
SERVER.LLMServerManager = object  # type: ignore[attr-defined]
sys.modules[SERVER.__name__] = SERVER

from verl.trainer.ppo.ray_trainer import apply_kl_penalty  # noqa: E402

BUFFER = Path(core_algos.__file__).parent / "v1" / "replay_buffer.py"
"""By its path: its package imports the server, too."""

Tensors = dict[str, torch.Tensor]
ACTOR = ActorConfig(strategy="fsdp", rollout_n=4, ppo_micro_batch_size_per_gpu=1)
GROUP_SIZE = 4
BAND = {"rollout_rs_threshold": "0.8_1.25"}
NARROW = {"rollout_rs_threshold": "0.95_1.0526315789473684"}
"""verl's bounds are those of the inverse ratio: these two are the same either way round."""
TOKEN = {"rollout_is": "token", "rollout_is_threshold": 1e6}
SEQUENCE = {"rollout_is": "sequence", "rollout_is_threshold": 1e6}


def policy(
    x: Tensors,
    name: str,
    *,
    aggregation: str = "token-mean",
    weights_BL: torch.Tensor | None = None,
    **config: Any,
) -> Tensors:
    """One policy loss of the registry and its gradient."""
    logprobs_BL = x["logprobs_BL"].clone().requires_grad_()
    loss, _ = core_algos.get_policy_loss_fn(name)(
        old_log_prob=x["old_BL"],
        log_prob=logprobs_BL,
        advantages=x["advantages_B"][:, None].expand_as(logprobs_BL).clone(),
        response_mask=x["mask_BL"],
        loss_agg_mode=aggregation,
        config=dataclasses.replace(ACTOR, **config),
        rollout_is_weights=weights_BL,
    )
    return with_gradient(loss, logprobs_BL)


def with_gradient(loss: torch.Tensor, variable: torch.Tensor) -> Tensors:
    (gradient,) = torch.autograd.grad(loss, variable)
    return {"loss": loss.detach().reshape(1), "gradient": gradient}


def mismatch(x: Tensors, **options: Any) -> Tensors:
    """Clipped surrogate under a correction of sampler against trainer: weights and a smaller mask."""
    weights, mask_BL, _ = compute_rollout_correction_and_rejection_mask(
        old_log_prob=x["old_BL"],
        rollout_log_prob=x["sampler_BL"],
        response_mask=x["mask_BL"],
        **options,
    )
    weights_BL = weights.batch["rollout_is_weights"] if weights is not None else None
    # A dropped token keeps its place in the mean.
    kept_BL = mask_BL if weights_BL is None else mask_BL * weights_BL
    return policy(x, "vanilla", weights_BL=kept_BL, clip_ratio_c=1e9)


def importance_sampling(x: Tensors) -> Tensors:
    """The plain policy gradient under token weights that verl computes itself, hardly truncated."""
    correction = RolloutCorrectionConfig(loss_type="reinforce", **TOKEN)
    return policy(x, "bypass_mode", policy_loss=PolicyLossConfig(rollout_correction=correction))


def kl(x: Tensors, estimator: str) -> Tensors:
    logprobs_BL = x["logprobs_BL"].clone().requires_grad_()
    term_BL = core_algos.kl_penalty(logprobs_BL, x["reference_BL"], estimator)
    return with_gradient(core_algos.agg_loss(term_BL, x["mask_BL"], "token-mean"), logprobs_BL)


def value(x: Tensors) -> Tensors:
    values_BL = x["values_BL"].clone().requires_grad_()
    loss, _ = core_algos.compute_value_loss(
        vpreds=values_BL,
        returns=x["returns_BL"],
        values=x["old_values_BL"],
        response_mask=x["mask_BL"],
        cliprange_value=0.2,
    )
    return with_gradient(loss, values_BL)


def kl_in_reward(rewards_BL: torch.Tensor, x: Tensors) -> torch.Tensor:
    """The rewards of tokens as the trainer hands them to its estimators under `use_kl_in_reward`."""
    given = {
        "response_mask": x["mask_BL"],
        "token_level_scores": rewards_BL,
        "old_log_probs": x["old_BL"],
        "ref_log_prob": x["reference_BL"],
    }
    data, _ = apply_kl_penalty(DataProto.from_single_dict(given), core_algos.FixedKLController(0.1))
    return data.batch["token_level_rewards"]


def advantage(x: Tensors, name: str, mask: str = "mask_BL", *, kl: bool = False, **options: Any) -> Tensors:
    """An estimator of the registry; the reward is that of the last sampled token."""
    mask_BL = x[mask]
    last_B = (mask_BL * torch.arange(1, mask_BL.shape[1] + 1)).argmax(1)
    rewards_BL = torch.zeros_like(mask_BL)
    rewards_BL[torch.arange(len(last_B)), last_B] = x["rewards_B"]
    rewards_BL = kl_in_reward(rewards_BL, x) if kl else rewards_BL
    keywords: dict[str, Any] = {"token_level_rewards": rewards_BL, "response_mask": mask_BL, **options}
    if name == "gae":
        keywords["values"] = x["values_BL"]
    elif name != "reinforce_plus_plus":
        keywords["index"] = np.arange(len(mask_BL)) // GROUP_SIZE
    advantages_BL, returns_BL = core_algos.get_adv_estimator_fn(name)(**keywords)
    return {
        "advantages": (advantages_BL * mask_BL).contiguous(),
        "returns": (returns_BL * mask_BL).contiguous(),
    }


def refill(x: Tensors) -> Tensors:
    """Four groups are asked for and finished; those that verl's buffer asks for further are the next ones."""
    groups = x["outcomes_B"].reshape(-1, GROUP_SIZE).tolist()
    waiting = iter(enumerate(groups))

    def submit(count: int) -> None:
        for _ in range(count):
            QUEUE.add(*next(waiting))

    buffer = runpy.run_path(str(BUFFER))["ReplayBuffer"](
        trainer_mode="sync",
        trainer_config={},
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs={},
        poll_interval=0.0,
        refill_fn=submit,
        filter_groups_metric="reward",
        train_batch_size=4,
        gen_batch_size=1,
    )
    submit(4)
    batch, _ = buffer.sample(global_steps=0, partition_id="train", batch_size=4)
    left = {key.split("_")[0] for key in batch.keys}
    return {"groups": torch.tensor([float(f"g{number}" in left) for number in range(len(groups))])}


def discount(gamma: float) -> Any:
    from verl.trainer.config import AlgoConfig

    return AlgoConfig(gamma=gamma)


CASES: dict[str, Callable[[Tensors], Tensors]] = {
    "ppo": lambda x: policy(x, "vanilla", clip_ratio_c=1e9),
    "ppo, clip higher": lambda x: policy(x, "vanilla", clip_ratio_high=0.28, clip_ratio_c=1e9),
    "dual clip": lambda x: policy(x, "vanilla", clip_ratio_c=3.0),
    "ppo, sequence mean": lambda x: policy(x, "vanilla", aggregation="seq-mean-token-mean", clip_ratio_c=1e9),
    "ppo, constant": lambda x: policy(x, "vanilla", aggregation="seq-mean-token-sum-norm", clip_ratio_c=1e9),
    "cispo": lambda x: policy(x, "cispo", clip_ratio_low=0.2, clip_ratio_high=0.2),
    "gspo": lambda x: policy(
        x, "gspo", aggregation="seq-mean-token-mean", clip_ratio_low=3e-4, clip_ratio_high=4e-4
    ),
    "gmpo": lambda x: policy(x, "geo_mean", clip_ratio_low=0.4, clip_ratio_high=0.4),
    "sapo": lambda x: policy(x, "sapo"),
    "dppo": lambda x: policy(x, "dppo_tv", clip_ratio=0.2, clip_ratio_c=1e9),
    "reinforce": lambda x: policy(x, "gpg"),
    "importance sampling": importance_sampling,
    "mismatch token_truncate": lambda x: mismatch(x, rollout_is="token", rollout_is_threshold=1.2),
    "mismatch sequence_truncate": lambda x: mismatch(x, rollout_is="sequence", rollout_is_threshold=1.2),
    "mismatch token_mask": lambda x: mismatch(x, rollout_rs="token_k1", **BAND, **TOKEN),
    "mismatch sequence_mask": lambda x: mismatch(x, rollout_rs="seq_sum_k1", **BAND, **SEQUENCE),
    "mismatch geometric_mask": lambda x: mismatch(x, rollout_rs="seq_mean_k1", **NARROW),
    "refill": refill,
    "kl k1": lambda x: kl(x, "k1"),
    "kl k2": lambda x: kl(x, "k2"),
    "kl k3": lambda x: kl(x, "k3"),
    "value": value,
    "advantage group": lambda x: advantage(x, "grpo"),
    "advantage centered": lambda x: advantage(x, "grpo", norm_adv_by_std_in_grpo=False),
    "advantage rloo": lambda x: advantage(x, "rloo"),
    "advantage reinforce++": lambda x: advantage(x, "reinforce_plus_plus", config=discount(0.95)),
    "advantage reinforce++_baseline": lambda x: advantage(x, "reinforce_plus_plus_baseline"),
    "advantage gae": lambda x: advantage(x, "gae", gamma=0.99, lam=0.9),
    "kl in reward, group": lambda x: advantage(x, "grpo", kl=True),
    "kl in reward, centered": lambda x: advantage(x, "grpo", kl=True, norm_adv_by_std_in_grpo=False),
    "kl in reward, rloo": lambda x: advantage(x, "rloo", kl=True),
    "kl in reward, reinforce++": lambda x: advantage(
        x, "reinforce_plus_plus", kl=True, config=discount(0.95)
    ),
    "kl in reward, reinforce++_baseline": lambda x: advantage(x, "reinforce_plus_plus_baseline", kl=True),
    "kl in reward, gae": lambda x: advantage(x, "gae", kl=True, gamma=0.99, lam=0.9),
    "advantage gae, holes": lambda x: advantage(x, "gae", mask="holes_BL", gamma=0.99, lam=0.9),
}
