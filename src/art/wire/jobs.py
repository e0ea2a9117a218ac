"""The conversation about training jobs, by rewards and by examples.

    POST /art/models/{project}/{name}/train        TrainJobRequest -> JobInfo      idempotent by `job_id`
    POST /art/models/{project}/{name}/train_sft    SftJobRequest -> JobInfo        idempotent by `job_id`
    POST .../train_extension                       ExtensionJobRequest -> JobInfo  idempotent by `job_id`
    GET  /art/jobs?model=&state=&before=&limit=    -> JobList, newest first
    GET  /art/jobs/{job_id}                        -> JobInfo
    GET  /art/jobs/{job_id}/events?after=N         -> one JobEvent a line, from number N + 1 on

A client that lost its connection asks again with the last `number` it saw; nothing is run twice.

In a supervised job the server renders the messages; what is trained is what the assistant says in them,
token by token. All batches of a job make one step.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, FiniteFloat, model_validator

from art.wire.algorithm import Algorithm
from art.wire.records import GrownRecord, Strict
from art.wire.rollout_record import ContextRow, RolloutFailure, RolloutNotes, SheetRow
from art.wire.training import ComputeSpec, OptimizerSpec, TrainingKind


class GivenHistory(Strict):
    """A conversation in which not everything that the assistant says was sampled."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    samples: dict[int, str] = Field(default_factory=dict)
    """Indices of messages that were sampled, and their samples. What the assistant says in the others is
    rendered."""


class TrainTrajectory(GrownRecord):
    """One rollout: its reward and the samples (ledger rows) it is made of, in order."""

    LATER: ClassVar[frozenset[str]] = frozenset({"parts"})

    rollout: str
    """The client's name for the rollout, unique within the job; messages and the balance sheet use it."""
    reward: float | None
    """None: unscored, with `unscored_reason`; it leaves group statistics and loss."""
    unscored_reason: str | None = None
    samples: list[str]
    """Sample ids of the main history, then of each additional history."""
    turn_rewards: dict[str, FiniteFloat] = Field(default_factory=dict)
    """Sample -> what its turn earned of the rollout's reward; the last turn earned the rest."""
    turn_values: dict[str, FiniteFloat] = Field(default_factory=dict)
    """Sample -> the value of the state after its turn."""
    turn_states: dict[str, str] = Field(default_factory=dict)
    """Sample -> the environment's name of the state that it was sampled in; without one, its prompt's ids."""
    parts: dict[str, FiniteFloat] = Field(default_factory=dict)
    """The parts of its reward that the algorithm takes, by name."""
    given: list[GivenHistory] = Field(default_factory=list)
    """All histories with their messages, where what was not sampled is trained too."""
    notes: RolloutNotes = RolloutNotes()
    """The notes for the record of the step; training ignores them."""


JUDGE_PREFIX = "judge/"
"""Begins the names of a group's metrics that say how far its judge can be trusted."""


Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""How often a group counts in the loss: 2 is the group twice."""


class TrainGroup(GrownRecord):
    """Attempts at one scenario. `failed` counts rollouts that ended in an exception."""

    LATER: ClassVar[frozenset[str]] = frozenset({"weight", "replaced"})

    trajectories: list[TrainTrajectory]
    failed: int = Field(0, ge=0)
    failures: list[RolloutFailure] = Field(default_factory=list)
    """The descriptions of failed rollouts, for the record of the step; they may be fewer than `failed`."""
    judge: dict[str, FiniteFloat] = Field(default_factory=dict)
    """How far the judge of the rewards can be trusted (`judge/agreement` ...). The step's record keeps the
    mean over its groups, as `group_judge/agreement`."""
    weight: Weight = 1.0
    replaced: bool = False
    """True for a discarded group without a signal, in whose place another was rolled out."""


class RateSpec(Strict):
    """The factors of the learning rate of one step, known when its batch is."""

    rollouts_power: float = Field(default=0.0, allow_inf_nan=False)
    """(Number of trained rollouts) to this power."""
    by_reward_std: bool = False
    """The mean over the groups of their rewards' standard deviation (population), groups of one left out."""


class TrainJobRequest(Strict):
    job_id: str
    """Made by the client, so that a lost reply can be asked for again."""
    groups: list[TrainGroup]
    algorithm: Algorithm = Algorithm()
    optimizer: OptimizerSpec
    rate: RateSpec = RateSpec()
    compute: ComputeSpec = ComputeSpec()
    expected_step: int | None = None
    """Refuse when the model is at another step."""
    max_steps_off_policy: int | None = Field(default=None, ge=0)
    """Rollouts with a sample of an older step than so many before the current one are stale. None: the
    server's bound, which holds in any case."""
    discarded: list[TrainGroup] = Field(default_factory=list)
    """Groups that the program left out: on the sheet, and nowhere else."""


class BalanceSheet(Strict):
    """The fates of all rollouts of a step. `started` equals the sum of all fates, in rollouts and in tokens.

    Known fates: trained; failed (an exception), unscored (no reward), no_samples (nothing was sampled),
    stale (sampled too many steps ago), truncated (cut at its token limit, where the algorithm leaves those
    out), overlong (a sample longer than can be trained), damaged (the ledger's row of a sample is not what
    was written; that sample's tokens are not known), zero_advantage (its reward says nothing: as good as the
    mean), discarded (the program left its group out), replaced (its group had no signal, and another was
    rolled out in its place), untrainable (every sample was drawn from a distribution that the trainer does
    not compute), mismatch (the algorithm's masks dropped every token of the step, so no rollout was trained),
    context (tokens of samples that cannot be trained, in trained rollouts; no rollouts).
    """

    started: SheetRow = SheetRow()
    fates: dict[str, SheetRow] = Field(default_factory=dict)
    """The rollouts and tokens of each fate, by reason code."""
    forks: dict[str, int] = Field(default_factory=dict)
    """Conversations whose prompt did not extend the ids before it, by reason."""
    context: dict[str, ContextRow] = Field(default_factory=dict)
    """The samples behind the fates context and untrainable, by the reason why each is not trained
    (`art.wire.samples`). Their tokens sum to those of the two fates."""


StepPart = Literal["client", "sampling", "queue", "prepare", "gradient", "save", "load", "canary"]
STEP_PARTS: tuple[StepPart, ...] = get_args(StepPart)
"""What the wall clock of a step is divided into (`art.server.step_times`), in the order of a step."""


def part_metric(part: StepPart) -> str:
    """Returns the name of a part's metric: its seconds.

    >>> part_metric("sampling")
    'time/step_sampling_s'
    """
    return f"time/step_{part}_s"


IDENTICAL = "data/identical_rollouts"
"""The metric that counts trained rollouts of the same tokens as others of their group, where the advantages
add up to zero; only where there are any.
"""
TURN_RETURN = "reward/turn_return_mean"
"""The metric of an algorithm of turns: the mean of what a turn and the later ones earn, discounted."""
ONE_SEED_GROUPS = "data/one_seed_groups"
"""The metric that counts groups of one reply, because their requests had one seed; only where there are any.
"""


class TrainResultInfo(Strict):
    step: int
    metrics: dict[str, float]
    sheet: BalanceSheet
    checkpoint_path: str | None = None


JobState = Literal["queued", "running", "done", "failed"]


class JobInfo(Strict):
    job_id: str
    state: JobState
    model: str
    result: TrainResultInfo | None = None
    error: str | None = None
    error_code: str | None = None


class JobSummary(Strict):
    """One line of the list of jobs. Times in seconds since 1970."""

    job_id: str
    model: str
    kind: TrainingKind | None = None
    """Whether it learns from rewards or from examples; None: an older release wrote the job down."""
    state: JobState
    phase: str
    """The phase of the job as in `JobEvent`; for an ended job, its state."""
    done: int = 0
    total: int = 0
    """The progress of a running job in its phase."""
    step: int | None = None
    """The step that it made."""
    error_code: str | None = None
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None


MOST_LISTED_JOBS = 500


class JobListing(Strict):
    """Query of GET /art/jobs."""

    model: str | None = None
    """`project/name`."""
    state: JobState | None = None
    before: str | None = None
    """The id of a job: those that were asked for before it."""
    limit: int = Field(default=100, ge=1, le=MOST_LISTED_JOBS)


class JobList(Strict):
    """Reply of GET /art/jobs."""

    jobs: list[JobSummary]
    before: str | None = None
    """Ask again with this job's id for the jobs before it; None: there are none."""


class JobEvent(Strict):
    """`state`, `progress` (done of total tokens, of batches in a supervised job; phase), `result` or `error`;
    numbered from 1.
    """

    number: int
    type: Literal["state", "progress", "result", "error"]
    phase: str = ""
    """progress: queued, preparing, training, saving, loading, checking."""
    done: int = 0
    total: int = 0
    result: TrainResultInfo | None = None
    error: str | None = None
    error_code: str | None = None


LARGEST_SFT_BODY = 256 * 1024 * 1024
"""Bytes of a request."""

Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class SftConversation(Strict):
    """Messages and tools as OpenAI's chat API spells them."""

    name: str
    """The client's name for it; messages of errors use it."""
    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    samples: dict[int, str] = Field(default_factory=dict)
    """Samples that messages say they are, by index. One that is just that, of a model on the same base, is
    trained as it was sampled, to the id; all others are rendered."""


class SftJobRequest(Strict):
    VERB: ClassVar[str] = "train_sft"
    job_id: str
    """Made by the client, so that a lost reply can be asked for again."""
    conversations: list[SftConversation]
    batches: list[list[int]] = Field(min_length=1)
    """Indices into `conversations`, one list an update. An index may come in several batches."""
    learning_rates: list[Rate]
    """One a batch."""
    optimizer: OptimizerSpec
    """Its rate and its schedule are not used: each batch has a rate of its own."""
    expected_step: int | None = None
    """Refuse when the model is at another step."""

    @model_validator(mode="after")
    def _batches_fit(self) -> SftJobRequest:
        if len(self.batches) != len(self.learning_rates):
            raise ValueError(
                f"{len(self.learning_rates)} learning rates for {len(self.batches)} batches: give one a batch"
            )
        count = len(self.conversations)
        for number, batch in enumerate(self.batches):
            if not batch:
                raise ValueError(f"batch {number} is empty")
            for index in batch:
                if not 0 <= index < count:
                    raise ValueError(f"batch {number} names conversation {index} of {count}")
        return self


class ExtensionJobRequest(SftJobRequest):
    """A job on conversations of a kind that an extension gives, which says what is made of them."""

    VERB: ClassVar[str] = "train_extension"
    job: str
    """The kind: the name at the door for extensions."""
    algorithm: Algorithm
    options: dict[str, Any] = Field(default_factory=dict)
    """The kind's own."""
