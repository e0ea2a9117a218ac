"""The trainer: one base model in memory, any number of open models (a LoRA, its optimizer and its RNG) on it.

An open model goes to a checkpoint and comes back from one. A step that fails after its first update leaves
nothing behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from art.batch.algorithms.facts import update_count
from art.batch.batch_types import LossEntries, TokenTree
from art.errors import (
    ARTError,
    CheckpointError,
    ConfigurationError,
    GradientsLostError,
    NotFoundError,
    TokenMismatchError,
    TrainingError,
)
from art.training.checkpoint import (
    SavedCritic,
    TokenizerFiles,
    TrainerState,
    begin_checkpoint,
    content_of,
    read_checkpoint,
)
from art.training.critic import VALUE_SEED, Critic, ValueAdapter
from art.training.device_memory import MemoryPeak
from art.training.first_pass import References
from art.training.known_footprints import KnownFootprints
from art.training.lora import is_plain_adapter, read_plain_adapter
from art.training.lora_product import NotSharedError
from art.training.losses.registry import make_loss
from art.training.memory_plan import LARGEST, MEGABYTE, Checkpointing, MemoryPlan, MemoryPlanner
from art.training.open_model import OpenModel, right_moments, unchanged_on_failure
from art.training.optimizer import (
    Moments,
    get_rng,
    rate_at,
    rate_by_size,
    seeded_rng,
    set_rng,
    step_optimizer,
)
from art.training.policy import Policy
from art.training.ranks.group import RankGroup
from art.training.shared_pass import SharedBatch, add_gradients_together
from art.training.step import BatchStep, Learner, add_gradients, train_step
from art.training.tally import Progress, TokenColumns
from art.training.weights import Weights, probe_weights
from art.wire.models import ManifestEntry
from art.wire.training import (
    RATE_BY_SIZE,
    LoraSpec,
    OptimizerName,
    ProbeReply,
    StepReply,
    StepRequest,
    TrainRequest,
)


class AskedBatch(NamedTuple):
    """The arguments of `Trainer.train`."""

    tree: TokenTree
    entries: LossEntries
    request: TrainRequest
    progress: Progress


class Trainer:
    """The trainer. It is not thread-safe: make one call at a time. Calls for different models may alternate
    freely.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        token_budget: int | None = 8192,
        checkpointing: Checkpointing = "auto",
        ranks: RankGroup | None = None,
        known: KnownFootprints | None = None,
    ) -> None:
        """`token_budget` None: what the memory plan of each step allows. `ranks`: this trainer and those of
        other processes are one; each of them is called with the same. `known`: what earlier trainers counted
        for their plans.
        """
        self.policy = policy
        self.ranks = ranks or RankGroup()
        self._planner = MemoryPlanner(
            policy, token_budget=token_budget, checkpointing=checkpointing, known=known
        )
        self._score_budget = token_budget or LARGEST["cpu"]
        self._weights = Weights(policy)
        self._tokenizer = TokenizerFiles(policy.source)
        self._open: dict[str, OpenModel] = {}
        self._opened = 0

    @property
    def steps(self) -> Mapping[str, int]:
        """Open models and their steps."""
        return {name: model.step for name, model in self._open.items()}

    def open(self, name: str, lora: LoraSpec | None, *, seed: int = 0, checkpoint: Path | None = None) -> int:
        """Make a fresh LoRA, or train all weights (None), or restore either. An open model of that name is
        forgotten. Returns the step.

        Raises CheckpointError (nothing is changed), ConfigurationError (unknown LoRA targets, a missing
        optimizer).
        """
        lora = self._weights.resolve(lora)
        state = None
        if checkpoint is not None:
            state = self._read(checkpoint, lora, seed)
            if self._weights.resolve(state.lora) != lora:
                raise CheckpointError(
                    f"The checkpoint {str(checkpoint)!r} holds {_spelled(state.lora)}, not {_spelled(lora)}."
                )
        opened = self._open.get(name)
        if opened is not None and state is not None and checkpoint is not None and opened.content is not None:
            if opened.differs_in_step_alone(state, checkpoint, self.policy.name):
                opened.forget_gradients()
                opened.step = state.step
                return opened.step
        model = self._attach(lora, seed)
        if state is not None and checkpoint is not None:
            try:
                self._weights.load(model.adapter, checkpoint)
                model.restore(state, checkpoint, self._make_critic)
                model.content = self._content(checkpoint)
            except ARTError:  # CheckpointError, or its optimizer is of a library that is missing
                self._remove(model)
                raise
        self._forget(name)
        self._open[name] = model
        return model.step

    def _content(self, checkpoint: Path) -> dict[str, ManifestEntry] | None:
        """The files of a checkpoint that holds what is in memory. None for a plain adapter, whose moments are
        nowhere; and for one of several ranks, of which all are to do the same.
        """
        alone = self.ranks.world == 1
        return content_of(checkpoint) if alone and not is_plain_adapter(checkpoint) else None

    def _read(self, checkpoint: Path, lora: LoraSpec | None, seed: int) -> TrainerState:
        if is_plain_adapter(checkpoint):
            return read_plain_adapter(checkpoint, self.policy, lora, seed=seed)
        return read_checkpoint(
            checkpoint, base_model=self.policy.name, base_fingerprint=self.policy.fingerprint
        )

    def train(
        self,
        tree: TokenTree,
        entries: LossEntries,
        request: TrainRequest,
        progress: Progress = lambda done, total: None,
    ) -> dict[str, float]:
        """One step from `request.step` to the next, or one of its updates, in memory. When it raises,
        adapter, moments and RNG are as before; so they are, step included, where the mismatch masks dropped
        every entry: `data/step_num_gradient_steps` is 0 then.

        Raises what `check` raises, and TrainingError when loss or gradient are not finite.
        """
        self.check(tree, request, entries)
        model = self._model(request.model)
        if request.gradient == "add" and request.update == 0:
            model.forget_gradients()
        before, model.recorded, model.content = model.content, None, None
        with self.ranks.agree():
            self._give_critic(model, request)
            self._weights.activate(model.adapter, dropout=request.gradient != "none")
            plan = self._planner.plan(
                model.parameters.values(),
                longest=int(tree.depth_T.max()) + 1,
                moments=model.moments.bytes_to_come(),
                critic=model.critic if request.algorithm.critic is not None else None,
            )
        plan = self._agreed(plan)
        compute = request.compute
        self.policy.logit_rows = compute.logit_rows
        peak = MemoryPeak(self.policy.device)
        set_rng(model.rng)
        compute_batch = partial(
            self._update if request.gradient == "step" else add_gradients,
            self._learner(model, request),
            tree,
            entries,
            request,
            token_budget=min(plan.token_budget, compute.max_length or plan.token_budget),
            progress=progress,
        )
        metrics, columns = compute_batch()
        moved = metrics["data/step_num_gradient_steps"] > 0
        if not moved:
            model.content = before
        self._note(model, request, columns, moved=moved)
        if moved and request.advance:
            model.follow(request.algorithm, metrics["loss/entropy"])
        return {**metrics, **self._facts(model, request, plan, peak)}

    def train_together(self, batches: Sequence[AskedBatch]) -> list[dict[str, float]]:
        """Does what `train` does with each of these batches, which move nothing and are of different models,
        in one forward and backward pass.

        Raises NotSharedError where that is not possible, or failed: no gradient is changed, and each is to be
        trained alone, which tells what is wrong with it.
        """
        if self.ranks.world > 1:
            raise NotSharedError("a pass of several ranks is one batch's")
        try:
            return self._add_together(batches)
        except (ARTError, RuntimeError, MemoryError) as error:
            raise NotSharedError(f"{type(error).__name__}: {error}") from error

    def _add_together(self, batches: Sequence[AskedBatch]) -> list[dict[str, float]]:
        """Raises NotSharedError, and what is raised of one of the batches."""
        models = [self._model(batch.request.model) for batch in batches]
        self._check_shared(batches, models)
        largest = max(models, key=lambda model: sum(one.numel() for one in model.parameters.values()))
        self._weights.activate(largest.adapter)
        plan = self._planner.plan(
            largest.parameters.values(),
            longest=max(int(batch.tree.depth_T.max()) + 1 for batch in batches),
            moments=max(model.moments.bytes_to_come() for model in models),
        )
        compute = batches[0].request.compute
        self.policy.logit_rows = compute.logit_rows
        peak = MemoryPeak(self.policy.device)
        budget = min(plan.token_budget, compute.max_length or plan.token_budget)
        shared = []
        for batch, model in zip(batches, models, strict=True):
            learner = self._learner(model, batch.request)
            step = BatchStep(learner, batch.tree, batch.entries, batch.request, budget)
            shared.append(SharedBatch(adapter=model.adapter, step=step, progress=batch.progress))
        found = add_gradients_together(self.policy, shared, self._weights.segmented, token_budget=budget)
        metrics = []
        for batch, model, (own, columns) in zip(batches, models, found, strict=True):
            set_rng(model.rng)
            self._note(model, batch.request, columns, moved=False)
            metrics.append({**own, **self._facts(model, batch.request, plan, peak)})
        return metrics

    def _check_shared(self, batches: Sequence[AskedBatch], models: Sequence[OpenModel]) -> None:
        """Raises NotSharedError where a pass cannot be shared, and what `check` raises."""
        for batch, model in zip(batches, models, strict=True):
            self.check(batch.tree, batch.request, batch.entries)
            plain = model.lora is not None and not model.lora.dropout
            if not plain or not self._weights.can_share(model.adapter):
                raise NotSharedError(f"the weights of {batch.request.model!r} cannot compute beside others")
            if batch.tree.images or batch.request.compute != batches[0].request.compute:
                raise NotSharedError("a batch has images, or is to be computed in another way")
            if batch.request.gradient == "add" and batch.request.update == 0:
                model.forget_gradients()
        if self.policy.rows_because is not None:
            raise NotSharedError(f"the base is trained in plain rows: {self.policy.rows_because}")

    @staticmethod
    def _note(model: OpenModel, request: TrainRequest, columns: TokenColumns | None, *, moved: bool) -> None:
        """Takes over what a batch has changed beside weights and gradients."""
        model.recorded = None if columns is None else (request.step, columns)
        if request.gradient == "add":
            model.rng, model.batches = get_rng(), model.batches + 1
        elif moved:
            model.rng, model.spec, model.kind = get_rng(), request.optimizer, request.kind
            if request.advance:
                model.step, model.update = model.step + 1, 0
            else:
                model.update += 1

    def _facts(
        self, model: OpenModel, request: TrainRequest, plan: MemoryPlan, peak: MemoryPeak
    ) -> dict[str, float]:
        rate = {RATE_BY_SIZE: self._rate_by_size(model)} if request.kind == "rl" else {}
        return {**rate, **plan.metrics, "memory/peak_mb": peak.bytes() / MEGABYTE}

    def _update(
        self,
        learner: Learner,
        tree: TokenTree,
        entries: LossEntries,
        request: TrainRequest,
        *,
        token_budget: int,
        progress: Progress,
    ) -> tuple[dict[str, float], TokenColumns | None]:
        """A batch's own update, which leaves everything as it was where it fails."""
        model = self._model(request.model)
        with ExitStack() as put_back:
            put_back.enter_context(right_moments(model, request.optimizer, request.kind))
            several = update_count(request.algorithm) > 1
            put_back.enter_context(self._unchanged_on_failure(model, learner.critic, several=several))
            return train_step(
                replace(learner, optimizer=model.optimizer),
                tree,
                entries,
                request,
                learning_rate=self._rate(model, request),
                token_budget=token_budget,
                progress=progress,
            )

    def _unchanged_on_failure(
        self, model: OpenModel, critic: Critic | None = None, *, several: bool = False
    ) -> AbstractContextManager[None]:
        """Another rank may fail while this one steps; a copy of all weights is too much for that."""
        several = several or (self.ranks.world > 1 and model.lora is not None)
        return unchanged_on_failure(model.parameters, model.optimizer, critic, several=several)

    def step(self, request: StepRequest) -> StepReply:
        """Moves the weights by the gradients that are held, and holds none afterwards, whatever happens.

        Raises NotFoundError (model is not open), TrainingError (it is at another step, holds another number
        of batches, or their sum is not finite: the weights are as before), ConfigurationError (its moments
        are another optimizer's).
        """
        model = self._model(request.model)
        self._check_place(model, request.model, request.step, request.batches)
        model.check_optimizer(request.optimizer.name, model.kind)
        model.batches, model.recorded = 0, None
        with right_moments(model, request.optimizer, model.kind), self._unchanged_on_failure(model):
            norm = step_optimizer(model.optimizer, request.optimizer, learning_rate=request.rate, loss=0.0)
        model.spec, model.content, model.step = request.optimizer, None, model.step + 1
        return StepReply(step=model.step, grad_norm=norm)

    def _agreed(self, plan: MemoryPlan) -> MemoryPlan:
        """The plan of the rank with the least memory: all cut the batch alike, and recompute layers alike."""
        if self.ranks.world == 1:
            return plan
        plans = self.ranks.gather([plan.token_budget, plan.way.checkpointing])
        self.policy.checkpoint_activations = any(twice for _, twice in plans)
        return replace(plan, token_budget=min(budget for budget, _ in plans))

    def _learner(self, model: OpenModel, request: TrainRequest) -> Learner:
        kl = request.algorithm.kl
        averaged = model.averaged() if kl is not None and kl.reference == "average" else None
        return Learner(
            policy=self.policy,
            optimizer=model.optimizer,
            loss=make_loss(request.algorithm),
            references=References(self.policy, self._weights, model.adapter, averaged),
            critic=model.critic if request.algorithm.critic is not None else None,
            entropy_coefficient=model.coefficient_of(request.algorithm.entropy),
            ranks=self.ranks,
        )

    def _give_critic(self, model: OpenModel, request: TrainRequest) -> None:
        """Makes the critic that the step asks for, where there is none. Another adapter may compute then."""
        spec = request.algorithm.critic
        if spec is None or model.critic is not None:
            return
        saved = None
        if spec.kind == "adapter" and model.lora is not None:
            lora = LoraSpec(r=spec.rank, alpha=spec.alpha, targets=model.lora.targets)
            saved = SavedCritic(lora=lora, first_step=model.step)
        model.critic = self._make_critic(saved)

    def _make_critic(self, saved: SavedCritic | None) -> Critic:
        """A fresh one: a probe, or the value model of this shape."""
        hidden = self.policy.causal_lm.config.get_text_config().hidden_size
        adapter = None
        if saved is not None:
            name = self._attach_fresh(saved.lora, seed=VALUE_SEED)
            adapter = ValueAdapter(
                name=name,
                saved=saved,
                parameters=self._weights.parameters(name),
                computing=partial(self._weights.computing, name),
            )
        return Critic(hidden, dtype=self.policy.dtype, device=self.policy.device, adapter=adapter)

    def _rate(self, model: OpenModel, request: TrainRequest) -> float:
        if request.rate is not None:
            return request.rate
        rate = request.optimizer.learning_rate
        if rate is None:
            rate = self._rate_by_size(model)
        return rate_at(request.optimizer, model.step, rate) * request.rate_factor

    def _rate_by_size(self, model: OpenModel) -> float:
        return rate_by_size(self.policy.causal_lm.config, lora=model.lora is not None)

    def check(self, tree: TokenTree, request: TrainRequest, entries: LossEntries) -> None:
        """Raise what can be known before anything runs.

        NotFoundError (model is not open), TrainingError (it is at another step), ConfigurationError
        (unknown loss, another optimizer than before, or a target or reference that cannot be),
        TokenMismatchError (an id is outside the vocabulary, or nothing is trained).
        """
        model = self._model(request.model)
        if request.gradient == "step":
            self._check_place(model, request.model, request.step, 0)
            model.check_optimizer(request.optimizer.name, request.kind)
        else:
            self._check_place(model, request.model, request.step, request.update or model.batches)
        if request.gradient == "step" and request.update != model.update:
            raise TrainingError(
                f"{request.model!r} has had {model.update} updates of step {model.step}; this batch is "
                f"number {request.update}. Open that step's checkpoint and send its batches in their order."
            )
        make_loss(request.algorithm)
        self._check_state(model, request)
        model.check_critic(request.model, request)
        if not len(tree):
            raise TokenMismatchError(
                "The batch is empty: no token has an advantage, so there is nothing to train."
            )
        least = 0 if tree.images else int(tree.tokens_T.min())
        self._check_ids(least, int(tree.tokens_T.max()))
        if entries.candidates is not None and len(entries.candidates):
            self._check_ids(int(entries.candidates.id_J.min()), int(entries.candidates.id_J.max()))

    def _check_state(self, model: OpenModel, request: TrainRequest) -> None:
        """Raises ConfigurationError where a part of the algorithm cannot move from step to step."""
        entropy, kl = request.algorithm.entropy, request.algorithm.kl
        most = math.log(self.policy.head.vocab_size)
        if entropy is not None and entropy.target is not None and entropy.target >= most:
            raise ConfigurationError(
                f"entropy.target is {entropy.target!r}; no distribution over the {self.policy.name!r} "
                f"vocabulary of {self.policy.head.vocab_size} ids has {most:.3f} nats or more."
            )
        moves = "entropy.target" if entropy is not None and entropy.target is not None else None
        if kl is not None and kl.reference == "average":
            moves = "kl.reference 'average'"
            if model.lora is None:
                raise ConfigurationError(
                    f"{moves} is a second LoRA, and {request.model!r} trains all weights. Use kl.reference "
                    "'step' with `every`."
                )
        if moves is not None and request.gradient != "step":
            raise ConfigurationError(f"{moves} follows steps; gradients that are added up make none of it.")

    @staticmethod
    def _check_place(model: OpenModel, name: str, step: int, batches: int) -> None:
        """Raises TrainingError where what was sent counts on another step, or on other gradients."""
        if step != model.step:
            raise TrainingError(
                f"{name!r} is at step {model.step}; this batch starts from step {step}. "
                "Open the checkpoint of that step, or sample again."
            )
        if batches != model.batches:
            raise GradientsLostError(
                f"{name!r} holds the gradients of {model.batches} batches at step {step}, not of {batches}: "
                "send the batches since that step again, from the first."
            )

    def token_columns(self, name: str, step: int) -> TokenColumns:
        """Returns the record of the loss entries of the newest batch, which started from this step. It may be
        called from any thread.

        Raises NotFoundError where there is none: the batch asked for none, or another one was trained.
        """
        recorded = self._model(name).recorded
        if recorded is None or recorded[0] != step:
            raise NotFoundError(
                f"The trainer has no record of tokens of a batch of {name!r} that started from step {step}.",
                status=404,
                code="no_token_record",
            )
        return recorded[1]

    def score(self, name: str, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """Logprob of each id given those before it, temperature 1: `len(row) - 1` numbers a row."""
        model = self._model(name)
        for row in rows:
            if len(row) < 2:
                raise ConfigurationError(f"A row to score has at least two ids, not {list(row)!r}.")
            self._check_ids(min(row), max(row))
        self._weights.activate(model.adapter)
        return self.policy.row_logprobs(rows, budget=self._score_budget)

    def probe(
        self, lora: LoraSpec | None, path: Path, rows: Sequence[Sequence[int]], *, seed: int
    ) -> ProbeReply:
        """See `art.training.weights`. Open models stay as they are."""
        lora = self._weights.resolve(lora)
        return probe_weights(
            self.policy, self._weights, lora, path, rows, seed=seed, budget=self._score_budget
        )

    def save(self, name: str, path: Path) -> list[str]:
        """Write a checkpoint folder that must not exist; returns its files. Raises CheckpointError, also in
        the middle of a step.
        """
        return self.begin_save(name, path)()

    def begin_save(self, name: str, path: Path) -> Callable[[], list[str]]:
        """Writes down what a model holds. What is returned finishes what `save` does, in any thread: the
        model may move on meanwhile. Both raise what `save` raises.
        """
        model = self._model(name)
        if model.update:
            raise CheckpointError(
                f"{name!r} is in the middle of step {model.step + 1}, after {model.update} updates; a "
                "checkpoint holds whole steps."
            )

        def write(folder: Path) -> list[str]:
            return [*self._weights.save(model.adapter, folder), *model.save(folder)]

        state = model.state(self.policy.name, self.policy.fingerprint)
        complete = begin_checkpoint(path, state, write, self._tokenizer.place)
        content: dict[str, ManifestEntry] = {}  # of no checkpoint, until it is there
        model.content = content

        def finish() -> list[str]:
            files = complete()
            content.update(self._content(path) or {})
            return files

        return finish

    def digest(self, name: str) -> str:
        """Returns a fingerprint of all that the model's next step depends on. Ranks have the same."""
        return self._model(name).digest()

    def parameters(self, name: str) -> Mapping[str, torch.nn.Parameter]:
        """Returns the trained parameters of an open model, by name."""
        return self._model(name).parameters

    def trainable_parameters(self, name: str) -> int:
        return sum(parameter.numel() for parameter in self._model(name).parameters.values())

    def close(self, name: str) -> None:
        """Closes a model; unknown names are ignored."""
        self._forget(name)

    def _forget(self, name: str) -> None:
        model = self._open.pop(name, None)
        if model is not None:
            self._remove(model)

    def _remove(self, model: OpenModel) -> None:
        for adapter in model.adapters:
            self._weights.remove(adapter)

    def _attach(self, lora: LoraSpec | None, seed: int) -> OpenModel:
        adapter = self._attach_fresh(lora, seed=seed)
        parameters = self._weights.parameters(adapter)

        def make(name: OptimizerName) -> Moments:
            moments = Moments(name, parameters, self._weights.matrices(adapter))
            moments.optimizer.register_step_post_hook(lambda *_: self._weights.stepped(adapter))
            return moments

        return OpenModel(
            adapter=adapter,
            lora=lora,
            parameters=parameters,
            make_moments=make,
            moments=make("adamw"),
            rng=seeded_rng(seed),
        )

    def _attach_fresh(self, lora: LoraSpec | None, *, seed: int) -> str:
        """Returns its internal name."""
        self._opened += 1
        self._weights.attach(name := f"a{self._opened}", lora, seed=seed)
        return name

    def _model(self, name: str) -> OpenModel:
        if name not in self._open:
            raise NotFoundError(
                f"Model {name!r} is not open in the trainer. Open: {sorted(self._open)!r}.",
                status=404,
                code="model_not_open",
            )
        return self._open[name]

    def _check_ids(self, low: int, high: int) -> None:
        if low < 0 or high >= self.policy.head.vocab_size:
            raise TokenMismatchError(
                f"Ids from {low} to {high} do not fit {self.policy.name!r}, whose vocabulary has "
                f"{self.policy.head.vocab_size} entries."
            )


def _spelled(lora: LoraSpec | None) -> str:
    return "all weights" if lora is None else f"the LoRA {lora}"
