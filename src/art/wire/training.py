"""The conversation between the server and a trainer worker.

The worker reads one line when it starts, a `TrainerConfig`. Then control is JSON, and a batch is one
safetensors body. Its routes (all under a bearer key, loopback only):

    GET  /health            -> TrainerHealth
    POST /open              OpenRequest -> OpenReply            make or restore LoRA and optimizer of a model
    POST /train             safetensors (see BatchArrays)       -> one JSON object a line: TrainEvent
    POST /step              StepRequest -> StepReply            move the weights by what is held
    POST /tokens            TokensRequest -> safetensors        the record of a batch's loss entries (below)
    POST /save              SaveRequest -> SaveReply            write a checkpoint folder that must not exist
    POST /score             ScoreRequest -> ScoreReply          logprobs of given ids: canary, parity gate
    POST /probe             ProbeRequest -> ProbeReply          a LoRA to compare engine and trainer with
    POST /close             CloseRequest -> {}                  forget a model

A request that is refused before anything ran (wrong key, unknown model, another step, a batch that is
none, an unknown loss) is an HTTP error with `{"error": ErrorBody}`, whose `type` is the name of the
class in `art.errors`. A step that fails while it runs ends its stream with an `error` event, `code`
being that name; adapter and optimizer are unchanged. The same batch for the same (model, step, update)
sent again, while it runs or after, gets the same events and trains nothing twice. A model in the middle
of a step of several updates cannot be saved: open its checkpoint again to give the step up.

A batch with `gradient` "add" moves nothing: its gradient is added to what is held of the batches before it,
and `/step` moves the weights by the sum. One with `update` 0 begins anew. Gradients are in memory alone: a
worker that starts again, or opens the model again, holds none, and refuses what counts on earlier batches.

The batch is the token tree of all samples of a step (depth-first order, `end`, see
docs/internals/architecture.md):

    tokens_T  int32  the id of each node              parent_T int32  index of the token before it, or -1
    end_T     int32  index after its last descendant   depth_T  int32  its position (RoPE)
    entry_token_E     int32  node that was sampled     entry_logprob_E  float32  logprob when sampled
    entry_advantage_E float32                          entry_weight_E   float32
    entry_sequence_E  int32  number of its rollout     entry_sampling_E int32  index into `request.sampling`
    entry_teacher_E   float32 (optional)  logprob under the teacher
    entry_place_E     int32 (where a distribution depends on it)  place in its completion, from 0
    entry_candidates_E int32 (where the sampler recorded any)  number of its set of candidates, or -1
    candidates_end_K  int32  index after its last id   candidates_id_J  int32  ids, rising in each set
    image_bytes_I     uint8  (where ids are negative) the PNG files that these stand for, one after the other
    image_end_M       int32  index after the last byte of each (`art.wire.samples` tells their names)

An entry with a set of candidates was drawn from those ids, whatever top_k, top_p and min_p leave under
the trainer's policy (arXiv:2512.02556, "keep sampling mask").

A logprob is NaN where nobody sampled the token (somebody wrote it for the assistant): the trainer's own,
before the step's first update, takes its place. Entries lie in the order in which each rollout sampled
them. The header's metadata holds `request`: the JSON of a `TrainRequest`.

The record (`TOKEN_COLUMNS`, where `TrainRequest.records_tokens`) has one value for each loss entry, in the
order of the batch, as it was when the entry was trained first: in the step's first update, or in that of its
minibatch in the first epoch. It is kept until the model's next batch, or until the model is closed; then,
and where none was asked for, the answer is 404 with code `no_token_record`. Workers of earlier releases have
no such route. The server writes it into a file with further columns and a header: `TOKEN_FILE`.

Worked example. Prompt [5, 6], two completions [7, 8] and [7, 9], advantages +1 and -1:

    tokens 5 6 7 8 9    parent -1 0 1 2 2    end 5 5 5 4 5    depth 0 1 2 3 3
    entries (token, advantage): (2, +1) (3, +1) (2, -1) (4, -1)   the shared 7 is trained twice
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, FiniteFloat, model_validator
from pydantic.dataclasses import dataclass

from art.wire.algorithm import Algorithm
from art.wire.records import Bits, GrownRecord, MaybeNaN, Strict
from art.wire.sampling import TRUNCATING, DistributionParameters


class LoraSpec(Strict):
    """The adapter's shape."""

    r: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    targets: list[str] | Literal["all-linear"] = "all-linear"
    """Last components of module names. `all-linear`, alone or among others: every linear layer of the decoder
    but its routers, which the trainer spells out in the checkpoint. `experts`: the weights of all experts.
    """
    use_rslora: bool = False
    """Scale by alpha / sqrt(r) instead of alpha / r (Kalajdzievski, arXiv 2312.03732)."""


OptimizerName = Literal["adamw", "adamw_8bit", "muon"]


class OptimizerSpec(GrownRecord):
    """An optimizer; the rate is constant within a step and follows the schedule from step to step."""

    LATER: ClassVar[frozenset[str]] = frozenset({"name", "momentum"})

    name: OptimizerName = "adamw"
    """adamw_8bit: AdamW whose moments are 8-bit numbers with a scale for each block (Dettmers et al.,
    arXiv:2110.02861). muon: matrices move by their orthogonalized momentum (Jordan 2024), scaled to the size
    of AdamW's updates (Liu et al., arXiv:2502.16982); what is no matrix has AdamW."""
    learning_rate: Annotated[float, Field(gt=0)] | None
    """None: the value that the literature gives for the model's size."""
    betas: tuple[float, float] = (0.9, 0.99)
    """AdamW's."""
    eps: float = 1e-8
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Muon's."""
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of a linear rise to the rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the rate goes on: as it is, or falling to the last of `total_steps`."""
    total_steps: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _a_fall_needs_an_end(self) -> OptimizerSpec:
        if self.schedule != "constant" and (self.total_steps or 0) <= self.warmup_steps:
            raise ValueError(
                f"schedule {self.schedule!r} with total_steps {self.total_steps!r} and warmup_steps "
                f"{self.warmup_steps!r}: a falling rate needs the run's number of steps, above the warm-up's"
            )
        return self


RecordTokens = Literal["auto", "all", "none"]


class ComputeSpec(GrownRecord):
    """The computation of a step. Only `max_length` changes the result, because it leaves out longer
    samples.
    """

    LATER: ClassVar[frozenset[str]] = frozenset({"record_tokens"})

    max_length: int | None = Field(default=None, ge=1)
    """Tokens forwarded at once, and of the longest sample that is trained: a rollout with a longer one is
    overlong. None: what memory allows."""
    logit_rows: int | None = Field(default=None, ge=1)
    """At most so many rows of logits exist at once. None: as many as 64 MiB hold."""
    plot: bool = False
    """Draw the step's token tree into a PNG in the model's folder, `packed_tensors_plot_<step>.png`."""
    record_tokens: RecordTokens = "auto"
    """Which loss entries to record, in `steps/<step>/tokens.safetensors` of the model's folder. auto: all, or
    of a step with more than 200,000 whole groups, drawn by a hash of job and group."""


TOKEN_COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "logprob": "float32",
        "entropy": "float16",
        "advantage": "float32",
        "ratio": "float32",
        "clipped": "bool",
        "masked": "bool",
    }
)
"""The trainer's columns and their numpy types. logprob: under the weights that were trained, in the
distribution that the token was drawn from. entropy: of the model's own distribution, in nats. advantage: as
the loss had it, after KL penalties, GAE or a teacher. ratio: to the sampler or the proximal policy, at the
algorithm's level. clipped: the loss's clip acted on it. masked: a mismatch mask dropped it."""

TOKEN_FILE = "tokens.safetensors"
"""The file in `steps/<step>/` of the model's folder, the step being the one that was made. It has the columns
of `TOKEN_COLUMNS`, and `PLACE_COLUMNS`; in the metadata `header`: the JSON of a `TokenFileHeader`."""

PLACE_COLUMNS = ("rollout", "sample", "place")
"""Unsigned integers as narrow as they can be: indices into the header's lists, and the token's place in its
completion, from 0."""


class TokenFileHeader(Strict):
    """The lists that join the entries of a file with the ledger and with the step's rollouts.

    Fields of a later release are left out when it is read.
    """

    model_config = ConfigDict(extra="ignore")

    version: int = 1
    """Another one is of a format that older readers do not know."""
    job_id: str
    step: int
    """The one that was made."""
    entries: int
    """The loss entries of the whole step; the file has fewer where only some groups are recorded."""
    samples: list[str]
    """Ids in the ledger; of a text that nobody sampled, a name of the job's own."""
    rollouts: list[str]
    """Names that are unique in the job."""
    groups: list[int]
    """The index in the job of each rollout's group."""


Sharding = Literal["none", "fsdp"]
COMPUTED_FILE = "computed.json"
"""The file in `steps/<step>/` that says how the step was computed: the JSON of a `ComputedStep`."""
REQUEST_FILE = "request.json.gz"
"""The file in `steps/<step>/` with the job's whole request, where the server keeps it."""


class ComputedStep(Strict):
    """The conditions of a step beside its request, its samples and the checkpoint before it.

    Fields of a later release are left out when it is read.
    """

    model_config = ConfigDict(extra="ignore")

    versions: dict[str, str]
    """The versions of ART and of the libraries that compute."""
    trainer: dict[str, Any]
    """The trainer's `TrainerConfig`, without its key; with the device and dtype that it chose, once known."""
    ranks: int = 1
    sharding: Sharding = "none"
    oldest: int = 0
    """Rollouts with a sample of an earlier step were stale."""
    max_length: int | None = None
    """Longer conversations were left out, where the step learned from conversations."""


RATE_BY_SIZE = "loss/learning_rate_by_size"
"""The metric that says which rate the literature gives for the model's size, whatever the step's own was."""
TrainingKind = Literal["rl", "sft", "preference"]
"""What a step learns from: rewards, examples, or preferences."""

GradientUse = Literal["step", "add", "none"]
"""What becomes of a batch's gradient. step: it moves the weights. add: it is held, and added to that of the
batches before. none: the batch is only scored."""


MaskedBy = Literal["builtin", "vllm-guidance"]
"""What decided which ids a constraint allowed. They differ in added tokens that the tokenizer does not call
special: text to vLLM, and never text to the builtin engine."""


@dataclass(kw_only=True, slots=True, unsafe_hash=True, config=ConfigDict(extra="forbid"))
class SamplingSpec(DistributionParameters):
    """The distribution that completions were drawn from; it is not changed once it is made."""

    masked_by: MaskedBy = "builtin"

    def __post_init__(self) -> None:
        if self.temperature == 0 or self.min_p == 1:
            raise ValueError("a greedy sample is of no distribution that could be trained")
        if any(token < 0 for token, _ in self.logit_bias):
            raise ValueError("logit_bias has a negative id")

    @property
    def by_place(self) -> bool:
        """Returns whether a token's distribution depends on the completion before it."""
        return bool(self.constraint is not None or self.min_tokens or self.penalised)

    @property
    def truncates(self) -> bool:
        """Returns whether it leaves ids out by their probabilities."""
        return any(getattr(self, name) != default for name, default in TRUNCATING)


PLAIN_SAMPLING = SamplingSpec()
"""The model's own distribution."""


class OpenRequest(Strict):
    model: str
    """`project/name`, the key of the model in all later calls."""
    lora: LoraSpec | None
    """None: no adapter, all weights are trained."""
    checkpoint: str | None = None
    """Folder to restore weights, optimizer and RNG from; None: fresh ones that compute what the base does."""
    seed: int = 0


class OpenReply(Strict):
    model: str
    step: int
    trainable_parameters: int


class TrainRequest(Strict):
    model: str
    step: int
    """The step this batch starts from; refused when the worker is at another one."""
    update: int = Field(default=0, ge=0)
    """Its number among the batches that make up one step, or whose gradients are held; refused when another
    one is next."""
    advance: bool = True
    """False: further batches of the same step follow, and the worker stays at `step`."""
    gradient: GradientUse = "step"
    kind: TrainingKind = "rl"
    """When it is not that of the step before, AdamW starts with fresh moments: the size of another kind of
    gradient says nothing about this one's.
    """
    algorithm: Algorithm = Algorithm()
    optimizer: OptimizerSpec
    normalizer: float = Field(gt=0)
    """What the sum of weighted entry losses is divided by (known before the first micro-batch)."""
    sampling: list[SamplingSpec] = Field(default_factory=lambda: [PLAIN_SAMPLING])
    rewards: list[list[tuple[FiniteFloat, Annotated[int, Field(ge=-1)]]]] | None = None
    """The scored rollouts of each group: reward, and number (`entry_sequence_E`) or -1 where only the reward
    counts. Set where the trainer computes the advantages anew: a KL is taken off the rewards, or rollouts
    that masks drop have no vote."""
    reference: str | None = None
    """Folder of the reference policy's or the teacher's adapter: a checkpoint, or for a reference any LoRA
    that PEFT wrote. None: the base without one."""
    rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """The learning rate of this update; None: the optimizer's, by its schedule."""
    rate_factor: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """What the learning rate is multiplied by in this step."""
    compute: ComputeSpec = ComputeSpec()

    @property
    def records_tokens(self) -> bool:
        """Returns whether the trainer records its loss entries: those of rewards, unless told not to; and
        always where that is all that a batch leaves behind.
        """
        return self.gradient != "step" or (self.kind == "rl" and self.compute.record_tokens != "none")


class StepRequest(Strict):
    """One update by the sum of the gradients that are held."""

    model: str
    step: int
    """The step this update starts from; refused when the worker is at another one."""
    batches: int = Field(ge=0)
    """How many batches' gradients are held; refused when it is another number."""
    optimizer: OptimizerSpec
    rate: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """The learning rate."""


class StepReply(Strict):
    step: int
    """The step that now exists in the worker's memory, not yet saved."""
    grad_norm: float
    """The norm of the sum before it was clipped."""


class TokensRequest(Strict):
    model: str
    step: int
    """The step that the batch started from."""


class TrainEvent(Strict):
    """`progress` (done of total forwarded tokens), then exactly one `result` or `error`."""

    type: Literal["progress", "result", "error"]
    done: int = 0
    total: int = 0
    step: int | None = None
    """result: the step that now exists in the worker's memory, not yet saved: request.step + 1, or
    request.step when more of it follows, or when there was nothing to move the weights
    (`data/step_num_gradient_steps` 0)."""
    metrics: dict[str, float] = Field(default_factory=dict)
    message: str = ""
    code: str = ""


class SaveRequest(Strict):
    model: str
    path: str


class SaveReply(Strict):
    step: int
    files: list[str]


class ScoreRequest(Strict):
    model: str
    rows: list[list[int]]
    """Each row at least two ids."""


class ScoreReply(Strict):
    step: int
    logprobs: list[list[MaybeNaN]]
    """`len(row) - 1` numbers a row: the logprob of each id given those before it, temperature 1."""


class FoundFolder(Strict):
    """A folder that the leader of several ranks will name, and where another rank's machine has it."""

    leaders: str
    own: str


class ProbeRequest(Strict):
    lora: LoraSpec | None
    """The shape of the probe; None: all weights are trained, and there is none."""
    path: str
    """A folder that must not exist: the probe is written there as a PEFT adapter."""
    rows: list[list[int]]
    """Each row at least two ids."""
    seed: int = 0


class ProbeReply(Strict):
    """Logprobs as those of `ScoreReply`."""

    base: list[list[float]]
    """The logprobs of the base model."""
    probe: list[list[float]] | None = None


class CloseRequest(Strict):
    model: str


class TrainerHealth(Strict):
    base_model: str
    device: str
    dtype: str
    models: dict[str, int] = Field(default_factory=dict)
    """Open models and their steps."""
    busy: bool = False
    rank: int = 0
    rendezvous: int | None = None
    """The port at which the leader of several ranks is met by the others; None: not such a leader."""


class RankSpec(Strict):
    """One process's place among the ranks of a trainer."""

    rank: int = Field(ge=0)
    """0: the leader, who answers the server."""
    world: int = Field(ge=2)
    """How many there are."""
    local_rank: int = Field(default=0, ge=0)
    """Its number on its machine: the GPU it takes."""
    rendezvous: str | None = None
    """`host:port` of the leader; None: this is the leader."""
    sharding: Sharding = "none"
    """fsdp: each rank keeps a part of the base model, and layers are gathered when they compute."""
    deadline: float = Field(default=600.0, gt=0)
    """Seconds that a rank waits for the others; then all are started again."""


class TrainerConfig(Strict):
    """The configuration of a trainer worker: one line of JSON on its standard input; the key is on no command
    line.

    `python -m art.training.worker` answers with one line on standard output: `{"ready": true, "port": 41234}`
    once it serves, or `{"ready": false, "error": "..."}`. It ends when its standard input ends.
    """

    base_model: str
    """The name that checkpoints and health carry."""
    model_path: str | None = None
    """Folder or hub name to load the weights from; None: `base_model` itself."""
    bits: Bits = 16
    """4 or 8: the base model's linear layers are quantized, and only a LoRA is trained."""
    key: str = Field(min_length=16, repr=False)
    """Bearer key of every route."""
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    """0 chooses a free one."""
    device: str = "auto"
    """auto: the first GPU if there is one, else the CPU."""
    dtype: Literal["auto", "float32", "bfloat16", "float64"] = "auto"
    """auto: float32 on a CPU, bfloat16 on a GPU."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of torch; None: one for a small model, otherwise torch's own choice."""
    token_budget: int | None = Field(default=None, ge=1)
    """Tokens forwarded at once; memory follows it. A longer single path is forwarded whole. None: as many as
    the memory plan allows, at most 8192 on a CPU and 32768 on a GPU.
    """
    attention: Literal["auto", "rectangles", "flex", "dense"] = "auto"
    """auto: rectangles on a CPU, FlexAttention on CUDA, a dense mask where these fail their check."""
    checkpoint_activations: Literal["auto", "on", "off"] = "auto"
    """on: layers are computed twice instead of kept. auto: when memory is too small otherwise."""
    accelerator: Literal["auto", "none", "liger", "unsloth"] = "auto"
    """auto: liger-kernel on CUDA where it is installed."""
    shared_passes: bool = True
    """Gradients that are asked for at the same time, of several LoRAs on this base, are computed in one
    forward and backward pass: each to about 1e-6 as alone. False: one after the other, each to the last bit
    as alone.
    """
    gang: RankSpec | None = None
    """None: this process is the whole trainer."""
