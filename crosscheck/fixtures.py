"""Seeded random batches that every trainer is given, and the files they travel in.

    python -m crosscheck.fixtures FOLDER

B = 32 rows in groups of 4 that follow each other, L = 12 tokens at most; all in float64.

    mask_BL       1 where a token was sampled, ragged on the right
    holes_BL      the same with tokens of a tool in between
    logprobs_BL   under the weights that are trained        old_BL        of the policy before the step
    sampler_BL    as the engine recorded them                reference_BL  of the reference policy
    advantages_B  one per row                                rewards_B     one per row, no two equal
    values_BL     a critic's                                 old_values_BL its values before the step
    returns_BL    what the critic is to predict              entropies_BL  of the policy, in nats
    mismatched_BL, mismatched_reference_BL   of replies behind other prompts, under policy and reference

    outcomes_B    rewards of 0 and 1, in some groups all the same
    factors_T     of the entropies, from step to step
    policies_TN   weights of a policy, from step to step
    weights_N, gradients_TN     of two matrices, one behind the other

Ratios reach far beyond every clip, to both sides and with both signs of advantage.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

Array = npt.NDArray[np.float64]

GROUPS, SIZE, TOKENS = 8, 4, 12
ROWS = GROUPS * SIZE
MATRICES: Mapping[str, tuple[int, int]] = MappingProxyType({"wide": (64, 80), "narrow": (12, 8)})
"""Rows and columns: the first is large enough to be quantized."""
FILE = "fixtures.safetensors"


def make(seed: int = 7) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    lengths_B = rng.integers(3, TOKENS + 1, ROWS)
    mask_BL = (np.arange(TOKENS)[None] < lengths_B[:, None]).astype(np.float64)
    holes_BL = mask_BL.copy()
    holes_BL[:, 1] = 0.0
    logprobs_BL = -rng.uniform(0.1, 3.0, (ROWS, TOKENS))

    def near(center_BL: Array, spread: float) -> Array:
        return np.minimum(center_BL + spread * rng.normal(size=center_BL.shape), -1e-3)

    old_BL = near(logprobs_BL, 0.6)
    values_BL = rng.normal(size=(ROWS, TOKENS))
    made = {
        "mask_BL": mask_BL,
        "holes_BL": holes_BL,
        "logprobs_BL": logprobs_BL,
        "old_BL": old_BL,
        "sampler_BL": near(old_BL, 0.25),
        "reference_BL": near(logprobs_BL, 0.6),
        "advantages_B": rng.normal(size=ROWS),
        "rewards_B": rng.normal(size=ROWS) + 0.5,
        "values_BL": values_BL,
        "old_values_BL": values_BL + 0.3 * rng.normal(size=(ROWS, TOKENS)),
        "returns_BL": rng.normal(size=(ROWS, TOKENS)),
        "entropies_BL": rng.uniform(0.0, 2.0, (ROWS, TOKENS)),
    }
    mismatched_BL = -rng.uniform(2.0, 6.0, (ROWS, TOKENS))
    reference_BL = near(mismatched_BL - 0.2, 0.3)  # so that the estimate of the KL is above 0
    made |= {"mismatched_BL": mismatched_BL, "mismatched_reference_BL": reference_BL}
    return made | steps(rng)


def steps(rng: np.random.Generator) -> dict[str, Array]:
    """What goes on from step to step."""
    outcomes_GS = np.zeros((GROUPS, SIZE))
    outcomes_GS[[0, 2, 4, 6, 7], [1, 0, 3, 2, 1]] = 1.0
    outcomes_GS[3] = 1.0
    size = sum(rows * columns for rows, columns in MATRICES.values())
    return {
        "outcomes_B": outcomes_GS.reshape(-1),
        "factors_T": np.array([0.5, 0.7, 1.3, 0.8, 0.6, 1.4, 1.5, 1.6, 1.2, 0.9]),
        "policies_TN": rng.normal(size=(7, 12)),
        "weights_N": rng.normal(size=size),
        "gradients_TN": rng.normal(size=(5, size)) * np.array([1.0, 0.1, 3.0, 0.3, 1.0])[:, None],
    }


def write(folder: Path) -> Path:
    save_file(make(), folder / FILE)
    return folder / FILE


if __name__ == "__main__":
    write(Path(sys.argv[1]))
