"""The keywords of `train` -> the parts of a training job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from art.backend import TrainOptions
from art.errors import ConfigurationError
from art.remote.algorithm import choose_algorithm
from art.remote.internal_config import model_settings, optimizer_spec
from art.remote.keywords import KEYWORDS, refuse_unknown, with_defaults
from art.wire.algorithm import Algorithm
from art.wire.jobs import RateSpec, TrainGroup, TrainJobRequest
from art.wire.training import ComputeSpec

UNSAID_ROWS: int = KEYWORDS["logprob_calculation_chunk_size"].default
"""The default of logprob_calculation_chunk_size, which leaves the rows of logits to the trainer."""


def job_request(
    job_id: str,
    groups: list[TrainGroup],
    discarded: list[TrainGroup],
    internal_config: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> TrainJobRequest:
    """The job that the keywords describe. Raises ConfigurationError."""
    refuse_unknown(options)
    chosen = with_defaults(options)
    return TrainJobRequest(
        job_id=job_id,
        groups=groups,
        algorithm=choose_algorithm(chosen),
        optimizer=optimizer_spec(chosen["learning_rate"], internal_config, chosen["adam_params"]),
        rate=rate_of(chosen),
        compute=compute_of(chosen, internal_config),
        expected_step=chosen["expected_step"],
        max_steps_off_policy=chosen["max_steps_off_policy"],
        discarded=discarded,
    )


def algorithm_of(options: Mapping[str, Any]) -> Algorithm:
    """The algorithm that the keywords describe; keywords of other matters are left alone."""
    return choose_algorithm(with_defaults(options))


def rate_of(options: TrainOptions) -> RateSpec:
    """What the rate is multiplied by."""
    return RateSpec(
        rollouts_power=options["num_trajectories_learning_rate_multiplier_power"],
        by_reward_std=options["scale_learning_rate_by_reward_std_dev"],
    )


def compute_of(options: TrainOptions, internal_config: Mapping[str, Any] | None) -> ComputeSpec:
    """How the step is computed. Raises ConfigurationError for a length that no sample of the model can
    have.
    """
    length, rows = options["packed_sequence_length"], options["logprob_calculation_chunk_size"]
    longest = model_settings(internal_config, told=False).max_context
    if length is not None and longest is not None and length > longest:
        raise ConfigurationError(
            f"train(packed_sequence_length={length!r}) is more than the {longest} tokens that the model's "
            "max_seq_length allows"
        )
    return ComputeSpec(
        max_length=length,
        logit_rows=None if rows == UNSAID_ROWS else rows,
        plot=options["plot_tensors"],
    )
