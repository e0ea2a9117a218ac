"""What a training step computes, as data: independent parts, each with its choices.

    advantage    rewards of a group        -> how much better than expected each rollout was
    loss         ratio and advantage       -> the term of one token, its clip included
    ratio        token probabilities       -> of one token, or of its whole sequence
    aggregation  terms of all tokens       -> one number
    kl           distance to a reference   -> a term of the loss, or a part of the advantage
    mismatch     sampler against trainer   -> a weight for what the two disagree about
    entropy      of the policy             -> a term of the loss

A named algorithm is one combination (`art.batch.algorithms`); a combination that makes no sense is
refused there with the reason. A *sequence* is all that one rollout sampled, over all its turns.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

from pydantic import Field, FiniteFloat, model_validator

from art.wire.records import GrownRecord, Strict

TurnEstimator = Literal[
    "turn_return", "turn_rloo", "state_rloo", "progress", "gigpo", "mt_grpo", "turn_tree", "turn_gae"
]
Estimator = Literal[
    "group",
    "centered",
    "batch_std",
    "rloo",
    "maxrl",
    "gdpo",
    "reinforce++",
    "reinforce++_baseline",
    "reward",
    "gae",
    "distillation",
    "none",
    TurnEstimator,
]
OF_TURNS: tuple[TurnEstimator, ...] = get_args(TurnEstimator)
"""Estimators that give each turn an advantage of its own, from the rewards of turns."""
OF_CRITIC = ("gae", "turn_gae")
"""Estimators that ask a critic."""
RatioLevel = Literal["token", "sequence", "geometric", "average", "geometric_average"]


class AdvantageSpec(GrownRecord):
    """The estimator of advantages. r: reward, mean and std over the group unless said."""

    LATER: ClassVar[frozenset[str]] = frozenset({"credit", "whiten"})
    kind: Estimator = "group"
    """group: (r - mean) / (std + 1e-6). centered: r - mean. batch_std: (r - mean) / std of the batch.
    rloo: r - mean of the others. maxrl: (r - mean) / (mean + 1e-6). gdpo: group of each part of r, their
    weighted sum normalised over the batch. reinforce++: r whitened over the batch's tokens.
    reinforce++_baseline: r - mean, then whitened. reward: r itself. gae: from a critic. distillation:
    teacher's logprob - policy's. none: 1 (supervised). Of each turn, from the rewards of turns
    (`art.batch.turn_advantages` has them): turn_return, turn_rloo, state_rloo, progress, gigpo, mt_grpo,
    turn_tree, turn_gae (from a critic)."""
    std: Literal["population", "sample"] = "population"
    """Divide by G, or by G - 1."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """gae, reinforce++: discount per sampled token. Estimators of turns: per turn."""
    credit: Literal["rest", "turn"] | None = None
    """Estimators of turns: where a reward counts. rest: for its turn and all before it, so that a turn earns
    the rest of the episode. turn: for its turn alone. None: as the paper has it, 'turn' of mt_grpo alone."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """gae, turn_gae: the lambda of generalised advantage estimation."""
    whiten: bool = True
    """gae, turn_gae: mean 0 and variance 1 over the tokens of the batch, as PPO has it."""
    balance: float = Field(default=0.0, ge=-1, le=1)
    """Above 0: negative advantages count 1 - balance. Below 0: positive ones count 1 + balance."""

    @property
    def counts_later_turns(self) -> bool:
        """Returns whether a turn earns what the later ones do."""
        return self.credit == "rest" or (self.credit is None and self.kind != "mt_grpo")

    @model_validator(mode="after")
    def _balance_needs_advantages_of_the_batch(self) -> AdvantageSpec:
        if self.balance and self.kind in (*OF_CRITIC, "distillation", "none"):
            raise ValueError(
                f"advantage {self.kind!r} with balance {self.balance!r}: only advantages that come from "
                "rewards alone can be balanced"
            )
        return self


class LossSpec(Strict):
    """The term of one token by name with its parameters; unknown ones are refused with the known listed."""

    name: str = "cispo"
    params: dict[str, Any] = Field(default_factory=dict)


class AggregationSpec(Strict):
    """token_mean: over all tokens of the batch. sequence_mean: of each sequence's token mean. group_mean: of
    each group's token mean. constant: the sum divided by sequences x `length`.
    """

    kind: Literal["token_mean", "sequence_mean", "group_mean", "constant"] = "sequence_mean"
    length: int | None = Field(default=None, ge=1)
    """constant: tokens that a sequence may have at most."""

    @model_validator(mode="after")
    def _length_belongs_to_constant(self) -> AggregationSpec:
        if (self.kind == "constant") != (self.length is not None):
            raise ValueError(
                f"aggregation {self.kind!r} with length {self.length!r}: `length` (tokens per sequence) is "
                "needed by 'constant' and used by no other"
            )
        return self


class KlSpec(GrownRecord):
    """A pull towards a reference policy. d = logprob under the policy - logprob under the reference."""

    LATER: ClassVar[frozenset[str]] = frozenset({"every", "mixup"})
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """k1: d. k2: d^2 / 2. k3: exp(-d) - 1 + d. (Schulman, 2020.)"""
    coefficient: float = Field(gt=0)
    place: Literal["loss", "reward", "advantage", "shaped_advantage", "term"] = "loss"
    """loss: + coefficient * kl. reward: coefficient * kl is taken off each token's reward, before returns,
    baselines and whitening. advantage: off each token's finished advantage. shaped_advantage: advantage +
    coefficient * (mean kl - kl), whose sum over the batch is zero. term: nothing is added; the loss's own
    term reads the reference's logprobs, and weighs them itself."""
    reference: Literal["base", "step", "adapter", "sampler", "average"] = "base"
    """base: the model without adapter. step: `step` of the same model, or `lag` steps before its newest, or
    the newest multiple of `every`. adapter: the LoRA in folder `path`. sampler: the policy that sampled.
    average: a LoRA that starts as the policy's, and moves towards it by the share `mixup`."""
    step: int | None = Field(default=None, ge=0)
    lag: int | None = Field(default=None, ge=1)
    """step: a reference that moves with the policy, from step 0 on."""
    every: int | None = Field(default=None, ge=1)
    """step: the policy replaces the reference every so many steps. average: it moves so often; None: after
    each step."""
    mixup: float | None = Field(default=None, gt=0, lt=1)
    """average: reference <- (1 - mixup) reference + mixup policy, weight by weight (arXiv:2404.09656)."""
    path: str | None = None
    """adapter: a folder on the server's machine, below its data folder."""
    importance: bool = False
    """loss: times the ratio, which makes the gradient that of the true divergence off policy (k3)."""
    source: Literal["policy", "sampler"] = "policy"
    """Outside of the loss: the logprobs under the policy are those before the step, or those when sampled."""

    @model_validator(mode="after")
    def _step_belongs_to_step(self) -> KlSpec:
        every = self.every is not None and self.reference != "average"
        given = (self.step is not None) + (self.lag is not None) + every
        if given != (self.reference == "step"):
            raise ValueError(
                f"kl reference {self.reference!r} with step {self.step!r}, lag {self.lag!r} and every "
                f"{self.every!r}: one of `step`, `lag` and `every` is needed by 'step' and used by no other "
                "(`every` by 'average')"
            )
        if (self.reference == "average") != (self.mixup is not None):
            raise ValueError(
                f"kl reference {self.reference!r} with mixup {self.mixup!r}: `mixup` is needed by 'average' "
                "and used by no other"
            )
        if (self.reference == "adapter") != (self.path is not None):
            raise ValueError(
                f"kl reference {self.reference!r} with path {self.path!r}: `path` is needed by 'adapter' and "
                "used by no other"
            )
        return self


class EntropySpec(Strict):
    """A bonus: coefficient x mean H is taken off the loss, the mean being that of the loss. H: entropy of the
    model's own distribution (all ids, temperature 1) at a sampled token, in nats."""

    coefficient: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The factor of the mean; with a target, that of the first step."""
    target: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The entropy to keep. After each step the coefficient rises by `step` if the step's mean entropy
    (`loss/entropy`) was below the target, and falls by it if above, down to 0. It acts on a step only if the
    entropy of the step before was at most the target (Skywork-OR1, arXiv:2505.22312)."""
    step: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _refuse_without_effect(self) -> EntropySpec:
        if (self.target is None) != (self.step is None):
            raise ValueError(
                f"entropy target {self.target!r} with step {self.step!r}: an adaptive coefficient needs both "
                "(Skywork-OR1 has a target of 0.2 and a step of 0.005), and a fixed one has neither"
            )
        if self.target is None and self.coefficient == 0:
            raise ValueError("entropy coefficient 0 without target would not act: leave `entropy` out")
        return self


class MismatchSpec(Strict):
    """A correction for engine and trainer giving different probabilities: w = trainer's / sampler's.

    Truncation bounds a weight, a mask sets it to 0 outside [low, high]. token_*: w of the token.
    sequence_*: the product over the sequence. geometric_mask: the geometric mean over the sequence.
    outlier_mask: one token outside drops its sequence. negative_mask: drops sequences with a negative
    advantage whose mean log(sampler's / trainer's) exceeds `high` (DeepSeek-V3.2).

    Inside the band token_mask and sequence_mask weigh by w, unless a truncation beside them does or the
    loss's ratio to the sampler holds w already; the other masks only mask.
    """

    kind: Literal[
        "token_truncate",
        "sequence_truncate",
        "token_mask",
        "sequence_mask",
        "geometric_mask",
        "outlier_mask",
        "negative_mask",
    ]
    low: float = Field(default=0.0, ge=0)
    high: float = Field(gt=0)


class OverlongSpec(Strict):
    """DAPO's soft punishment of length: 0 up to limit - band sampled tokens, then linearly to -penalty at
    `limit` and beyond; added to the reward.
    """

    limit: int = Field(ge=1)
    band: int = Field(ge=1)
    penalty: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _band_within_limit(self) -> OverlongSpec:
        if self.band > self.limit:
            raise ValueError(f"overlong band {self.band!r} is wider than its limit {self.limit!r}")
        return self


class UpdatesSpec(Strict):
    """Optimizer steps on one batch: its sequences are split into `minibatches`, `epochs` times over."""

    minibatches: int = Field(default=1, ge=1)
    sequences: int | None = Field(default=None, ge=1)
    """Instead of `minibatches`: at most so many sequences in each, so a larger batch takes more steps."""
    epochs: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _one_way_of_splitting(self) -> UpdatesSpec:
        if self.sequences is not None and self.minibatches != 1:
            raise ValueError(
                f"updates.sequences {self.sequences!r} with minibatches {self.minibatches!r}: the first says "
                "how large they are, the second how many; give one of the two"
            )
        return self

    def of_batch(self, sequences: int) -> UpdatesSpec:
        """The same with the number of minibatches that a batch of so many sequences has."""
        if self.sequences is None:
            return self
        return UpdatesSpec(minibatches=max(1, -(-sequences // self.sequences)), epochs=self.epochs)


class CriticSpec(GrownRecord):
    """A prediction of what follows a token: value = weight . hidden + bias of a last hidden state, from 0 on,
    with an optimizer of its own."""

    LATER: ClassVar[frozenset[str]] = frozenset({"kind", "rank", "alpha", "warmup_steps"})
    kind: Literal["probe", "adapter"] = "probe"
    """probe: of the policy's hidden state, whose features were learnt for something else. adapter: of the
    base's with a LoRA of its own, a value model, which costs a second forward and backward pass."""
    rank: int = Field(default=16, ge=1)
    """adapter: the LoRA's rank. It adapts the layers that the policy's does."""
    alpha: float = Field(default=32.0, gt=0)
    """adapter: its scale is alpha / rank."""
    warmup_steps: int = Field(default=0, ge=0)
    """adapter: in its first steps it learns alone, and the policy stays as it is."""
    learning_rate: float = Field(default=1e-3, gt=0)
    clip: float | None = Field(default=0.2, gt=0)
    """Values move at most so far from those of the step's beginning; None: freely."""
    trunk: float = Field(default=0.0, ge=0)
    """probe: share of the value loss's gradient that reaches the policy. 0: its features stay as they are."""
    max_grad_norm: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _fields_belong_to_the_kind(self) -> CriticSpec:
        others = ("trunk",) if self.kind == "adapter" else ("rank", "alpha", "warmup_steps")
        for name in others:
            if getattr(self, name) != type(self).model_fields[name].default:
                other = "probe" if self.kind == "adapter" else "adapter"
                raise ValueError(
                    f"critic {self.kind!r} with {name} {getattr(self, name)!r}: only kind {other!r} has "
                    f"`{name}`; leave it out, or choose that kind"
                )
        return self


class TeacherSpec(Strict):
    """The teacher whose logprobs the policy approaches. It shares the tokenizer, because it scores the
    sampled ids.
    """

    kind: Literal["base", "step", "server"]
    """base: the model without adapter. step: `step` of the same model. server: an endpoint that returns
    prompt logprobs."""
    step: int | None = Field(default=None, ge=0)
    url: str | None = None
    model: str | None = None

    @model_validator(mode="after")
    def _fields_belong_to_the_kind(self) -> TeacherSpec:
        if (self.kind == "step") != (self.step is not None):
            raise ValueError(f"teacher {self.kind!r} with step {self.step!r}: only 'step' needs and has one")
        if (self.kind == "server") != (self.url is not None and self.model is not None):
            raise ValueError(f"teacher {self.kind!r}: 'server' needs `url` and `model`, no other has them")
        return self


class Algorithm(GrownRecord):
    """One combination. The defaults are those of `art`: CISPO, advantages normalised in their group, and
    every rollout counting the same whatever its length."""

    LATER: ClassVar[frozenset[str]] = frozenset({"entropy", "reward_parts", "top_entropy"})

    name: str = "custom"
    """The row of the table that it came from."""
    advantage: AdvantageSpec = AdvantageSpec()
    loss: LossSpec = LossSpec()
    ratio: RatioLevel = "token"
    """token: of the token. sequence: the sequence's geometric mean (GSPO). geometric: the same of token
    ratios that are clipped one by one (GMPO). average, geometric_average: of
    the token's and the sequence's."""
    ratio_to: Literal["sampler", "trainer"] = "sampler"
    """What the ratio divides by: the logprob that the sampler recorded, or the trainer's own before the
    step's first update."""
    aggregation: AggregationSpec = AggregationSpec()
    kl: KlSpec | None = None
    entropy: EntropySpec | None = None
    top_entropy: float | None = Field(default=None, gt=0, lt=1)
    """The share of the step's tokens, those of the highest entropy before its first update, that keep their
    policy term (arXiv:2506.01939); the divisor and all other terms count every token. None: all."""
    mismatch: list[MismatchSpec] = Field(default_factory=list)
    reward_parts: dict[str, FiniteFloat] = Field(default_factory=dict)
    """gdpo: the parts of the reward, each a metric of the trajectory, and their weights."""
    overlong: OverlongSpec | None = None
    truncated: Literal["train", "drop"] = "train"
    """Rollouts whose last completion was cut at its token limit: trained like others, or left out (their
    reward still counts in the group)."""
    masked: Literal["count", "drop"] = "count"
    """Rollouts that the mismatch masks drop whole. count: their rewards stay in the mean and the deviation of
    their group, their tokens in what the loss is divided by. drop: all of it is computed without them, after
    one more pass over the batch."""
    zero_advantage: Literal["drop", "count"] = "drop"
    """Rollouts without advantage: left out, or counted in the mean that the loss is divided by."""
    updates: UpdatesSpec = UpdatesSpec()
    critic: CriticSpec | None = None
    teacher: TeacherSpec | None = None
