"""Where a peer computes the same thing under another constant, or another form of the same gradient.

Nothing else is adjusted: these are all the differences that the comparison knows of.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from crosscheck.cases import PART_WEIGHTS
from crosscheck.fixtures import SIZE
from crosscheck.inputs import Parts

STD_EPSILON = {"trl": 1e-4, "verl": 1e-6, "openrlhf": 1e-9}
"""What each adds to a standard deviation before dividing by it; we add 1e-6."""
OURS = 1e-6

POPULATION = {
    ("openrlhf", "advantage reinforce++"),
    ("openrlhf", "advantage reinforce++_baseline"),
    ("openrlhf", "kl in reward, reinforce++"),
}
"""Whitened by the population's deviation, where verl and our rows take the sample's."""

LIMITS: Mapping[str, float] = MappingProxyType({"optimizer muon": 0.02})
"""Of the largest value, where it is not 1e-6: our iteration computes in bfloat16, DeepSpeed's in float32."""

LEFT_OUT = {
    # verl's losses are sg(ratio) A log p, ours ratio A: one gradient, two values.
    ("verl", "dppo", "loss"),
    ("verl", "importance sampling", "loss"),
    # OpenRLHF whitens by the population's deviation; our critic's advantages are whitened as verl's are.
    ("openrlhf", "advantage gae", "advantages"),
    ("openrlhf", "kl in reward, gae", "advantages"),
}


def left_out(peer: str, case: str, part: str) -> bool:
    return (peer, case, part) in LEFT_OUT


def adjusted(peer: str, case: str, part: str, theirs: torch.Tensor, x: Parts) -> torch.Tensor:
    """The peer's figure under our constant."""
    if part == "advantages" and case in ("advantage group", "advantage batch_std"):
        rewards_B = x["rewards_B"]
        std_B = rewards_B.reshape(-1, SIZE).std(1).repeat_interleave(SIZE)
        if case == "advantage batch_std":
            std_B = rewards_B.std().expand_as(rewards_B)
        return theirs * ((std_B + STD_EPSILON[peer]) / (std_B + OURS))[:, None]
    if case == "advantage gdpo":  # its parts are so large there that the constant acts once, on the sums
        parts = {name: x[name].reshape(-1, SIZE) for name in PART_WEIGHTS}
        sum_GS = sum(
            w * (one - one.mean(1, keepdim=True)) / one.std(1, keepdim=True)
            for w, one in ((PART_WEIGHTS[name], part) for name, part in parts.items())
        )
        std = torch.as_tensor(sum_GS).std()
        return theirs * (std + STD_EPSILON[peer]) / (std + OURS)
    if case == "optimizer muon":  # its update has the scale of its rows, ours that of AdamW's
        return theirs * 0.2 * theirs.shape[1] ** 0.5
    if (peer, case) in POPULATION and part == "advantages":
        tokens = float(x["mask_BL"].sum())
        return theirs * ((tokens - 1) / tokens) ** 0.5
    return theirs
