"""`find_environment("spelling:animals")`: the model spells words backwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import art
from art.environments.adapters.environment import SCENARIO_ID, Scenario, check_split
from art.errors import ConfigurationError

WORDS = {
    "animals": ["cat", "dog", "cow", "hen", "pig", "fox", "owl", "bee", "ant", "elk"],
    "colors": ["red", "blue", "gold", "pink", "gray", "teal", "navy", "lime", "plum", "rust"],
}


class SpellingEnvironment:
    """One list of words. val: how many of them are held out."""

    @staticmethod
    def installed_names() -> dict[str, str]:
        """Returns the lists for `art environments spelling`; none of them needs anything."""
        return dict.fromkeys(WORDS, "")

    def __init__(self, name: str, /, *, val: int = 3) -> None:
        if name not in WORDS:
            raise ConfigurationError(f"environment 'spelling:{name}': known lists are {', '.join(WORDS)}")
        self.name, self._words, self._val = f"spelling:{name}", WORDS[name], val

    def scenarios(self, split: str) -> Sequence[Scenario]:
        """Returns a scenario for each word: the last `val` are those of "val"."""
        check_split(self.name, split)
        words = self._words[: -self._val] if split == "train" else self._words[-self._val :]
        return [Scenario(f"{self.name}/{word}", {"word": word}) for word in words]

    async def rollout(self, model: art.Model, scenario: Scenario, **options: Any) -> art.Trajectory:
        """Asks once. The reward is the share of letters in their places."""
        wanted = scenario.data["word"][::-1]
        question = {"role": "user", "content": f"Spell {scenario.data['word']} backwards."}
        options.setdefault("max_tokens", 8)
        given = {name: value for name, value in options.items() if value is not None}
        completion = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=[question], **given
        )
        said = (completion.choices[0].message.content or "").strip()
        right = sum(ours == theirs for ours, theirs in zip(said, wanted, strict=False))
        return art.Trajectory(
            messages_and_choices=[question, completion.choices[0]],
            reward=right / len(wanted),
            metadata={SCENARIO_ID: scenario.id, "show": f"{scenario.data['word']} -> {said}"},
        )

    async def close(self) -> None:
        """Does nothing: there is nothing to end."""
