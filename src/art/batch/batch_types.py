"""What enters a training batch (rows) and what leaves (arrays).

Letters: T = nodes of the token tree, E = loss entries, N = tokens of one sample, K = sets of candidates,
J = their ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from art.wire.jobs import BalanceSheet
from art.wire.samples import UntrainableReason
from art.wire.training import PLAIN_SAMPLING, SamplingSpec

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Untrainable:
    """The reason that a sample is only context: its logprobs are of no distribution that the trainer
    computes.
    """

    reason: UntrainableReason
    drawn: str
    """What it was drawn with: `temperature = 0.0`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRow:
    """One completion as the ledger recorded it.

    >>> row = SampleRow(
    ...     sample_id="s1", prompt_ids=[5, 6], completion_ids=[7, 8], completion_logprobs=[-0.1, -2.0]
    ... )
    >>> len(row.prompt_ids) + len(row.completion_ids)
    4
    """

    sample_id: str
    prompt_ids: Sequence[int]
    """The ids that the engine was given; at least one."""
    completion_ids: Sequence[int]
    """The ids that were sampled."""
    completion_logprobs: Sequence[float]
    """One per sampled id: natural log of the probability with which it was drawn, so at most 0."""
    rollout_id: str | None = None
    parent_id: str | None = None
    """The sample whose ids this prompt extends."""
    step: int | None = None
    """Adapter version that sampled it; None for the base model."""
    fork_reason: str | None = None
    """Why the prompt does not extend an earlier sample of its conversation, or None."""
    sampling: SamplingSpec = PLAIN_SAMPLING
    """The distribution that it was drawn from."""
    untrainable: Untrainable | None = None
    """Instead of `sampling`: it has no loss entries. Its ids are part of the prompts that extend them."""
    given: bool = False
    """Nobody sampled it: somebody wrote it for the assistant. It has no logprobs."""
    truncated: bool = False
    """It ended at its token limit, not by itself."""
    candidates: bytes = b""
    """The ids among which each token was drawn: a record of `art.wire.samples`. Empty: they are computed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutRow:
    """One rollout: its reward (None: unscored) and its samples in order."""

    rollout: str
    reward: float | None
    samples: Sequence[SampleRow]
    unscored_reason: str | None = None
    stale: bool = False
    """Sampled too many steps ago to be trained. Its reward counts in its group's statistics."""
    damaged: bool = False
    """Some of its samples cannot be read any more, and are not among `samples`. Its reward counts."""
    turn_rewards: Mapping[str, float] = field(default_factory=dict)
    """Sample -> what its turn earned of `reward`; the last turn earned the rest."""
    turn_values: Mapping[str, float] = field(default_factory=dict)
    """Sample -> the value of the state after its turn."""
    turn_states: Mapping[str, str] = field(default_factory=dict)
    """Sample -> the name of the state before it; without one, its prompt is its state."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """The parts of its reward that the algorithm takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupRow:
    """Rollouts at one scenario; `failed` of them ended in an exception and left no record."""

    rollouts: Sequence[RolloutRow]
    failed: int = 0
    discarded: bool = False
    """Left out by the program: it is on the sheet, and nowhere else."""
    replaced: bool = False
    """Left out for another group."""
    weight: float = 1.0
    """How often it counts in the loss."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenTree:
    """The prefix tree of id sequences, its nodes in depth-first order, children in first-seen order.

    Node q may attend to node k if and only if `k <= q < end_T[k]`; its position is `depth_T[q]`.

    The sequences [5, 6, 7, 8] and [5, 6, 7, 9]:

    >>> from art.batch.token_tree import build_tree
    >>> tree, paths = build_tree([np.array([5, 6, 7, 8]), np.array([5, 6, 7, 9])])
    >>> tree.tokens_T.tolist(), tree.parent_T.tolist()
    ([5, 6, 7, 8, 9], [-1, 0, 1, 2, 2])
    >>> tree.end_T.tolist(), tree.depth_T.tolist()
    ([5, 5, 5, 4, 5], [0, 1, 2, 3, 3])
    >>> [path.tolist() for path in paths]
    [[0, 1, 2, 3], [0, 1, 2, 4]]
    """

    tokens_T: IntArray
    """The id of each node."""
    parent_T: IntArray
    """Index of the token before it, -1 at a root."""
    end_T: IntArray
    """Index after its last descendant."""
    depth_T: IntArray
    """Number of tokens before it on its path: its position for RoPE."""
    images: Mapping[str, bytes] = field(default_factory=dict)
    """The PNG files of the images that negative ids stand for (`art.wire.samples`), by their names."""

    def __len__(self) -> int:
        return len(self.tokens_T)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CandidateSets:
    """Sets of ids, each once. Set k is `id_J[end_K[k - 1] : end_K[k]]`, in rising order.

    >>> sets = CandidateSets(end_K=np.array([2, 3], np.int32), id_J=np.array([5, 9, 5], np.int32))
    >>> len(sets), np.split(sets.id_J, sets.end_K[:-1])
    (2, [array([5, 9], dtype=int32), array([5], dtype=int32)])
    """

    end_K: IntArray
    id_J: IntArray

    def __len__(self) -> int:
        return len(self.end_K)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossEntries:
    """The loss entries: one per sampled token per sample, never merged.

    Prompt [5, 6] with the completions [7, 8] (advantage +1) and [7, 9] (advantage -1). The shared 7 is node
    2 of the tree above and is trained twice, once per sample:

    >>> from art.batch.build import loss_entries
    >>> rows = [
    ...     SampleRow(sample_id=name, prompt_ids=[5, 6], completion_ids=ids, completion_logprobs=[-0.5, -1.0])
    ...     for name, ids in (("a", [7, 8]), ("b", [7, 9]))
    ... ]
    >>> paths = [np.array([0, 1, 2, 3]), np.array([0, 1, 2, 4])]
    >>> entries = loss_entries(rows, paths, [1.0, -1.0], sequences=[0, 1])
    >>> entries.token_E.tolist(), entries.advantage_E.tolist()
    ([2, 3, 2, 4], [1.0, 1.0, -1.0, -1.0])
    """

    token_E: IntArray
    """Node that was sampled."""
    logprob_E: FloatArray
    """Its logprob when it was sampled; NaN where nobody sampled it."""
    advantage_E: FloatArray
    """The reward itself where the trainer computes the advantage."""
    weight_E: FloatArray
    """The weight of its term in the sum that `Batch.normalizer` divides; see `art.batch.aggregation`."""
    sequence_E: IntArray
    """Number of the rollout that sampled it, from 0; its entries lie in the order of sampling."""
    sampling_E: IntArray
    """Index into the batch's `sampling`."""
    teacher_E: FloatArray | None = None
    """Its logprob under the teacher, where a server gave one."""
    place_E: IntArray | None = None
    """Its place in its completion, from 0; None where no distribution depends on it."""
    candidates_E: IntArray | None = None
    """The number of its set in `candidates`, -1 where none was recorded; None: of no entry."""
    candidates: CandidateSets | None = None

    def __len__(self) -> int:
        return len(self.token_E)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedSample:
    """The source of some loss entries: a sample's lie together, in the order of its completion."""

    sample_id: str
    rollout: str
    group: int
    """Index in the job."""
    tokens: int
    """Its loss entries."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutFate:
    """The end of one rollout in a step, and what it weighed."""

    fate: str
    tokens: int
    """Sampled, over all its samples."""
    advantage: float | None
    """The mean over its trained tokens; None where the trainer computes it, and where there is none."""
    turn_returns: Mapping[str, float] = field(default_factory=dict)
    """Sample -> what its turn and the later ones earn, discounted; empty without an estimator of turns."""
    turn_advantages: Mapping[str, float] = field(default_factory=dict)
    """Sample -> the advantage of its turn; empty as well where the trainer computes it."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Batch:
    """All inputs of one training step, and the fate of every rollout."""

    tree: TokenTree
    entries: LossEntries
    sheet: BalanceSheet
    fates: list[list[RolloutFate]]
    """The fates of the rollouts of each group, discarded groups included; failed rollouts have none."""
    normalizer: float
    """What the sum of weighted entry losses is divided by."""
    sampling: Sequence[SamplingSpec] = (PLAIN_SAMPLING,)
    """The distributions that the batch was drawn from."""
    rewards: list[list[tuple[float, int]]] | None = None
    """See `TrainRequest.rewards`."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    samples: Sequence[TrainedSample] = ()
    """The samples in the order of the entries; none in a supervised job."""

    @property
    def empty(self) -> bool:
        """True when no token has an advantage: there is nothing to train."""
        return len(self.entries) == 0
