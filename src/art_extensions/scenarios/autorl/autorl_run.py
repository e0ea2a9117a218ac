"""One run of AutoRL: its settings, its folder, its rollouts (an input and the model's answer), its report.

`AutoRLRun` prepares what was not given, and then is a training run like every other.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from art.backend import Keyword
from art.environments.measure import Measure, rollout_metrics
from art.errors import ConfigurationError
from art.rewards.llm.channel import Channel
from art.runs.folder import AboveZero, Count, JudgedRunFolder, Share
from art.runs.report import RunReport, quoted
from art.runs.training_run import OnProgress, TaskRollouts, TrainingRun
from art.tracking.folders import stored_name
from art.trajectories import Trajectory
from art_extensions.scenarios.autorl.preparation import (
    DEFAULT_SIMILARITY,
    Inputs,
    generate_inputs,
    own_inputs,
    write_rubric,
    write_system_prompt,
)
from art_extensions.scenarios.judges import Judges
from art_extensions.scenarios.run_costs import channel_costs
from art_extensions.scenarios.task_settings import TaskSettings

if TYPE_CHECKING:
    from art.model import Model, TrainableModel


TIMEOUT_S = 120.0


async def rollout(
    model: Model[Any, Any],
    text: str,
    *,
    system_prompt: str = "",
    max_tokens: int | None = None,
    temperature: float = 1.0,
    timeout: float = TIMEOUT_S,
    seed: int | None = None,
) -> Trajectory:
    """Ask the model once. system_prompt: "" for none. timeout: seconds. Raises what its client raises.

    Metrics: `cut` (1.0 where the answer ended at `max_tokens`), `answer_chars`.
    """
    opening: list[Any] = [{"role": "system", "content": system_prompt}] if system_prompt else []
    opening.append({"role": "user", "content": text})
    chosen = {"max_tokens": max_tokens, "seed": seed}
    completions: Any = model.openai_client().chat.completions
    completion = await completions.create(
        model=model.get_inference_name(),
        messages=opening,
        temperature=temperature,
        timeout=timeout,
        **{name: value for name, value in chosen.items() if value is not None},
    )
    choice = completion.choices[0]
    return Trajectory(
        messages_and_choices=[*opening, choice],
        reward=0.0,
        metrics={
            "cut": float(choice.finish_reason == "length"),
            "answer_chars": float(len(choice.message.content or "")),
        },
        metadata={"input": text},
    )


@dataclass(frozen=True, kw_only=True)
class AutoRLSettings(TaskSettings):
    """The settings of a run, without its models, judge and generator."""

    ENTRY: ClassVar[str] = "autorl.train"
    MAY_CHANGE: ClassVar[frozenset[str]] = TaskSettings.MAY_CHANGE | {"timeout"}

    num_train: Count = 25
    """Inputs to train on."""
    num_test: Count = 5
    """Inputs held out, for the comparison of before and after."""
    similarity: Share = DEFAULT_SIMILARITY
    """Similarity (0 to 1) from which two inputs count as the same."""
    epochs: Count = 3
    """Passes over the training inputs."""
    max_tokens: Annotated[int | None, Keyword(least=1)] = 1024
    """The most tokens of one answer."""
    eval_group_size: Count = 4
    """Rollouts of each test input, before and after, with the same seeds."""
    timeout: AboveZero = TIMEOUT_S
    """Seconds an answer may take."""


COMPARED_METRICS = ("answer_chars", "cut")


class InputRollouts(TaskRollouts[str]):
    """A task is its text; a rollout is one answer."""

    def __init__(self, model: TrainableModel[Any, Any], settings: AutoRLSettings, system_prompt: str) -> None:
        super().__init__(model, settings)
        self._settings, self._system_prompt = settings, system_prompt

    async def rollout(self, task: str, *, seed: int | None) -> Trajectory:
        return await rollout(
            self.model,
            task,
            system_prompt=self._system_prompt,
            max_tokens=self._settings.max_tokens,
            temperature=self._settings.temperature,
            timeout=self._settings.timeout,
            seed=seed,
        )

    def text_of(self, task: str) -> str:
        return task

    def figures_of(self, trajectory: Trajectory) -> dict[str, float]:
        # Beside them a judge puts its own into the metrics.
        found = rollout_metrics(trajectory)
        return {name: found[name] for name in COMPARED_METRICS}


INPUTS, SYSTEM_PROMPT, RUBRIC = "inputs.json", "system_prompt.txt", "rubric.txt"
PREPARED = (INPUTS, SYSTEM_PROMPT, RUBRIC)


@dataclass(frozen=True)
class AutoRLFolder(JudgedRunFolder):
    """Texts may be edited before the training begins; `digests` says which ones it began with."""

    def inputs(self) -> Inputs | None:
        """The inputs, once there are any."""
        data = self.read(INPUTS)
        return None if data is None else Inputs.from_dict(data)

    def save_inputs(self, inputs: Inputs) -> None:
        self.write(INPUTS, inputs.to_dict())

    def text(self, name: str) -> str | None:
        """The system prompt or the rubric, once it is there."""
        path = self.path / name
        return path.read_text(encoding="utf-8").strip() if path.is_file() else None

    def save_text(self, name: str, text: str) -> None:
        self.write_text(name, text + "\n")

    def digests(self) -> dict[str, str]:
        """The first 12 digits of the sha256 of each prepared file."""
        return {name: hashlib.sha256((self.path / name).read_bytes()).hexdigest()[:12] for name in PREPARED}


LONGER = 1.5
MANY_CUT = 0.1


@dataclass(frozen=True, kw_only=True)
class AutoRLReport(RunReport):
    """A finished run."""

    NOUN: ClassVar[str] = "input"
    LABELS: ClassVar[Mapping[str, str]] = {
        **RunReport.LABELS,
        "answer_chars": "characters of an answer",
        "cut": "share that ended at max_tokens",
    }

    task: str
    inputs: Inputs
    wanted: tuple[int, int]
    """How many inputs to train on and to test were asked for."""
    system_prompt: str
    rubric: str
    prepared: Mapping[str, str]
    """The digests of the inputs, the system prompt and the rubric that were used, by file."""

    @property
    def cautions(self) -> list[str]:
        """The cautions, including those about the answers and the inputs."""
        return [*super().cautions, *self._about_the_answers(), *self._about_the_inputs()]

    def _about_the_answers(self) -> Iterable[str]:
        before, after = self.comparison.before.figures, self.comparison.after.figures
        old, new = before.get("answer_chars"), after.get("answer_chars")
        if old and new and new > LONGER * old:
            yield f"Answers grew from {old:.0f} to {new:.0f} characters: the judge may like length itself."
        if (cut := after.get("cut", 0.0)) > MANY_CUT:
            yield f"{cut:.0%} of the answers after training end at `max_tokens`."

    def _about_the_inputs(self) -> Iterable[str]:
        if (have := (len(self.inputs.train), len(self.inputs.test))) != self.wanted:
            yield (
                f"{have[0]} inputs to train on and {have[1]} to test, where {self.wanted[0]} and "
                f"{self.wanted[1]} were asked for: the generator wrote no more different ones."
            )

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "inputs": self.inputs.to_dict(), "prepared": dict(self.prepared)}

    def opening(self) -> list[str]:
        return [f"Task: {self.task}\n"]

    def material(self) -> list[str]:
        left_out = ", ".join(f"{name} {count}" for name, count in self.inputs.rejected.items()) or "none"
        digests = ", ".join(f"{name} {digest}" for name, digest in self.prepared.items())
        return [
            "## Prepared\n",
            f"{len(self.inputs.train)} inputs to train on, {len(self.inputs.test)} to test; left out: "
            f"{left_out}.\n",
            f"System prompt:\n\n{quoted(self.system_prompt or '(none)')}",
            f"Rubric:\n\n{quoted(self.rubric)}",
            f"Files: {digests}.\n",
        ]


@dataclass(frozen=True, kw_only=True)
class GivenTexts:
    """The texts that the user wrote instead of the generator; None: it is generated."""

    inputs: Iterable[str] | None = None
    system_prompt: str | None = None
    rubric: str | None = None


@dataclass(kw_only=True)
class AutoRLRun:
    """A run that reads finished parts from the folder and does the rest."""

    task: str
    folder: AutoRLFolder
    settings: AutoRLSettings
    generator: Channel
    measure: Measure | None
    tell: OnProgress

    def open(self, base_model: str) -> None:
        """Starts a new run, or resumes the one in the folder.

        Raises ConfigurationError where that one is of another task, base model or other settings.
        """
        now = {"task": self.task, "base_model": base_model}
        if self.folder.open(now, self.settings):
            self.tell(f"going on with the run in {self.folder.path}")

    async def prepare(self, texts: GivenTexts) -> tuple[Inputs, str, str]:
        """Inputs, system prompt and rubric: those of the folder, those that were given, or newly written."""
        chosen, inputs = self.settings, self.folder.inputs()
        if inputs is None:
            shared: dict[str, Any] = {"similarity": chosen.similarity, "seed": chosen.seed}
            if texts.inputs is not None:
                inputs = own_inputs(texts.inputs, num_test=chosen.num_test, **shared)
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
        system_prompt = await self._text(SYSTEM_PROMPT, texts.system_prompt, write_system_prompt, inputs)
        rubric = await self._text(RUBRIC, texts.rubric, write_rubric, inputs)
        return inputs, system_prompt, rubric

    async def _text(self, name: str, own: str | None, write: Any, inputs: Inputs) -> str:
        text = self.folder.text(name)
        if text is not None and own is not None and text != own.strip():
            raise ConfigurationError(
                f"{str(self.folder.path / name)!r} says something else than what is given now: edit the file "
                "before the training begins, or give the run another name"
            )
        if text is None:
            text = own
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
        """Runs all parts that need the model. begin: when the call began, on the monotonic clock."""
        inputs, system_prompt, rubric = prepared
        self._hold(await model.get_step())
        training = TrainingRun(
            folder=self.folder,
            rollouts=InputRollouts(model, self.settings, system_prompt),
            train=inputs.train,
            test=inputs.test,
            judge=judges.training,
            referee=judges.comparing,
            measure=self.measure,
            tell=self.tell,
        )
        outcome = await training.run()
        report = AutoRLReport(
            task=self.task,
            base_model=model.base_model,
            model=f"{model.project}/{stored_name(model)}",
            step=outcome.step,
            inputs=inputs,
            wanted=(self.settings.num_train, self.settings.num_test),
            system_prompt=system_prompt,
            rubric=rubric,
            prepared=self.folder.digests(),
            steps=outcome.steps,
            comparison=outcome.comparison,
            same_judge=judges.has_one_judge,
            costs={
                role: channel_costs(one)
                for role, one in {"generator": self.generator, **judges.channels()}.items()
            },
            seconds=time.monotonic() - begin,
            stopped=outcome.stopped,
            folder=self.folder.path,
        )
        self.folder.save_report(report.to_markdown(), report.to_dict())
        return report

    def _hold(self, step: int) -> None:
        """Checks that the prepared files are unchanged since the first step. Raises ConfigurationError."""
        run, now = self.folder.run() or {}, self.folder.digests()
        was = run.get("prepared")
        if step and was is not None and was != now:
            changed = ", ".join(name for name in now if was.get(name) != now[name])
            raise ConfigurationError(
                f"{changed} in {str(self.folder.path)!r} changed after the training began: put it "
                "back, or give the run another name"
            )
        self.folder.save_run({**run, "prepared": now})
