"""Every keyword of `train` reaches the job or the result; wrong values are refused before it is sent."""

from __future__ import annotations

import inspect
import math
from typing import Annotated, Any, Unpack

import pytest
from wire_double import Double

import art
from art import dev
from art.backend import JobOptions, Keyword
from art.client.backends.remote_backend import RemoteBackend
from art.client.options.declared_options import declared_options, signed_with
from art.client.options.train_options import KEYWORDS, refuse_unknown_keywords
from art.client.requests.train_request import algorithm_of
from art.errors import ConfigurationError
from art.wire.jobs import TrainJobRequest


@pytest.mark.parametrize("kind", [art.RemoteBackend, art.LocalBackend, art.ServerlessBackend])
def test_all_backends_have_one_set_of_keywords(kind: type[RemoteBackend]) -> None:
    parameters = inspect.signature(kind.train).parameters
    keywords = {
        name: parameter.default
        for name, parameter in parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert keywords == {name: keyword.default for name, keyword in KEYWORDS.items()}


class Painting(JobOptions, total=False):
    """A function's keywords, with two of its own."""

    strokes: Annotated[int, Keyword(3, least=1)]
    brush: str | None


@signed_with(declared_options(Painting))
def paint(canvas: int, **options: Unpack[Painting]) -> dict[str, Any]:
    return dict(options)


def test_a_keyword_that_is_declared_is_checked_and_shown() -> None:
    strokes = declared_options(Painting)["strokes"]
    assert (strokes.default, strokes.takes) == (3, "a whole number of at least 1")
    assert [strokes.fits(value) for value in (1, 0, True, None, 1.0)] == [True, False, False, False, False]
    shown = inspect.signature(paint).parameters
    assert list(shown) == ["canvas", *declared_options(JobOptions), "strokes", "brush"]
    assert (shown["strokes"].default, shown["brush"].annotation) == (3, str | None)
    assert paint(1, strokes=4) == {"strokes": 4}


def test_a_declared_default_is_a_value_that_is_taken() -> None:
    assert [name for name, keyword in KEYWORDS.items() if not keyword.fits(keyword.default)] == []


async def sent(
    backend: RemoteBackend, double: Double, model: art.TrainableModel, **options: Any
) -> TrainJobRequest:
    await model.register(backend)
    await backend.train(model, [art.TrajectoryGroup([art.Trajectory()])], **options)
    (job,) = double.jobs.values()
    return TrainJobRequest.model_validate(job)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "part", "field", "value"),
    [
        ({"packed_sequence_length": 64}, "compute", "max_length", 64),
        ({"logprob_calculation_chunk_size": 8}, "compute", "logit_rows", 8),
        ({"logprob_calculation_chunk_size": 1024}, "compute", "logit_rows", None),
        ({"plot_tensors": True}, "compute", "plot", True),
        ({"record_tokens": "none"}, "compute", "record_tokens", "none"),
        ({"num_trajectories_learning_rate_multiplier_power": 0.5}, "rate", "rollouts_power", 0.5),
        ({"scale_learning_rate_by_reward_std_dev": True}, "rate", "by_reward_std", True),
        ({"grad_accumulation_sequences": 3}, "algorithm", "updates", {"sequences": 3}),
        ({"learning_rate": 1e-3}, "optimizer", "learning_rate", 1e-3),
        ({"adam_params": {"betas": [0.5, 0.6]}}, "optimizer", "betas", (0.5, 0.6)),
        ({"optimizer": "adamw_8bit"}, "optimizer", "name", "adamw_8bit"),
        ({"optimizer": "muon", "adam_params": {"momentum": 0.9}}, "optimizer", "momentum", 0.9),
    ],
)
async def test_a_keyword_is_a_part_of_the_job(
    backend: RemoteBackend,
    double: Double,
    model: art.TrainableModel,
    options: dict[str, Any],
    part: str,
    field: str,
    value: object,
) -> None:
    found = getattr(getattr(await sent(backend, double, model, **options), part), field)
    assert (found.model_dump(exclude_defaults=True) if isinstance(value, dict) else found) == value


async def test_the_job_has_defaults_where_nothing_is_said(
    backend: RemoteBackend, double: Double, model: art.TrainableModel
) -> None:
    job = await sent(backend, double, model)
    assert job == TrainJobRequest(
        job_id=job.job_id, groups=job.groups, algorithm=algorithm_of({}), optimizer={"learning_rate": 5e-6}
    )


async def test_a_server_of_an_earlier_release_is_not_sent_a_field_that_it_refuses(
    backend: RemoteBackend, double: Double, model: art.TrainableModel
) -> None:
    assert (await sent(backend, double, model)).compute.record_tokens == "auto"
    (job,) = double.jobs.values()
    assert set(job["compute"]) == {"max_length", "logit_rows", "plot"}


async def test_without_save_checkpoint_the_result_names_none(
    backend: RemoteBackend, double: Double, model: art.TrainableModel
) -> None:
    await model.register(backend)
    groups = [art.TrajectoryGroup([art.Trajectory()])]
    assert (await backend.train(model, groups)).checkpoint_path == "/c"
    assert (await backend.train(model, groups, save_checkpoint=False)).checkpoint_path is None


async def test_the_older_call_takes_all_of_them(
    backend: RemoteBackend, double: Double, model: art.TrainableModel
) -> None:
    await model.register(backend)
    config = dev.TrainConfig(
        epsilon=0.2,
        epsilon_high=None,
        ppo=True,
        allow_training_without_logprobs=False,
        logprob_calculation_chunk_size=8,
        moe_routing_replay_path=None,
        moe_routing_replay_strict=False,
        packed_sequence_length=32,
        scale_rewards=False,
    )
    groups = [art.TrajectoryGroup([art.Trajectory()])]
    await model.train(groups, config=art.TrainConfig(learning_rate=1e-4, beta=0.1), _config=config)
    (job,) = double.jobs.values()
    asked = TrainJobRequest.model_validate(job)
    assert asked.algorithm == algorithm_of(
        {"loss_fn": "ppo", "epsilon": 0.2, "scale_rewards": False, "kl_penalty_coef": 0.1}
    )
    assert (asked.compute.logit_rows, asked.compute.max_length) == (8, 32)
    assert asked.optimizer.learning_rate == 1e-4


def test_precalculated_logprobs_are_what_the_ratio_divides_by_where_there_are_more_updates_than_one() -> None:
    several = algorithm_of({"precalculate_logprobs": True, "grad_accumulation_sequences": 2})
    assert (several.ratio_to, several.loss.name) == ("trainer", "cispo")
    corrected = algorithm_of({"precalculate_logprobs": True, "truncated_importance_sampling": 2.0})
    assert (corrected.ratio_to, corrected.loss.name) == ("trainer", "cispo")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"learning_rate": 0.0}, r"learning_rate=0\.0.*a number above 0, or None"),
        ({"learning_rate": math.nan}, "learning_rate=nan"),
        ({"learning_rate": "1e-5"}, "learning_rate='1e-5'"),
        ({"epsilon": -0.1}, "at least 0"),
        ({"advantage_balance": 1.5}, "at least -1 and of at most 1"),
        ({"kimi_k2_tau": -1}, "at least 0"),
        ({"kl_penalty_reference_step": -1}, "a whole number of at least 0"),
        ({"kl_penalty_reference_step": 1.5}, "a whole number"),
        ({"kl_penalty_step_lag": 0}, "a whole number of at least 1, or None"),
        ({"kl_penalty_source": "learner"}, "'current_learner' or 'sample'"),
        ({"optimizer_save_interval": 0}, "a whole number of at least 1"),
        ({"final_training_step": 0}, "a whole number of at least 1, or None"),
        ({"logprob_calculation_chunk_size": 0}, "a whole number of at least 1"),
        ({"packed_sequence_length": True}, "a whole number of at least 1, or None"),
        ({"num_trajectories_learning_rate_multiplier_power": math.inf}, "multiplier_power=inf"),
        ({"truncated_importance_sampling": 0}, "above 0"),
        ({"plot_tensors": 1}, "True or False"),
        ({"record_tokens": "some"}, "'auto', 'all' or 'none'"),
        ({"save_checkpoint": None}, "save_checkpoint=None.*True or False"),
        ({"verbose": 3}, "True, False, 0, 1 or 2"),
        ({"allow_training_without_logprobs": 1}, "True or False"),
        ({"moe_routing_replay_strict": True}, "routing is computed again"),
        ({"moe_routing_replay_bundle": {}}, "routing is computed again"),
        ({"packed_sequence_lenght": 3}, "did you mean 'packed_sequence_length'"),
    ],
)
def test_what_is_no_value_is_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        refuse_unknown_keywords(options)


async def test_a_length_that_no_sample_of_the_model_can_have(backend: RemoteBackend, double: Double) -> None:
    model = art.TrainableModel(
        name="agent",
        project="games",
        base_model="art/nano",
        _internal_config={"init_args": {"max_seq_length": 64}},
    )
    await model.register(backend)
    with pytest.raises(ConfigurationError, match=r"packed_sequence_length=65.* 64 tokens.*max_seq_length"):
        await backend.train(model, [art.TrajectoryGroup([])], packed_sequence_length=65)
    assert not double.jobs
