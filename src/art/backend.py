"""What a backend is, the keywords of its `train`, and what backends and the run's record need of a model.

`art.model` stands above this: a backend never imports the models, it is given them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Protocol,
    TypedDict,
    Unpack,
    cast,
    runtime_checkable,
)

from art.trajectories import Trajectory, TrajectoryGroup
from art.types import TrainResult, TrainSFTConfig, Verbosity
from art.wire.algorithm import Algorithm
from art.wire.training import OptimizerName, RecordTokens

if TYPE_CHECKING:
    import openai


SftExample = Trajectory | Mapping[str, Any]
"""What a model is fine-tuned on: a trajectory, or a row as `art.client.sft.sft_rows` reads it."""


@runtime_checkable
class AnyModel(Protocol):
    """A model as backends see it, prompted or trained: `art.Model` and its subclasses."""

    name: str
    project: str
    entity: str | None
    id: str | None
    run_id: str | None
    run_name: str | None
    config: Any
    trainable: bool
    inference_api_key: str | None
    inference_base_url: str | None
    inference_model_name: str | None
    base_path: str
    report_metrics: list[str] | None

    _backend: Any

    def model_dump(self, *, exclude: Any = ...) -> dict[str, Any]: ...

    def get_inference_name(self, step: int | None = None) -> str: ...

    def _folder(self) -> Path: ...


@runtime_checkable
class AnyTrainableModel(AnyModel, Protocol):
    """A trainable model, as backends see it: `art.TrainableModel` and its subclasses."""

    base_model: str

    _internal_config: Mapping[str, Any] | None
    _openai_client_config: dict[str, Any] | None

    def backend(self) -> Any: ...

    async def get_step(self) -> int: ...

    async def train_sft(
        self,
        trajectories: Iterable[SftExample],
        config: TrainSFTConfig | None = None,
        _config: Mapping[str, Any] | None = None,
        verbose: bool = False,
    ) -> TrainResult: ...


@dataclass(frozen=True, slots=True)
class Keyword:
    """The default of a keyword and the values of its type that it accepts."""

    default: Any = None
    least: float | None = field(default=None, kw_only=True)
    above: float | None = field(default=None, kw_only=True)
    most: float | None = field(default=None, kw_only=True)
    takes: str = field(default="", kw_only=True)
    """What its values are called in messages, where the type has no good word for them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """A keyword that is known, but would change results if it were ignored."""

    instead: str
    neutral: tuple[Any, ...]
    """Values that ask for nothing."""


class LearningOptions(TypedDict, total=False):
    """The keywords of `train` that configure the training step; `PipelineTrainer` takes them too.

    This is their only declaration: `client/options` makes the signature of `train` and its
    checks of it, and the table in docs/reference/options.md is printed from it. A type that is no number,
    flag, name or dict is checked where its value is read.
    """

    learning_rate: Annotated[float | None, Keyword(5e-6, above=0)]
    """The learning rate of the step. None: trainer_args['learning_rate'] of the model, or else the value from
    the literature for the model's size. The metric loss/learning_rate reports the value used.
    """
    algorithm: str | Algorithm | Mapping[str, Any] | None
    """A name of docs/reference/algorithms.md, a dict of a name and parts, or an art.Algorithm. None:
    'art', which gives all rollouts the same weight, for any length.
    """
    loss_fn: str | None
    """Only the loss, by name: 'cispo' (the default), 'ppo' ..."""
    loss_fn_config: Mapping[str, Any] | None
    """The loss's parameters by name."""
    ppo: bool | None
    """True means loss_fn='ppo', False means loss_fn='cispo'."""
    epsilon: Annotated[float | None, Keyword(least=0)]
    """Sets the lower bound of the clip range to 1 - epsilon."""
    epsilon_high: Annotated[float | None, Keyword(least=0)]
    """Sets the upper bound of the clip range to 1 + epsilon_high."""
    normalize_advantages: Annotated[bool, Keyword(True)]
    """Divides advantages by the group's standard deviation."""
    scale_rewards: Annotated[bool, Keyword(True)]
    """The same as normalize_advantages. False in either turns the division off."""
    advantage_balance: Annotated[float, Keyword(0.0, least=-1, most=1)]
    """Above 0: negative advantages are scaled by 1 - balance. Below 0: positive ones by 1 + balance."""
    importance_sampling_level: Literal["token", "sequence", "average", "geometric_average"] | None
    """The level of the importance ratio: token, sequence (GSPO), average or geometric_average."""
    max_negative_advantage_importance_sampling_weight: Annotated[float | None, Keyword(above=0)]
    """The upper bound of all importance ratios, for advantages of either sign."""
    mask_prob_ratio: Annotated[bool, Keyword(False)]
    """Masks tokens whose ratio is outside the clip range."""
    truncated_importance_sampling: Annotated[float | None, Keyword(above=0)]
    """The upper bound of the weight that corrects for differences between engine and trainer."""
    precalculate_logprobs: Annotated[bool, Keyword(False)]
    """Computes the ratio to the trainer's logprobs before the step, not to the sampler's. With one update the
    ratio is then 1, so the loss is 'reinforce'.
    """
    kimi_k2_tau: Annotated[float | None, Keyword(least=0)]
    """Changes the advantage to: advantage - tau x (logprob - logprob when sampled)."""
    kl_penalty_coef: Annotated[float | None, Keyword(0.0, least=0)]
    """Changes the advantage to: advantage + coefficient x (mean kl - kl), with the KL to the reference."""
    kl_penalty_reference_step: Annotated[int | None, Keyword(least=0)]
    """The step of the model that is the KL reference. None: the base model."""
    kl_penalty_step_lag: Annotated[int | None, Keyword(least=1)]
    """Makes the KL reference the step that is this many steps before the current one, at least step 0."""
    kl_penalty_sync_steps: Annotated[int | None, Keyword(least=1)]
    """Replaces the KL reference by the policy after every so many steps. With kl_penalty_mixup:
    moves it so often.
    """
    kl_penalty_mixup: Annotated[float | None, Keyword(above=0, most=1)]
    """Makes the KL reference a second LoRA that starts as the policy's and moves towards it by this share
    after each step: reference = (1 - mixup) x reference + mixup x policy. It is saved with each step.
    """
    kl_penalty_source: Annotated[
        Literal["current_learner", "sample"],
        Keyword("current_learner", takes="'current_learner' or 'sample'"),
    ]
    """The policy's logprobs in the KL: those before the step ('current_learner'), or those when sampled."""
    kl_ref_adapter_path: Annotated[str | None, Keyword(takes="a path")]
    """The folder of the LoRA that is the KL reference (PEFT's two files): a checkpoint_path of the project,
    or with LocalBackend any folder. It overrides kl_penalty_reference_step.
    """
    entropy: float | Mapping[str, Any] | None
    """A bonus for the policy's entropy: coefficient x mean entropy is taken off the loss. A coefficient (0:
    none), or a dict of coefficient, target and step: the coefficient rises by step after a step whose mean
    entropy was below target, and falls by it, and does not act on the next step, after one above. None: the
    algorithm's own.
    """
    top_entropy: Annotated[float | None, Keyword(above=0, most=1)]
    """Keeps the policy gradient of this share of the step's tokens, those with the highest entropy. 1: of
    all. None: the algorithm's own.
    """
    optimizer_save_interval: Annotated[int, Keyword(5, least=1)]
    """The most steps between two saves of the optimizer's state. It is saved with every step, which satisfies
    any interval: a run resumes exactly at its newest step.
    """
    optimizer: Annotated[OptimizerName, Keyword("adamw", takes="'adamw', 'adamw_8bit' or 'muon'")]
    """AdamW, the same with moments of 8 bits (extra `quantized`), or Muon, whose matrices move by their
    orthogonalized momentum. A model keeps its optimizer.
    """
    adam_params: Mapping[str, Any] | None
    """A dict of betas, eps, weight_decay, max_grad_norm, warmup_steps, lr_scheduler_type, max_steps; for Muon
    of momentum instead of betas and eps. It overrides trainer_args of the model.
    """
    grad_accumulation_sequences: Annotated[int | None, Keyword(least=1)]
    """The most rollouts of one optimizer step, in a random order. None: one optimizer step for all."""
    num_trajectories_learning_rate_multiplier_power: Annotated[float, Keyword(0.0)]
    """Multiplies the learning rate by (number of trained rollouts) to this power."""
    scale_learning_rate_by_reward_std_dev: Annotated[bool, Keyword(False)]
    """Multiplies the learning rate by the groups' mean standard deviation of rewards."""
    packed_sequence_length: Annotated[int | None, Keyword(least=1)]
    """The most tokens forwarded at once. A rollout with a longer sample is left out and counted as overlong
    on the result's sheet.
    """
    logprob_calculation_chunk_size: Annotated[int, Keyword(1024, least=1)]
    """The most rows of logits in memory at once. With 1024, the default, the trainer chooses, and its logits
    take 64 MiB at most.
    """
    plot_tensors: Annotated[bool, Keyword(False)]
    """Draws the step's token tree into the model's folder, `packed_tensors_plot_<step>.png` (extra
    `plotting`).
    """
    record_tokens: Annotated[RecordTokens, Keyword("auto", takes="'auto', 'all' or 'none'")]
    """The trained tokens that are recorded in `steps/<step>/tokens.safetensors` of the model's folder, each
    with its logprob, entropy, advantage and ratio. 'auto': all up to 200,000 a step, above that whole groups.
    """
    allow_training_without_logprobs: Annotated[bool, Keyword(False)]
    """Also trains assistant messages that are dicts (and choices without a sample), with the trajectory's
    advantage. They have no sampling logprob, so their ratio is to the trainer's own logprob before the step's
    first update. Sampled tokens keep their sampling logprobs.
    """


class JobOptions(LearningOptions, total=False):
    """The keywords of `train` that `model.train` also takes as keywords."""

    save_checkpoint: Annotated[bool, Keyword(True)]
    """Sets checkpoint_path of the result. The server saves the checkpoint in any case."""
    final_training_step: Annotated[int | None, Keyword(least=1)]
    """The last step of the run, whose optimizer state is saved too, as that of every step is."""
    expected_step: Annotated[int | None, Keyword(least=0)]
    """Raises an error if the model is at another step."""
    max_steps_off_policy: Annotated[int | None, Keyword(least=0)]
    """The largest age of a sample in steps. A rollout with an older sample is not trained and is counted as
    stale on the result's sheet. None: 16, the server's `max_off_policy_steps`, which always applies.
    """
    discarded_groups: Iterable[TrajectoryGroup] | None
    """Groups that your program does not train, such as those of equal rewards. They are only counted on the
    result's sheet, in rollouts and tokens.
    """
    job_id: str | None
    """The id of the training job, unique to one batch. After a crash, `await
    backend.training_result(model, job_id)` returns whether the job made a step. None: a new id.
    """


class TrainOptions(JobOptions, total=False):
    """The keywords of `backend.train`."""

    verbose: Annotated[bool | Verbosity, Keyword(False, takes="True, False, 0, 1 or 2")]
    """Shows a progress bar."""


_ROUTING = "routing is computed again. truncated_importance_sampling corrects for the differences."


class EarlierTrainOptions(TrainOptions, total=False):
    """The keywords of `train` and those of older releases: `art.dev.TrainConfig`."""

    moe_routing_replay_bundle: Annotated[Any, Refused(neutral=(None,), instead=_ROUTING)]
    moe_routing_replay_path: Annotated[str | None, Refused(neutral=(None,), instead=_ROUTING)]
    moe_routing_replay_strict: Annotated[bool, Refused(neutral=(False, None), instead=_ROUTING)]


class Backend(Protocol):
    """The interface of all backends: a place where models are served and trained.

    The backends of this package answer to the names of older releases too:
    `_model_inference_name(model, step)`, `_get_step(model)`,
    `_delete_checkpoint_files(model, steps_to_keep)`, `_prepare_backend_for_training(model, config)`, and
    `_train_model` and `_train_sft`, which yield dicts of metrics. A backend of a program's own
    may have only those: `model.register` takes it as it is (`as_backend`).

    `model` is Any, so that a backend may ask for `art.TrainableModel` or for what it needs of one.
    """

    async def register(self, model: Any) -> None:
        """Registers the model: afterwards it can be sampled and, if trainable, trained."""

    async def train(
        self,
        model: Any,
        trajectory_groups: Iterable[TrajectoryGroup],
        **options: Unpack[TrainOptions],
    ) -> TrainResult:
        """Runs one training step. The new step is served when this returns."""

    async def train_sft(
        self,
        model: Any,
        trajectories: Iterable[Any],  # of `SftExample`; a program's own backend may take fewer kinds
        config: TrainSFTConfig | None = None,
        *,
        verbose: bool = False,
    ) -> TrainResult:
        """Runs one step of supervised fine-tuning on the assistant messages. The new step is served when this
        returns.
        """

    async def get_step(self, model: Any) -> int:
        """Returns the newest step: the number of completed training steps, after jobs that a stopped program
        left have ended.
        """

    async def delete_checkpoints(self, model: Any, keep_steps: Iterable[int]) -> list[int]:
        """Deletes all checkpoints except these and the newest; returns the deleted steps."""

    def openai_client(self, model: Any) -> openai.AsyncOpenAI:
        """Returns a client for the model's completions."""

    async def close(self) -> None:
        """Releases all resources of the backend."""


_METHODS = ("register", "train", "train_sft", "get_step", "delete_checkpoints", "openai_client", "close")


def as_backend(backend: Any) -> Backend:
    """Returns the backend itself where it has all methods; otherwise a face with them, for a backend that a
    program brings in the style of older releases. Raises TypeError for a class, ConfigurationError for what
    is no backend.
    """
    if isinstance(backend, type):
        raise TypeError(f"the backend is the class {backend.__name__}: make one, `{backend.__name__}()`")
    if all(hasattr(backend, name) for name in _METHODS):
        return cast("Backend", backend)
    face: Backend = import_module("art_extensions.compat.foreign_backend").ForeignBackend(backend)
    return face
