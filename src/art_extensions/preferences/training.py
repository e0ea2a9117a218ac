"""Training on preferences from a program: each call makes one step, which is served when it returns."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack
from uuid import uuid4

from art.client.sft.sft_request import sft_optimizer
from art.errors import ConfigurationError, did_you_mean
from art.types import TrainResult
from art.wire.algorithm import Algorithm, KlSpec, LossSpec
from art.wire.jobs import ExtensionJobRequest, SftConversation
from art_extensions.preferences.losses import preference_algorithm
from art_extensions.preferences.pairs import (
    LabelledReply,
    PreferencePair,
    Row,
    labelled_replies,
    pair_conversations,
    preference_pairs,
    reply_conversation,
)
from art_extensions.preferences.questions import QUESTION, asked_conversations

if TYPE_CHECKING:
    from art.model import TrainableModel


class StepOptions(TypedDict, total=False):
    """The keywords that all three kinds of training take."""

    learning_rate: float | Sequence[float]
    """One for all batches, or one for each."""
    batch_size: int
    """The pairs, or labelled replies, of one update."""
    epochs: int
    """Each has an order of its own."""
    seed: int
    """The seed of these orders."""
    expected_step: int | None
    """Refuse when the model is at another step."""
    verbose: bool
    """Show a progress bar on a terminal."""
    log_metrics: bool
    """False writes no row of the history; the metrics are in the result."""


DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "learning_rate": 5e-5,
        "batch_size": 8,
        "epochs": 1,
        "seed": 0,
        "expected_step": None,
        "verbose": False,
        "log_metrics": True,
    }
)

Reference = int | str
"""The policy that another one is compared with. "base": the model without adapter. A number: that step of the
same model. Another text: the folder of a checkpoint, as `checkpoint_path` of a result has it."""


async def train_dpo(
    model: TrainableModel[Any, Any],
    pairs: Iterable[PreferencePair | Row],
    *,
    beta: float = 0.1,
    loss: Literal["sigmoid", "ipo"] = "sigmoid",
    label_smoothing: float = 0.0,
    length_normalised: bool = False,
    reference: Reference = "base",
    **options: Unpack[StepOptions],
) -> TrainResult:
    """Makes one step of direct preference optimisation (arXiv:2305.18290), with an update for each batch.

    beta: how strongly the reference is held to. loss: "ipo" is the squared loss of arXiv:2310.12036.
    label_smoothing: the share of wrong labels (cDPO), from 0 to below 0.5. length_normalised: log ratios
    are means over tokens, not sums. options: `StepOptions`. Without pairs nothing happens.

    Metrics, beside those of a supervised step: `objective/accuracy` (the share of pairs in the right order),
    `objective/margin`, `objective/chosen_reward` and `rejected_reward` (beta times the log ratio),
    `objective/chosen_logprob` and `rejected_logprob`.

    Raises ConfigurationError for options and pairs that are refused, by name, and what `train_sft` raises.
    """
    _check_above_zero("beta", beta)
    if loss not in ("sigmoid", "ipo"):
        raise ConfigurationError(f"loss is {loss!r}; it is 'sigmoid' or 'ipo'")
    if not 0 <= label_smoothing < 0.5:
        raise ConfigurationError(f"label_smoothing is {label_smoothing!r}; it is from 0 to below 0.5")
    if loss == "ipo" and label_smoothing:
        raise ConfigurationError(f"label_smoothing {label_smoothing!r} acts on loss 'sigmoid', not on 'ipo'")
    params = {
        "beta": beta,
        "label_smoothing": label_smoothing,
        "ipo": loss == "ipo",
        "length_normalised": length_normalised,
    }
    sides = [pair_conversations(number, pair) for number, pair in enumerate(preference_pairs(pairs))]
    kl = await _reference(model, reference, beta)
    algorithm = preference_algorithm("dpo", LossSpec(name="preference", params=params), kl)
    return await _Step(model, options).train("dpo", algorithm, sides)


async def train_kto(
    model: TrainableModel[Any, Any],
    examples: Iterable[LabelledReply | Row],
    *,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
    reference: Reference = "base",
    **options: Unpack[StepOptions],
) -> TrainResult:
    """Makes one step of Kahneman-Tversky optimisation (arXiv:2402.01306) on labelled replies.

    beta: how strongly the reference is held to. The weights are those of the two labels' losses. options:
    `StepOptions`; each batch needs two examples, so a last one that would be alone joins the batch before it.

    Metrics, beside those of a supervised step: `objective/reference_point` (the estimate of the KL),
    `objective/desirable` (their share), and, of desirable and undesirable replies each,
    `objective/chosen_reward`, `rejected_reward`, `chosen_logprob`, `rejected_logprob`.

    Raises ConfigurationError for options and examples that are refused, and what `train_sft` raises.
    """
    _check_above_zero("beta", beta)
    _check_above_zero("desirable_weight", desirable_weight)
    _check_above_zero("undesirable_weight", undesirable_weight)
    found = labelled_replies(examples)
    replies = [(reply_conversation(number, reply),) for number, reply in enumerate(found)]
    settings = {
        "desirable": [number for number, reply in enumerate(found) if reply.desirable],
        "desirable_weight": desirable_weight,
        "undesirable_weight": undesirable_weight,
    }
    kl = await _reference(model, reference, beta)
    algorithm = preference_algorithm("kto", LossSpec(name="kto", params={"beta": beta}), kl)
    return await _Step(model, options, least=2).train("kto", algorithm, replies, settings)


async def train_reward_model(
    model: TrainableModel[Any, Any],
    pairs: Iterable[PreferencePair | Row],
    *,
    question: str = QUESTION,
    **options: Unpack[StepOptions],
) -> TrainResult:
    """Makes one step of a reward model, by the loss of Bradley and Terry.

    It is -log sigmoid(score of chosen - score of rejected). question: stands behind each conversation, here
    and in `RewardModel`. options: `StepOptions`. Without pairs nothing happens.

    Metrics, beside those of a supervised step: `objective/accuracy` and `objective/margin`, of the scores.

    Raises ConfigurationError for options and pairs that are refused, and what `train_sft` raises.
    """
    if not question.strip():
        raise ConfigurationError(f"question is {question!r}: a reward model is asked something")
    asked = [
        [
            answered
            for side in pair_conversations(number, pair)
            for answered in asked_conversations(side, question)
        ]
        for number, pair in enumerate(preference_pairs(pairs))
    ]
    algorithm = preference_algorithm("reward_model", LossSpec(name="preference", params={"beta": 1.0}), None)
    return await _Step(model, options).train("reward_model", algorithm, asked)


class _Step:
    """One call. Raises ConfigurationError for options that are unknown, or have wrong values."""

    def __init__(self, model: TrainableModel[Any, Any], options: StepOptions, *, least: int = 1) -> None:
        """least: the rollouts that a batch has at least."""
        for name in options:
            if name not in DEFAULTS:
                hint = did_you_mean(name, DEFAULTS) or f"known: {', '.join(DEFAULTS)}"
                raise ConfigurationError(f"no option {name!r}: {hint}")
        self._model, self._least = model, least
        self._options = {**DEFAULTS, **options}
        for name, bound in (("batch_size", least), ("epochs", 1)):
            value = self._options[name]
            if isinstance(value, bool) or not isinstance(value, int) or value < bound:
                raise ConfigurationError(f"{name} is {value!r}; it is a whole number from {bound} on")

    async def train(
        self,
        job: str,
        algorithm: Algorithm,
        rollouts: Sequence[Sequence[SftConversation]],
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> TrainResult:
        """Makes the step. rollouts: the conversations that belong together."""
        model = self._model
        backend: Any = model.backend()
        if not hasattr(backend, "train_on"):
            raise ConfigurationError(
                f"{type(backend).__name__} has no jobs of extensions: use a backend of ART"
            )
        if 0 < len(rollouts) < self._least:
            raise ConfigurationError(f"{len(rollouts)} example: a batch needs {self._least}")
        if not rollouts:
            return TrainResult(await model.get_step())
        size, batches = len(rollouts[0]), self._batches(len(rollouts))
        request = ExtensionJobRequest(
            job_id="",
            job=job,
            algorithm=algorithm,
            options=dict(options),
            conversations=[one for together in rollouts for one in together],
            batches=[[size * number + at for number in batch for at in range(size)] for batch in batches],
            learning_rates=self._rates(len(batches)),
            optimizer=sft_optimizer(model._internal_config),
            expected_step=self._options["expected_step"],
        )

        async def train(job_id: str = "") -> TrainResult:
            started = time.monotonic()
            named = request.model_copy(update={"job_id": job_id or uuid4().hex})
            count, verbose = sum(map(len, batches)), self._options["verbose"]
            result: TrainResult = await backend.train_on(model, named, rollouts=count, verbose=verbose)
            result.metrics["time/step_trainer_s"] = time.monotonic() - started
            return result

        return await (model._train_and_log(None, train) if self._options["log_metrics"] else train())

    def _batches(self, count: int) -> list[list[int]]:
        """The numbers of the rollouts of each update, in the order of each epoch."""
        size, batches = self._options["batch_size"], []
        for epoch in range(self._options["epochs"]):
            order = list(range(count))
            Random(f"{self._options['seed']} {epoch}").shuffle(order)
            cut = [order[at : at + size] for at in range(0, count, size)]
            if len(cut) > 1 and len(cut[-1]) < self._least:
                cut[-2:] = [cut[-2] + cut[-1]]
            batches += cut
        return batches

    def _rates(self, batches: int) -> list[float]:
        given = self._options["learning_rate"]
        rates = list(given) if isinstance(given, Sequence) else [given] * batches
        if len(rates) != batches:
            raise ConfigurationError(
                f"learning_rate has {len(rates)} entries for {batches} batches: give one a batch"
            )
        for rate in rates:
            if not (math.isfinite(rate) and rate >= 0):
                raise ConfigurationError(f"learning_rate is {rate!r}; it is a number from 0 on")
        return [float(rate) for rate in rates]


async def _reference(model: TrainableModel[Any, Any], reference: Reference, beta: float) -> KlSpec:
    """Raises ConfigurationError for what names no policy."""
    if reference == "base":
        return KlSpec(coefficient=beta, place="term")
    if isinstance(reference, bool) or not isinstance(reference, int | str) or reference in ("", "sampler"):
        raise ConfigurationError(
            f"reference is {reference!r}; it is 'base', the number of a step, or a folder"
        )
    if isinstance(reference, int):
        if reference < 0:
            raise ConfigurationError(f"reference is {reference!r}; steps are counted from 0")
        return KlSpec(coefficient=beta, place="term", reference="step", step=reference)
    backend: Any = model.backend()
    path = await backend._reference_folder(model, reference)
    return KlSpec(coefficient=beta, place="term", reference="adapter", path=path)


def _check_above_zero(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigurationError(f"{name} is {value!r}; it is a finite number above 0")
