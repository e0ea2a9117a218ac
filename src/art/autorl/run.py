"""One run of AutoRL: prepare, attempts before, training, attempts after, the comparison."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art.autorl.ask import spent
from art.autorl.attempts import Attempts
from art.autorl.comparison import Comparison, Measure, compare, mean
from art.autorl.folder import RUBRIC, SYSTEM_PROMPT, AutoRLFolder, StepRow
from art.autorl.inputs import Inputs, generate_inputs, own_inputs
from art.autorl.instructions import write_rubric, write_system_prompt
from art.autorl.judges import Judges
from art.autorl.report import AutoRLReport
from art.autorl.settings import AutoRLSettings
from art.datasets.iterate import iterate_dataset
from art.errors import BudgetExceededError, ConfigurationError
from art.llm.channel import Channel
from art.types import Unscored

if TYPE_CHECKING:
    from art.model import TrainableModel
    from art.rewards.reward import Reward

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the user wrote instead of the generator; None: it is generated."""

    inputs: Iterable[str] | None = None
    system_prompt: str | None = None
    rubric: str | None = None


@dataclass(kw_only=True)
class AutoRLRun:
    """What is done already is read from the folder, the rest is done."""

    task: str
    folder: AutoRLFolder
    settings: AutoRLSettings
    generator: Channel
    measure: Measure | None
    tell: Tell

    def open(self, base_model: str) -> None:
        """Begin a new run, or go on with the one in the folder.

        Raises ConfigurationError where that one is of another task, base model or other settings.
        """
        now = {"task": self.task, "base_model": base_model}
        saved = self.folder.run()
        if saved is not None:
            for key, value in now.items():
                if saved[key] != value:
                    raise ConfigurationError(
                        f"the run in {str(self.folder.path)!r} has {key}={saved[key]!r}, not {value!r}; give "
                        "this one another name"
                    )
            self.settings.check_resumes(AutoRLSettings.of(saved["settings"]))
        self.folder.save_run({**(saved or {}), **now, "settings": self.settings.to_dict()})

    async def prepare(self, given: Given) -> tuple[Inputs, str, str]:
        """Inputs, system prompt and rubric: those of the folder, those that were given, or newly written."""
        chosen, inputs = self.settings, self.folder.inputs()
        if inputs is None:
            shared: dict[str, Any] = {"similarity": chosen.similarity, "seed": chosen.seed}
            if given.inputs is not None:
                inputs = own_inputs(given.inputs, num_test=chosen.num_test, **shared)
            else:
                inputs = await generate_inputs(
                    self.task,
                    generator=self.generator,
                    num_train=chosen.num_train,
                    num_test=chosen.num_test,
                    **shared,
                )
            self.folder.save_inputs(inputs)
            self.tell(f"{len(inputs.train)} inputs to train on, {len(inputs.test)} to test")
        system_prompt = await self._text(SYSTEM_PROMPT, given.system_prompt, write_system_prompt, inputs)
        rubric = await self._text(RUBRIC, given.rubric, write_rubric, inputs)
        return inputs, system_prompt, rubric

    async def _text(self, name: str, given: str | None, write: Any, inputs: Inputs) -> str:
        text = self.folder.text(name)
        if text is not None and given is not None and text != given.strip():
            raise ConfigurationError(
                f"{str(self.folder.path / name)!r} says something else than what is given now: edit the file "
                "before the training begins, or give the run another name"
            )
        if text is None:
            text = given if given is not None else None
            if text is None:  # "" is a choice: no system prompt
                text = await write(
                    self.task, generator=self.generator, examples=inputs.train, seed=self.settings.seed
                )
            self.folder.save_text(name, text.strip())
            self.tell(f"{name}: {len(text)} characters")
        return text.strip()

    async def learn(
        self,
        model: TrainableModel[Any, Any],
        prepared: tuple[Inputs, str, str],
        judges: Judges,
        begin: float,
    ) -> AutoRLReport:
        """Everything that the model is needed for. begin: when the call began, on the monotonic clock."""
        inputs, system_prompt, rubric = prepared
        self._hold(await model.get_step())
        attempts = Attempts(model=model, settings=self.settings, system_prompt=system_prompt)
        await self._evaluate(attempts, inputs, 0)
        stopped = None
        try:
            await self._train(attempts, inputs, judges.training)
        except BudgetExceededError as error:
            stopped = str(error)
            self.tell(f"training ends here: {error}")
        step = await model.get_step()
        await self._evaluate(attempts, inputs, step)
        report = AutoRLReport(
            task=self.task,
            base_model=model.base_model,
            model=f"{model.project}/{model.name}",
            step=step,
            inputs=inputs,
            wanted=(self.settings.num_train, self.settings.num_test),
            system_prompt=system_prompt,
            rubric=rubric,
            prepared=self.folder.digests(),
            steps=tuple(self.folder.steps()),
            comparison=await self._compare(inputs, step, judges.referee),
            same_judge=judges.same,
            costs={
                role: spent(one) for role, one in {"generator": self.generator, **judges.channels()}.items()
            },
            seconds=time.monotonic() - begin,
            stopped=stopped,
            folder=self.folder.path,
        )
        self.folder.save_report(report.to_markdown(), report.to_dict())
        return report

    def _hold(self, step: int) -> None:
        """From the first step on, what was prepared stays as it is. Raises ConfigurationError."""
        run, now = self.folder.run() or {}, self.folder.digests()
        was = run.get("prepared")
        if step and was is not None and was != now:
            changed = ", ".join(name for name in now if was.get(name) != now[name])
            raise ConfigurationError(
                f"{changed} in {str(self.folder.path)!r} changed after the training began: put it "
                "back, or give the run another name"
            )
        self.folder.save_run({**run, "prepared": now})

    async def _evaluate(self, attempts: Attempts, inputs: Inputs, step: int) -> None:
        """Attempts at the test inputs by the adapter of `step`, the newest; once."""
        if self.folder.evaluation(step) is not None:
            return
        model = attempts.model
        if await model.get_step() != step:
            raise ConfigurationError(
                f"{model.project}/{model.name} has been trained already, but {str(self.folder.path)!r} has "
                "no attempts of before: give this run another name"
            )
        size = self.settings.test_attempts
        groups = await attempts.groups(inputs.test, size, what=f"evaluating step {step}", seeded=True)
        by_input = {group.metadata["input"]: group.trajectories for group in groups}
        self.folder.save_evaluation(step, [by_input.get(text, []) for text in inputs.test])

    async def _train(self, attempts: Attempts, inputs: Inputs, judge: Reward) -> None:
        total, chosen = self.settings.total_steps(len(inputs.train)), self.settings
        batches = iterate_dataset(
            inputs.train,
            groups_per_step=chosen.groups_per_step,
            num_epochs=chosen.epochs,
            initial_step=await attempts.model.get_step(),
            use_tqdm=False,
        )
        for batch in batches:
            row = await self._train_step(attempts, batch.items, batch.step, total, judge)
            self.folder.add_step(row)
            reward = "no scores" if row.reward is None else f"mean score {row.reward:.3f}"
            self.tell(f"step {row.step}/{total}: {reward}; {row.trained} of {row.rollouts} attempts trained")

    async def _train_step(
        self, attempts: Attempts, texts: Sequence[str], step: int, total: int, judge: Reward
    ) -> StepRow:
        """Attempts, scores, gradient, new adapter."""
        begin = time.monotonic()
        groups = await attempts.groups(
            texts,
            self.settings.group_size,
            what=f"step {step + 1}/{total}",
            seeded=False,
            after_each=judge.score_group,
        )
        gathered = time.monotonic()
        rate = self.settings.rate_at(step, total)
        result = await attempts.model.train(groups, learning_rate=rate)
        flat = [one for group in groups for one in group]
        scored = [one.reward for one in flat if not isinstance(one.reward, Unscored)]
        figures = {name for group in groups for name in group.metrics if name.startswith("judge/")}
        return StepRow(
            step=step + 1,
            reward=mean(scored),
            rollouts=len(flat),
            failed=sum(len(group.exceptions) for group in groups),
            unscored=len(flat) - len(scored),
            trained=int(result.metrics.get("data/sheet/trained_rollouts", 0)),
            answer_chars=mean([float(one.metrics["answer_chars"]) for one in flat]),
            learning_rate=rate,
            seconds_rollouts=round(gathered - begin, 3),
            seconds_training=round(time.monotonic() - gathered, 3),
            judge={
                name: mean([float(group.metrics[name]) for group in groups if name in group.metrics]) or 0.0
                for name in sorted(figures)
            },
        )

    async def _compare(self, inputs: Inputs, step: int, referee: Reward) -> Comparison:
        before, after = self.folder.evaluation(0) or [], self.folder.evaluation(step) or []
        size = self.settings.test_attempts

        async def judged_by(judge: Reward | None) -> Comparison:
            return await compare(
                inputs.test, before, after, per_input=size, judge=judge, measure=self.measure
            )

        try:
            return await judged_by(referee)
        except BudgetExceededError as error:
            self.tell(f"before and after are not judged: {error}")
            return await judged_by(None)
