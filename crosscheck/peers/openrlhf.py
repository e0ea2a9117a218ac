"""OpenRLHF's side: its own losses and advantages, called with the fixtures. Runs in OpenRLHF's environment.

Importing its packages imports what needs a GPU (deepspeed, flash-attn, vLLM, ...) although nothing that is
called here uses it; those imports get empty stand-ins. Muon is that of DeepSpeed, by which OpenRLHF trains
with `--optim muon`; it is loaded from its one file.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import runpy
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers  # noqa: F401  # looks for deepspeed before there is a stand-in

ABSENT = {"aiohttp", "deepspeed", "flash_attn", "torchdata", "vllm"}
GROUP_SIZE = 4

Tensors = dict[str, torch.Tensor]


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of which every name is an empty class."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        module.__getattr__ = empty  # type: ignore[method-assign]


def empty(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


sys.meta_path.append(StandIns())

from openrlhf.models.loss import DPOLoss, PairWiseLoss, PolicyLoss, SFTLoss, ValueLoss  # noqa: E402
from openrlhf.models.utils import compute_approx_kl, masked_mean  # noqa: E402
from openrlhf.trainer.ppo_utils.experience import Experience  # noqa: E402
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker  # noqa: E402
from openrlhf.trainer.ppo_utils.length_penalty import apply_overlong_penalty  # noqa: E402
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator  # noqa: E402


def with_gradient(loss: torch.Tensor, variable: torch.Tensor) -> Tensors:
    (gradient,) = torch.autograd.grad(loss, variable)
    return {"loss": loss.detach().reshape(1), "gradient": gradient}


def policy(x: Tensors, **options: Any) -> Tensors:
    logprobs_BL = x["logprobs_BL"].clone().requires_grad_()
    loss, *_ = PolicyLoss(**options)(
        logprobs_BL,
        x["old_BL"],
        x["advantages_B"][:, None].expand_as(logprobs_BL),
        action_mask=x["mask_BL"],
        rollout_log_probs=x["sampler_BL"],
    )
    return with_gradient(loss, logprobs_BL)


def correction(x: Tensors, **options: Any) -> Tensors:
    return policy(x, **{f"is_correction_{name}": value for name, value in options.items()})


def kl(x: Tensors, estimator: str) -> Tensors:
    logprobs_BL = x["logprobs_BL"].clone().requires_grad_()
    term_BL = compute_approx_kl(logprobs_BL, x["reference_BL"], kl_estimator=estimator)
    return with_gradient(masked_mean(term_BL, x["mask_BL"]), logprobs_BL)


def value(x: Tensors) -> Tensors:
    values_BL = x["values_BL"].clone().requires_grad_()
    loss = ValueLoss(clip_eps=0.2)(values_BL, x["old_values_BL"], x["returns_BL"], action_mask=x["mask_BL"])
    return with_gradient(loss, values_BL)


def supervised(x: Tensors) -> Tensors:
    logprobs_BL = x["logprobs_BL"].clone().requires_grad_()
    return with_gradient(SFTLoss()(logprobs_BL, x["mask_BL"]), logprobs_BL)


def advantage(
    x: Tensors, estimator: str, *, gamma: float = 1.0, lam: float = 1.0, kl: float = 0.0
) -> Tensors:
    """Through `RemoteExperienceMaker.compute_advantages_and_returns`, with the settings it reads."""
    mask_BL = x["mask_BL"]
    maker = RemoteExperienceMaker.__new__(RemoteExperienceMaker)
    maker.advantage_estimator = estimator
    maker.kl_ctl = types.SimpleNamespace(value=kl)
    maker.strategy = types.SimpleNamespace(args=settings(estimator, gamma=gamma, lam=lam))
    experience = Experience(
        action_mask=mask_BL,
        rewards=x["rewards_B"].clone(),
        values=x["values_BL"],
        kl=compute_approx_kl(x["old_BL"], x["reference_BL"], kl_estimator="k1").double(),
        index=list(range(len(mask_BL))),
        response_length=mask_BL.sum(1),
    )
    (made,) = maker.compute_advantages_and_returns([experience])
    return {"advantages": made.advantages * mask_BL, "returns": made.returns * mask_BL}


def settings(estimator: str, *, gamma: float, lam: float) -> types.SimpleNamespace:
    space = types.SimpleNamespace
    return space(
        rollout=space(n_samples_per_prompt=GROUP_SIZE, max_new_tokens=None),
        reward=space(
            clip_range=None,
            overlong_buffer_len=None,
            overlong_penalty_factor=None,
            stop_properly_penalty_coef=None,
        ),
        algo=space(advantage=space(estimator=estimator, gamma=gamma, lambd=lam, no_std_norm=False)),
    )


def overlong(x: Tensors) -> Tensors:
    """DAPO's length penalty: a limit of as many tokens as a row may have, a band of 4."""
    experience = Experience(rewards=x["rewards_B"].clone(), response_length=x["mask_BL"].sum(1))
    apply_overlong_penalty([experience], x["mask_BL"].shape[1], 4, 1.0)
    return {"rewards": experience.rewards}


def dpo(x: Tensors, **options: Any) -> Tensors:
    """Pairs of rows that follow each other."""
    logprobs_BL = x["logprobs_BL"].clone().requires_grad_()
    sums_B, references_B = ((one * x["mask_BL"]).sum(1) for one in (logprobs_BL, x["reference_BL"]))
    loss, *_ = DPOLoss(beta=0.1, **options)(sums_B[::2], sums_B[1::2], references_B[::2], references_B[1::2])
    return with_gradient(loss, logprobs_BL)


def reward_model(x: Tensors) -> Tensors:
    """The score of a row is the difference of its first two logprobs."""
    answers_BL = x["logprobs_BL"].clone().requires_grad_()
    scores_B = answers_BL[:, 0] - answers_BL[:, 1]
    return with_gradient(PairWiseLoss()(scores_B[::2], scores_B[1::2]), answers_BL)


class Groups(SamplesGenerator):
    """Its rollouts are the fixtures': one reference is one finished group."""

    def __init__(self, groups: list[list[float]]) -> None:
        algo = types.SimpleNamespace(dynamic_filtering_enable=True, dynamic_filtering_range=(0.0, 1.0))
        rollout = types.SimpleNamespace(batch_size=4, n_samples_per_prompt=GROUP_SIZE)
        self.args = types.SimpleNamespace(
            algo=algo, rollout=rollout, vllm=types.SimpleNamespace(enable_sleep=False)
        )
        self.prompts_dataloader = [("", [number], [""], [None]) for number in range(len(groups))]
        self._groups = groups

    def _dispatch_prompts_to_vllm(self, prompts: list[int], *_: Any, **__: Any) -> list[Any]:
        return [[(number, reward) for reward in self._groups[number]] for number in prompts]

    def _process_response_into_experience(self, response: tuple[int, float], **_: Any) -> Experience:
        return Experience(index=[response[0]], scores=torch.tensor([response[1]]))


def refill(x: Tensors) -> Tensors:
    """Dynamic filtering: a group that is dropped is replaced by the next prompt's."""
    groups = x["outcomes_B"].reshape(-1, GROUP_SIZE).tolist()
    at_once = types.SimpleNamespace(
        wait=lambda references, **_: (references[:1], references[1:]), get=lambda reference: reference
    )
    sys.modules[SamplesGenerator.__module__].ray = at_once  # type: ignore[attr-defined]
    experiences, *_ = Groups(groups).generate_samples()
    left = {one.index[0] for one in experiences}
    return {"groups": torch.tensor([float(number in left) for number in range(len(groups))])}


def muon(x: Tensors) -> Tensors:
    """How far it moves two matrices. Its iteration computes in float32, as where there is no bfloat16."""
    path = Path(sys.prefix) / "beside" / "deepspeed" / "runtime" / "zero" / "muon" / "original_muon.py"
    accelerator = types.SimpleNamespace(is_bf16_supported=lambda: False)
    runtime, chosen = map(importlib.import_module, ("deepspeed.runtime", "deepspeed.accelerator"))
    runtime.compiler = types.SimpleNamespace(compile=lambda: lambda function: function)  # type: ignore[attr-defined]
    chosen.get_accelerator = lambda: accelerator  # type: ignore[attr-defined]
    kind = runpy.run_path(str(path))["SingleDeviceMuon"]
    moved, start = {}, 0
    for name, (rows, columns) in {"wide": (64, 80), "narrow": (12, 8)}.items():
        part = slice(start, start + rows * columns)
        before = x["weights_N"][part].float().reshape(rows, columns)
        weight = torch.nn.Parameter(before.clone())
        optimizer = kind([weight], lr=0.01, momentum=0.9, ns_method="standard")
        for gradients_N in x["gradients_TN"]:
            weight.grad = gradients_N[part].float().reshape(rows, columns)
            optimizer.step()
        moved[name], start = weight.detach() - before, part.stop
    return moved


CASES: dict[str, Callable[[Tensors], Tensors]] = {
    "ppo": lambda x: policy(x),
    "ppo, clip higher": lambda x: policy(x, clip_eps_high=0.28),
    "dual clip": lambda x: policy(x, dual_clip=3.0),
    "ppo, sequence mean": lambda x: policy(x, token_level_loss=False),
    "gspo": lambda x: policy(x, policy_loss_type="gspo", clip_eps_low=3e-4, clip_eps_high=4e-4),
    "mismatch token_clip": lambda x: correction(x, level="token", mode="clip", threshold=(0.8, 1.25)),
    "mismatch token_mask": lambda x: correction(x, level="token", mode="mask", threshold=(0.8, 1.25)),
    "mismatch geometric_mask, token weight": lambda x: correction(
        x, level="seq", mode="mask", threshold=(0.95, 1.0526315789473684)
    ),
    "kl k1": lambda x: kl(x, "k1"),
    "kl k2": lambda x: kl(x, "k2"),
    "kl k3": lambda x: kl(x, "k3"),
    "value": value,
    "supervised": supervised,
    "dpo": dpo,
    "dpo, label smoothing": lambda x: dpo(x, label_smoothing=0.1),
    "ipo": lambda x: dpo(x, ipo=True),
    "reward model": reward_model,
    "refill": refill,
    "optimizer muon": muon,
    "overlong": overlong,
    "advantage group": lambda x: advantage(x, "group_norm"),
    "advantage centered": lambda x: advantage(x, "dr_grpo"),
    "advantage rloo": lambda x: advantage(x, "rloo"),
    "advantage reinforce++": lambda x: advantage(x, "reinforce", gamma=0.95),
    "advantage reinforce++_baseline": lambda x: advantage(x, "reinforce_baseline"),
    "kl in reward, reinforce++": lambda x: advantage(x, "reinforce", gamma=0.95, kl=0.1),
    "kl in reward, gae": lambda x: advantage(x, "gae", gamma=0.99, lam=0.9, kl=0.1),
    "advantage gae": lambda x: advantage(x, "gae", gamma=0.99, lam=0.9),
}
