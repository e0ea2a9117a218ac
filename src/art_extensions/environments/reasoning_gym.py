"""Datasets of reasoning-gym: `find_environment("reasoning-gym:letter_counting", max_words=8)`.

A scenario is a question, a rollout one reply, and the reward what the dataset's own scorer gives it, 0 to 1.
The answer is what stands between <answer> and </answer>, or the whole reply where nothing does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from art.environments.adapters.environment import OwnRandom, Scenario, check_split, content_id, scenario_seed
from art.environments.tasks import Message
from art.errors import ConfigurationError, EnvironmentFailedError, did_you_mean, extra_needed
from art_extensions.environments.library_environment import AdapterOptions, LibraryEnvironment, takes_options

if TYPE_CHECKING:
    from art.model import Model
    from art.trajectories import Trajectory

PREFIX = "reasoning-gym:"
SYSTEM_PROMPT = "Answer the question. Write the final answer between <answer> and </answer>."
OURS = frozenset({"seed", "size"})
"""Fields of every dataset's configuration that the splits decide."""


class ReasoningGymEnvironment(LibraryEnvironment):
    """A dataset by its name.

    options: no question is in both splits, and none is twice in one; the deadline is that of the scorer.
    examples: pairs of a question and its answer that stand before each question. config: fields of the
    dataset's own configuration.
    """

    LIBRARY = "reasoning-gym"

    @staticmethod
    def installed_names() -> dict[str, str]:
        """Returns the datasets, none of which needs anything."""
        from reasoning_gym.factory import DATASETS

        return dict.fromkeys(sorted(DATASETS), "")

    @takes_options(train=500, system_prompt=SYSTEM_PROMPT)
    def __init__(
        self,
        dataset: str,
        options: AdapterOptions,
        /,
        *,
        examples: Sequence[Sequence[str]] = (),
        **config: Any,
    ) -> None:
        super().__init__(PREFIX + dataset, options)
        self._opening += self._shown(examples)
        with extra_needed("reasoning-gym", f"environment {self.name!r}"):
            from reasoning_gym.factory import DATASETS, create_dataset
            from reasoning_gym.utils import extract_answer
        if dataset not in DATASETS:
            hint = did_you_mean(dataset, DATASETS)
            raise ConfigurationError(
                f"reasoning-gym has no dataset {dataset!r}: {f'{hint} ' if hint else ''}"
                f"known: {', '.join(sorted(DATASETS))}"
            )
        known = [field.name for field in fields(DATASETS[dataset][1]) if field.name not in OURS]
        for option in config:
            if option not in known:
                raise ConfigurationError(
                    f"{self.name} has no option {option!r}: {did_you_mean(option, known)} "
                    f"known: {', '.join(known)}"
                )
        self._create, self._extract, self._dataset, self._config = (
            create_dataset,
            extract_answer,
            dataset,
            config,
        )
        self._made = {split: self._make(split) for split in self._sizes}

    def scenarios(self, split: str) -> Sequence[Scenario]:
        """Returns the different questions of a split. Raises ConfigurationError where none is left for it."""
        check_split(self.name, split)
        return self._found[split]

    async def rollout(
        self,
        model: Model,
        scenario: Scenario,
        *,
        seed: int | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
    ) -> Trajectory:
        """Asks one question; see `NamedEnvironment.rollout`."""
        with self._thread() as thread:
            entry = await thread.call("the question", self._entry, scenario.data)
            conversation = self._conversation(
                model,
                {"role": "user", "content": entry["question"]},
                seed=seed,
                temperature=temperature,
                max_tokens=max_tokens,
            )
            reply = await conversation.ask()
            tagged = self._extract(reply)
            answer = reply.strip() if tagged is None else tagged
            score = float(await thread.call("the scorer", self._score, scenario.data, answer, entry))
        return conversation.finish(
            scenario,
            reward=score,
            metrics={"score": score, "solved": float(score >= 1), "tagged": float(tagged is not None)},
            show=f"{entry['question']}\n\nanswer: {answer}\nright: {entry['answer']}\nscore: {score:g}",
            environment=self.name,
        )

    def _shown(self, examples: Sequence[Sequence[str]]) -> list[Message]:
        """Returns the examples as turns. Raises ConfigurationError where one is no pair of texts."""
        turns: list[Message] = []
        for pair in examples:
            if isinstance(pair, str) or [type(one) for one in pair] != [str, str]:
                raise ConfigurationError(
                    f"{self.name}: the example {pair!r} is no pair of texts: give (question, answer)"
                )
            turns += [
                {"role": role, "content": text}
                for role, text in zip(("user", "assistant"), pair, strict=True)
            ]
        return turns

    def _make(self, split: str) -> Any:
        """Returns the dataset of a split. Raises ConfigurationError for values that it refuses."""
        size = 2 * self._sizes[split] + 100
        seed = scenario_seed(self._seed, split, 0)
        try:
            with OwnRandom(seed).drawing():
                return self._create(self._dataset, seed=seed, size=size, **self._config)
        except (AssertionError, TypeError, ValueError) as error:
            raise ConfigurationError(f"{self.name} refuses {self._config}: {error}") from error

    def _entry(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        dataset = self._made[data["split"]]
        with OwnRandom(f"{dataset.seed}/{data['index']}").drawing():  # a few draw from the global generator
            entry: Mapping[str, Any] = dataset[data["index"]]
        return entry

    def _score(self, data: Mapping[str, Any], answer: str, entry: Mapping[str, Any]) -> Any:
        return self._made[data["split"]].score_answer(answer, entry)

    @cached_property
    def _found(self) -> dict[str, list[Scenario]]:
        """The scenarios; those of "val" come first, so that a small dataset has some for both."""
        taken: set[str] = set()
        found = {split: self._different(split, taken) for split in ("val", "train")}
        for split, scenarios in found.items():
            if not scenarios:
                raise ConfigurationError(
                    f"{self.name} has only {len(taken)} different questions and none is left for {split!r}: "
                    f"give val={len(taken) // 5 or 1}, or options with which there are more"
                )
        return found

    def _different(self, split: str, taken: set[str]) -> list[Scenario]:
        scenarios: list[Scenario] = []
        for index in range(len(self._made[split])):
            if len(scenarios) == self._sizes[split]:
                break
            data = {"split": split, "index": index}
            try:
                question = str(self._entry(data)["question"])
            except (IndexError, StopIteration):
                break  # a finite dataset is at its end
            except Exception as error:
                raise EnvironmentFailedError(
                    f"environment {self.name!r}: question {index} failed: {type(error).__name__}: {error}"
                ) from error
            if question not in taken:
                taken.add(question)
                scenarios.append(Scenario(f"{self.name}/{content_id(question)}", data))
        return scenarios
