"""One training step: token tree and loss entries in, new weights and metrics out.

    pack -> (a pass before the first update) -> advantages -> for each minibatch: gradient, clip, AdamW

A program with a loop of its own asks for gradients batch by batch (`add_gradients`), and then for the update.

With several ranks each of them makes the same plan, computes its share of the micro-batches, and makes the
same update of the sum of all gradients (`art.training.ranks`).

Letters: E = loss entries.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import numpy as np
import torch

from art.batch.algorithms.facts import needs_first_pass, needs_reference, needs_sequences, update_count
from art.batch.batch_types import LossEntries, TokenTree
from art.errors import TrainingError
from art.training.critic import Critic
from art.training.device_memory import HalfBudgetRetry
from art.training.distributions import Distributions, follow_constraints, follow_penalties
from art.training.first_pass import (
    FirstScores,
    References,
    highest_entropies,
    reference_context,
    score_entries,
)
from art.training.losses.base import LossInputs, LossOutput
from art.training.losses.compose import Loss
from art.training.masked_rollouts import masked_rollouts, reweigh, without_rollouts
from art.training.minibatches import (
    EntryColumns,
    Ints,
    make_columns,
    minibatches,
    normalizer_of,
    take_entries,
)
from art.training.optimizer import (
    DropoutDraws,
    earlier_gradients,
    get_rng,
    has_finite_gradient,
    has_gradient,
    set_rng,
    step_optimizer,
)
from art.training.packing.runs import MicroBatch, Packing
from art.training.policy import EntryScores, Policy
from art.training.ranks.deal import Dealer, Share
from art.training.ranks.group import RankGroup
from art.training.ranks.sums import sum_gradients
from art.training.tally import Progress, Tally, TokenColumns, TokenRecord
from art.training.token_advantages import shape_advantages
from art.wire.training import TrainRequest


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Learner:
    """The parts that a step changes and uses."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    loss: Loss
    references: References
    critic: Critic | None = None
    entropy_coefficient: float = 0.0
    ranks: RankGroup = dataclasses.field(default_factory=RankGroup)


def train_step(
    learner: Learner,
    tree: TokenTree,
    entries: LossEntries,
    request: TrainRequest,
    *,
    learning_rate: float,
    token_budget: int,
    progress: Progress = lambda done, total: None,
) -> tuple[dict[str, float], TokenColumns | None]:
    """Accumulate gradients over micro-batches, clip, step; as often as the algorithm says. Returns metrics,
    and the record of the loss entries where the request asks for one.

    Raises TrainingError before an optimizer moves when loss or gradient are not finite, or when memory runs
    out at half the budget too.
    """
    step = BatchStep(learner, tree, entries, request, token_budget)
    updates = minibatches(entries, request.algorithm.updates)
    found = step.prepare()
    record = step.record(updates[: len(updates) // request.algorithm.updates.epochs])
    tally = Tally(len(updates), progress, record)
    for rows_E in updates:
        step.gradient(rows_E, tally)
        with step.ranks.agree():
            tally.updated(step.update(learning_rate, tally))
    record.complete(step.ranks)
    return {**tally.metrics(learning_rate), **found}, record.arrays(step.columns.advantage_E)


def add_gradients(
    learner: Learner,
    tree: TokenTree,
    entries: LossEntries,
    request: TrainRequest,
    *,
    token_budget: int,
    progress: Progress = lambda done, total: None,
) -> tuple[dict[str, float], TokenColumns | None]:
    """Adds a batch's gradient to the one that the parameters hold, or, where the request says so, only scores
    the batch. Nothing moves. Returns what `train_step` returns.

    Raises TrainingError, and leaves the gradient that was held, when loss or gradient are not finite, or
    when memory runs out at half the budget too.
    """
    added = AddedBatch(BatchStep(learner, tree, entries, request, token_budget), progress)
    with earlier_gradients(learner.optimizer, keep_new=added.backward):
        added.step.gradient(added.everything_E, added.tally, backward=added.backward)
        added.check_finite()
    return added.finish()


class AddedBatch:
    """A batch whose gradient is added to the one that is held, or that is only scored."""

    def __init__(self, step: BatchStep, progress: Progress) -> None:
        self.step, self.backward = step, step.request.gradient == "add"
        self.everything_E: Ints = np.arange(len(step.entries), dtype=np.int64)
        self._found = step.prepare()
        self._record = step.record([self.everything_E])
        self.tally = Tally(1, progress, self._record)

    def check_finite(self) -> None:
        """Raises TrainingError."""
        if not math.isfinite(self.tally.loss) or not has_finite_gradient(self.step.learner.optimizer):
            raise TrainingError(
                f"The loss is {self.tally.loss!r}, or its gradient is not finite; the batch was left out. "
                "Look at its advantages, weights and logprobs."
            )

    def finish(self) -> tuple[dict[str, float], TokenColumns | None]:
        """The metrics, and the record of the loss entries where the request asks for one."""
        self.tally.updated(None)
        self._record.complete(self.step.ranks)
        columns = self._record.arrays(self.step.columns.advantage_E)
        return {**self.tally.metrics(0.0), **self._found}, columns


class BatchStep:
    """The parts of a step. A budget that was too large stays halved for the rest of it."""

    columns: EntryColumns
    normalizer: float
    policy_waits = False
    """Whether the critic learns alone."""
    slopes_E: torch.Tensor | None
    """d loss / d logprob, where the loss of a cut sequence is differentiated before the micro-batches."""

    def __init__(
        self,
        learner: Learner,
        tree: TokenTree,
        entries: LossEntries,
        request: TrainRequest,
        token_budget: int,
    ) -> None:
        self.learner, self.tree, self.entries, self.request = learner, tree, entries, request
        self.algorithm, self.whole_normalizer = request.algorithm, request.normalizer
        policy, ranks = learner.policy, learner.ranks
        self.ranks = ranks
        masks = follow_constraints(tree, entries, request.sampling, policy.grammars, policy.head.vocab_size)
        self.drawn = Distributions(
            specs=request.sampling,
            sampling_E=entries.sampling_E,
            masks=masks,
            penalised=follow_penalties(tree, entries, request.sampling),
            candidates_E=entries.candidates_E,
            candidates=entries.candidates,
        )
        self.all_sampled = not np.isnan(entries.logprob_E).any()
        self.packed: tuple[int, Packing] | None = None
        self.dealer = Dealer(ranks.rank, ranks.world, pair_cost=policy.pair_cost, equal=policy.sharded)
        critic, spec = learner.critic, request.algorithm.critic
        if critic is not None and spec is not None:
            self.policy_waits = critic.learns_alone(spec, request.step)
        self.draws = DropoutDraws(act=policy.drops_out)
        self.retry = HalfBudgetRetry(token_budget, longest=int(tree.depth_T.max(initial=-1)) + 1)

    def attempts(self) -> Iterator[HalfBudgetRetry]:
        """Tries at a pass, each from the same random state."""
        rng = get_rng()
        for attempt in self.retry.attempts():
            set_rng(rng)
            yield attempt

    def prepare(self) -> dict[str, float]:
        """Compute everything that is fixed before the first update. Returns metrics of it."""
        policy, algorithm = self.learner.policy, self.algorithm
        columns = self.columns = make_columns(self.entries, dtype=policy.dtype, device=policy.device)
        if needs_reference(algorithm):
            with ExitStack() as stack:
                with self.ranks.agree():
                    context = reference_context(self.learner.references, algorithm, self.request.reference)
                    stack.enter_context(context)
                scores = self._first_pass()
            if algorithm.teacher is not None:
                columns.teacher_E = scores.logprobs_E
            else:
                columns.reference_E = scores.logprobs_E
        used = self.learner.entropy_coefficient
        metrics = {} if algorithm.entropy is None else {"loss/entropy_coefficient": used}
        unknown = not self.all_sampled
        if not needs_first_pass(algorithm) and not (unknown and update_count(algorithm) > 1):
            return metrics
        first = self._first_pass(self.learner.critic, entropies=algorithm.top_entropy is not None)
        if algorithm.ratio_to == "trainer":
            columns.proximal_E = first.logprobs_E
        if unknown:
            columns.sampled_E = columns.sampled_E.where(~columns.sampled_E.isnan(), first.logprobs_E)
        columns.value_E = first.values_E
        if algorithm.masked == "drop":
            metrics |= self._leave_out_masked(first)
        else:
            self.columns, found = shape_advantages(columns, algorithm, first, self.request.rewards)
            metrics |= found
        if algorithm.top_entropy is not None:
            assert first.entropies_E is not None
            counted_E = torch.as_tensor(self.entries.weight_E > 0, device=first.entropies_E.device)
            self.columns.kept_E, least = highest_entropies(
                first.entropies_E, algorithm.top_entropy, counted_E
            )
            metrics["loss/top_entropy_least"] = least
        return metrics

    def _leave_out_masked(self, first: FirstScores) -> dict[str, float]:
        """The advantages, weights and divisor of a batch without the rollouts that masks drop whole."""
        algorithm, columns = self.algorithm, self.columns
        masked = masked_rollouts(columns, algorithm, first.logprobs_E)
        rewards = without_rollouts(self.request.rewards or (), masked)
        columns, found = shape_advantages(columns, algorithm, first, rewards, masked)
        anew = reweigh(columns, self.entries, algorithm, rewards)
        self.columns, self.entries, self.whole_normalizer = anew.columns, anew.entries, anew.normalizer
        return {**found, "data/masked_rollouts": float(len(masked))}

    def needs_one_pass(self, budget: int) -> bool:
        """Returns whether one pass over the batch, by this adapter alone, is all that its gradient takes."""
        algorithm, everything_E = self.algorithm, np.arange(len(self.entries), dtype=np.int64)
        if needs_reference(algorithm) or needs_first_pass(algorithm) or update_count(algorithm) > 1:
            return False
        if algorithm.masked == "drop" or self.learner.critic is not None or self.draws.act:
            return False
        return not (needs_sequences(algorithm) and self._pack(everything_E, budget).cut_sequences)

    def record(self, updates: Sequence[Ints]) -> TokenRecord:
        """Returns an empty record of the entries. updates: those of each update of the first epoch."""
        return TokenRecord(
            self.entries.logprob_E,
            self.columns.sampled_E,
            updates,
            all_columns=self.request.records_tokens,
        )

    def gradient(self, rows_E: Ints, tally: Tally, *, backward: bool = True) -> None:
        """Computes the gradient of one update, of all ranks; or only the loss."""
        for attempt in self.attempts():
            with attempt as budget, torch.set_grad_enabled(backward):
                share = self.begin_update(rows_E, tally, budget)
                with self.ranks.agree():
                    for number, micro in share.micro_batches:
                        self.draws.seed(number)
                        self.accumulate(micro, tally, backward=backward)
                        self.learn_values(micro, tally)
                        tally.report_progress()
                    self.keep_pace(share, backward=backward)
        self.add_up(tally)

    def begin_update(self, rows_E: Ints, tally: Tally, budget: int) -> Share:
        """This rank's micro-batches of one update, which begins, or begins again."""
        self.learner.optimizer.zero_grad(set_to_none=True)  # of a try that failed half way
        if self.learner.critic is not None:
            self.learner.critic.zero_grad()
        self.normalizer = normalizer_of(self.entries, rows_E, self.whole_normalizer, self.algorithm)
        with self.ranks.agree():
            share, self.slopes_E = self.dealer.deal(self._pack(rows_E, budget)), None
        self.draws.begin()
        tally.start(share)
        if needs_sequences(self.algorithm) and share.packing.cut_sequences:
            self.slopes_E = self._slopes(share, rows_E, tally)
        return share

    def keep_pace(self, share: Share, *, backward: bool = True) -> None:
        """Forwards as often as the other ranks do, where they gather the base together, and adds nothing."""
        policy, critic = self.learner.policy, self.learner.critic
        learns = backward and not self.policy_waits
        for micro in share.padded:
            with torch.set_grad_enabled(learns):
                scores = policy.entry_scores(micro, self.drawn)[0]
            if learns:
                (scores.logprobs_E.sum() * 0.0).backward()
            if critic is not None and critic.adapter is not None:
                with critic.adapter.computing():
                    (critic.own_values(policy, micro).sum() * 0.0).backward()
        self.draws.end()

    def add_up(self, tally: Tally) -> None:
        """Adds up what ranks have apart of this update: its totals and its gradients."""
        tally.add_up(self.ranks)
        groups = self.learner.optimizer.param_groups
        sum_gradients(self.ranks, (one for group in groups for one in group["params"]))
        if self.learner.critic is not None:
            sum_gradients(self.ranks, self.learner.critic.parameters())

    def accumulate(self, micro: MicroBatch, tally: Tally, *, backward: bool) -> None:
        """Adds one micro-batch's gradient. A frame of its own: where memory ends, nothing holds the loss."""
        learns = backward and not self.policy_waits
        with torch.set_grad_enabled(learns):
            loss = self.loss(micro, tally)
        if learns:
            loss.backward()

    def learn_values(self, micro: MicroBatch, tally: Tally) -> None:
        """Adds one micro-batch's gradient of the value model, where the critic is one."""
        critic = self.learner.critic
        if critic is not None and critic.adapter is not None:
            with critic.adapter.computing():
                value = self._value_loss(micro, critic.own_values(self.learner.policy, micro))
                value.loss.backward()
            tally.add_metrics(value.metrics)

    def loss(self, micro: MicroBatch, tally: Tally) -> torch.Tensor:
        """One micro-batch's share of the loss, or, where the slopes are known, of what has its gradient."""
        differentiated = self.algorithm.entropy is not None
        scores, plan = self.learner.policy.entry_scores(micro, self.drawn, entropies=differentiated)
        return self.loss_of(scores, micro, tally, pairs=plan.pairs)

    def loss_of(self, scores: EntryScores, micro: MicroBatch, tally: Tally, *, pairs: int) -> torch.Tensor:
        """The same of scores that were computed; `pairs`: the attention pairs that they cost."""
        inputs = self._inputs(scores.logprobs_E, micro.entry_E)
        if self.slopes_E is None:
            output = self.learner.loss(inputs)
            total = output.loss
            tally.add_loss(micro.entry_E, inputs, output)
        else:
            rows_E = torch.as_tensor(micro.entry_E, device=self.slopes_E.device)
            total = (scores.logprobs_E * self.slopes_E[rows_E]).sum()
        if self.algorithm.entropy is not None:
            bonus = self.learner.entropy_coefficient * inputs.mean(scores.entropies_E)
            total = total - bonus
            tally.add_metrics({"loss/train": -bonus, "loss/entropy_bonus": bonus})
        critic, spec = self.learner.critic, self.algorithm.critic
        if critic is not None and critic.adapter is None and spec is not None:
            values_E = critic.values(scores.hidden_PD, spec.trunk)[scores.predictor_E]
            value = self._value_loss(micro, values_E)
            total = total + value.loss
            tally.add_metrics(value.metrics)
        tally.add(micro, scores.entropies_E, pairs=pairs)
        return total

    def update(self, learning_rate: float, tally: Tally) -> float | None:
        """Move the weights. Returns the gradient's norm; None where masks dropped every entry, or all that
        the others were compared with, so that only the momentum of earlier steps would move them: nothing
        moves.
        """
        spec, critic = self.request.optimizer, self.learner.critic
        if (tally.all_dropped or self.algorithm.masked == "drop") and not has_gradient(
            self.learner.optimizer
        ):
            self.learner.optimizer.zero_grad(set_to_none=True)
            if critic is not None:
                critic.zero_grad()
            return None
        norm = 0.0
        if not self.policy_waits:
            norm = step_optimizer(self.learner.optimizer, spec, learning_rate=learning_rate, loss=tally.loss)
        if critic is not None and self.algorithm.critic is not None:
            tally.add_metrics({"loss/critic_grad_norm": critic.step(self.algorithm.critic)})
        return norm

    def _value_loss(self, micro: MicroBatch, values_E: torch.Tensor) -> LossOutput:
        spec, columns = self.algorithm.critic, self.columns
        assert spec is not None and columns.value_E is not None and columns.return_E is not None
        rows_E = torch.as_tensor(micro.entry_E, device=values_E.device)
        inputs = columns.value_inputs(values_E, micro.entry_E, normalizer=self.normalizer)
        return Critic.loss(values_E, columns.value_E[rows_E], columns.return_E[rows_E], inputs, spec)

    def _slopes(self, share: Share, rows_E: Ints, tally: Tally) -> torch.Tensor:
        """d loss / d logprob of every entry, for a loss that looks at sequences which were cut.

        The loss of all entries at once is differentiated by their logprobs; the second pass then only has to
        multiply. Both draw the same dropout.
        """
        first = score_entries(
            self.learner.policy, share, self.drawn, self.columns, ranks=self.ranks, draws=self.draws
        )
        rows = torch.as_tensor(rows_E, device=first.logprobs_E.device)
        leaf_E = first.logprobs_E[rows].requires_grad_()
        with torch.enable_grad():
            inputs = self._inputs(leaf_E, rows_E)
            output = self.learner.loss(inputs)
        if self.ranks.is_leader:  # every rank has the same
            tally.add_loss(rows_E, inputs, output)
        slopes_E = torch.zeros_like(first.logprobs_E)
        slopes_E[rows] = torch.autograd.grad(output.loss, leaf_E)[0]
        return slopes_E

    def _pack(self, rows_E: Ints, budget: int) -> Packing:
        """The micro-batches of some entries, or of all: those are packed once for all passes over them."""
        policy, whole_sequences = self.learner.policy, needs_sequences(self.algorithm)

        def pack(entries: LossEntries) -> Packing:
            def pack_within(room: int) -> Packing:
                return policy.pack(self.tree, entries, room, whole_sequences=whole_sequences)

            # Masks belong to micro-batches: with dropout, these are the same on any number of ranks.
            return pack_within(budget) if self.draws.act else self.dealer.plan(pack_within, budget)

        if len(rows_E) != len(self.entries):
            packing = pack(take_entries(self.entries, rows_E))
            mine = [dataclasses.replace(one, entry_E=rows_E[one.entry_E]) for one in packing.micro_batches]
            return dataclasses.replace(packing, micro_batches=tuple(mine))
        if self.packed is None or self.packed[0] != budget:
            self.packed = budget, pack(self.entries)
        return self.packed[1]

    def _inputs(self, logprobs_E: torch.Tensor, entry_E: Ints) -> LossInputs:
        columns, ratio = self.columns, self.algorithm.ratio
        inputs = columns.inputs(logprobs_E, entry_E, normalizer=self.normalizer, ratio=ratio)
        # One update: the policy before it is the one that computes now.
        if not self.all_sampled:
            inputs = inputs.with_own_logprobs()
        if self.algorithm.ratio_to == "trainer" and columns.proximal_E is None:
            return dataclasses.replace(inputs, proximal_logprobs_E=logprobs_E.detach())
        return inputs

    def _first_pass(self, critic: Critic | None = None, *, entropies: bool = False) -> FirstScores:
        for attempt in self.attempts():
            with attempt as budget:
                with self.ranks.agree():
                    share = self.dealer.deal(self._pack(np.arange(len(self.entries)), budget))
                first = score_entries(
                    self.learner.policy,
                    share,
                    self.drawn,
                    self.columns,
                    critic,
                    ranks=self.ranks,
                    entropies=entropies,
                )
        return first
