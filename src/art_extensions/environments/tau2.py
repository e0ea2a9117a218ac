"""Customer service of tau2-bench, from inspect-evals: `find_environment("tau2:airline")`.

The model is the agent: it has the domain's policy and tools, and talks with a user. A scenario is a task of
the domain; "train" and "val" are the benchmark's splits "train" and "test". The package's scorer gives the
reward, 1 or 0, and each of its parts is a metric.

    user=None                     `read_out`, which says the same in each rollout
    user="my_module:function"     see `art_extensions.environments.inspect_roles.RolePlayer`
    user=art.Model(...)           the benchmark's user simulator, its prompt and its tools, with that model
"""

from __future__ import annotations

import json
import random
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from art.types import text_of_content
from art_extensions.environments.inspect_ai import SAMPLE_S
from art_extensions.environments.inspect_evals import EXTRA as EXTRA
from art_extensions.environments.inspect_evals import MAX_TURNS, STOP, InspectEvalsEnvironment

if TYPE_CHECKING:
    from art.model import Model
    from art_extensions.environments.model_requests import ModelRequests

DOMAINS = ("airline", "retail", "telecom")
TRANSFER = "###TRANSFER###"
"""What a user says who is handed over to a person."""
SCENARIO = re.compile(r"<scenario>\n(.*)\n</scenario>", re.DOTALL)
CONSENT = "Yes, please do that."
CONSENTS = 3
"""How often `read_out` consents before it ends the conversation."""
USER = "user"


class Tau2Environment(InspectEvalsEnvironment):
    """A domain of tau2: airline, retail or telecom.

    user: who the customer is, see above. time_limit_s: of one rollout; the package scores what there is then.
    """

    prefix, KNOWN = "tau2:", DOMAINS

    def __init__(
        self,
        domain: str,
        /,
        *,
        user: Model | str | None = None,
        seed: int = 0,
        train: int | None = None,
        val: int | None = None,
        max_turns: int = MAX_TURNS,
        score: str | None = None,
        time_limit_s: int = SAMPLE_S,
        request: Mapping[str, Any] | None = None,
    ) -> None:
        self._domain = domain
        super().__init__(
            domain,
            seed=seed,
            train=train,
            val=val,
            max_turns=max_turns,
            score=score,
            time_limit_s=time_limit_s,
            request=request,
            roles={USER: read_out if user is None else user},
            task={"shuffle": False},
        )
        self._task = self._library.task_with(self._task, scorer=[*self._task.scorer, *self._find_parts()])

    def _find_task(self, name: str) -> Callable[..., Any]:
        from inspect_evals.tau2 import tau2

        found: Callable[..., Any] = getattr(tau2, f"tau2_{name}")
        return found

    def _find_parts(self) -> list[Any]:
        """Returns the scorers of which the domain's own scorer is made."""
        if self._domain == "telecom":
            from inspect_evals.tau2.common.scorer import evaluate_required_actions
            from inspect_evals.tau2.telecom.scorer import env_assertions

            return [evaluate_required_actions(check_reward_basis=True), env_assertions()]
        from inspect_evals.tau2.common.scorer import db_match, score_communicated_info

        return [db_match(domain=self._domain), score_communicated_info()]

    def _make_roles(self, requests: ModelRequests) -> dict[str, Any]:
        from inspect_ai.model import GenerateConfig

        roles = super()._make_roles(requests)
        # As the package's solver asks for it, which the limit of turns passes by.
        roles[USER].config = roles[USER].config.merge(GenerateConfig(temperature=0.0))
        return roles

    def _split_samples(self, chance: random.Random) -> Mapping[str, Sequence[int]]:
        from inspect_evals.tau2.utils import TAU2_DATA_DIR

        file = TAU2_DATA_DIR / "domains" / self._domain / "split_tasks.json"
        ids = json.loads(file.read_text(encoding="utf-8"))
        order = list(range(len(self._samples)))
        chance.shuffle(order)
        return {
            split: [place for place in order if self._id(place) in ids[theirs]]
            for split, theirs in (("train", "train"), ("val", "test"))
        }


def read_out(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Any:
    """A user without a model, the same in each rollout.

    It reads its instructions out, then consents to whatever the agent says, `CONSENTS` times, and ends the
    conversation. It uses a tool of its own when the agent names it, as in `toggle_roaming` or
    `set_network_mode_preference({"mode": "4g_only"})`, and says what came of it.
    """
    said = [one for one in messages if one["role"] == "assistant" and not one.get("tool_calls")]
    newest = messages[-1]
    if newest["role"] == "tool":
        results = [text_of_content(one.get("content")) for one in _newest_results(messages)]
        return "\n".join(results) or "Done."
    if not said:
        found = SCENARIO.search(text_of_content(messages[0].get("content")))
        text = textwrap.dedent(found[1].partition("Instructions:\n")[2]) if found else ""
        return f"I need your help. These are my instructions:\n{text}"
    asked = text_of_content(newest.get("content"))
    if "transferred to a human agent" in asked.lower():
        return TRANSFER
    if calls := _named_calls(asked, tools):
        return {"role": "assistant", "content": "", "tool_calls": calls}
    consents = sum(text_of_content(one.get("content")) == CONSENT for one in said)
    return CONSENT if consents < CONSENTS else STOP


def _newest_results(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    start = len(messages)
    while messages[start - 1]["role"] == "tool":
        start -= 1
    return messages[start:]


def _named_calls(text: str, tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns a call of each tool that a text names, in its order, with the JSON in brackets behind it."""
    names = "|".join(re.escape(one["name"]) for one in tools)
    calls = []
    for number, found in enumerate(re.finditer(rf"\b({names})\b(?:\((\{{.*?\}})\))?", text) if names else ()):
        function = {"name": found[1], "arguments": found[2] or "{}"}
        calls.append({"id": f"user_{len(text)}_{number}", "type": "function", "function": function})
    return calls
