"""One run of AutoRL: prepare, then the course of every run."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art.autorl.attempts import InputAttempts
from art.autorl.folder import RUBRIC, SYSTEM_PROMPT, AutoRLFolder
from art.autorl.inputs import Inputs, generate_inputs, own_inputs
from art.autorl.instructions import write_rubric, write_system_prompt
from art.autorl.report import AutoRLReport
from art.autorl.settings import AutoRLSettings
from art.errors import ConfigurationError
from art.llm.channel import Channel
from art.runs.costs import spent
from art.runs.course import Course, Tell
from art.runs.judges import Judges
from art.runs.measure import Measure

if TYPE_CHECKING:
    from art.model import TrainableModel


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
        if self.folder.open(now, self.settings):
            self.tell(f"going on with the run in {self.folder.path}")

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
        course = Course(
            folder=self.folder,
            attempts=InputAttempts(model, self.settings, system_prompt),
            train=inputs.train,
            test=inputs.test,
            judge=judges.training,
            referee=judges.comparing,
            measure=self.measure,
            tell=self.tell,
        )
        outcome = await course.run()
        report = AutoRLReport(
            task=self.task,
            base_model=model.base_model,
            model=f"{model.project}/{model.name}",
            step=outcome.step,
            inputs=inputs,
            wanted=(self.settings.num_train, self.settings.num_test),
            system_prompt=system_prompt,
            rubric=rubric,
            prepared=self.folder.digests(),
            steps=outcome.steps,
            comparison=outcome.comparison,
            same_judge=judges.same,
            costs={
                role: spent(one) for role, one in {"generator": self.generator, **judges.channels()}.items()
            },
            seconds=time.monotonic() - begin,
            stopped=outcome.stopped,
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
