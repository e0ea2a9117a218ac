"""Questions of BFCL, the Berkeley Function Calling Leaderboard: `find_environment("bfcl:simple_python")`.

A scenario is a question with its functions, which the model is given as tools. A rollout is one reply, or
in the categories of several turns a conversation in which BFCL's code runs the calls. Its reward is what
BFCL's own evaluation finds of the tool calls: 1 where they are right, else 0.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from art.environments.adapters.environment import (
    EnvironmentThread,
    RolloutConversation,
    Scenario,
    check_split,
    content_id,
)
from art.errors import ConfigurationError, did_you_mean, extra_needed
from art.process.environment import variable, variable_set
from art_extensions.environments.library_environment import (
    AdapterOptions,
    LibraryEnvironment,
    newest_calls,
    takes_options,
    text_of_turns,
)

if TYPE_CHECKING:
    from art.model import Model
    from art.trajectories import Trajectory

PREFIX, EXTRA = "bfcl:", "bfcl"
ALL_QUESTIONS = 10_000
"""More than all categories have."""
JUDGED_AS = "openbmb/MiniCPM-SALA-FC"
"""An entry of BFCL's table of models whose calls are OpenAI's, with "_" for "." in the names of functions."""
PROJECT_ROOT = "BFCL_PROJECT_ROOT"
"""The variable with the folder in which BFCL makes folders as soon as it is imported."""
LATER_TOOLS = "multi_turn_miss_func"
"""A category that adds tools in the middle of a conversation; a conversation here has the same throughout."""
NO_OBJECT = "Error during execution: the arguments are no JSON object"
EXPONENTS = {"power": "exponent", "logarithm": "precision", "square_root": "precision"}
EXPONENTS |= {"round_number": "decimal_places"}
"""Functions of BFCL's calculator that compute as long as this argument says, and nothing can stop them."""
MOST_EXPONENT = 10_000
"""The largest such argument, of either sign, with which a call is run."""

Calls = list[dict[str, str]]
"""Tool calls as BFCL reads them, each {name: arguments as JSON}."""


class BfclEnvironment(LibraryEnvironment):
    """A category by its name, or a collection of them, such as "live".

    options: `val` questions are held out, and as many others as `train` allows are for training. The system
    message is that of the questions that have none of their own.
    """

    LIBRARY = "bfcl-eval"

    @staticmethod
    def installed_names() -> dict[str, str]:
        """Returns the categories and their collections, none of which needs anything."""
        return dict.fromkeys(_known_categories(), "")

    @takes_options(train=ALL_QUESTIONS)
    def __init__(self, name: str, options: AdapterOptions, /) -> None:
        super().__init__(PREFIX + name, options)
        with extra_needed(EXTRA, f"environment {self.name!r}"):
            self._library = _load_library()
        questions = [
            question
            for category in self._categories(name)
            for question in self._library.read_questions(category)
        ]
        questions.sort(key=lambda one: content_id(str(self._seed), one.id))
        self._questions = {one.id: one for one in questions}

    def _categories(self, name: str) -> list[str]:
        """Returns the categories that a name stands for. Raises ConfigurationError."""
        known = _known_categories()
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigurationError(
                f"BFCL has no category {name!r} that can be trained on: {f'{hint} ' if hint else ''}"
                f"known: {', '.join(known)}"
            )
        return known[name]

    def scenarios(self, split: str) -> Sequence[Scenario]:
        """Returns the questions of a split. Raises ConfigurationError where none is left for "train"."""
        check_split(self.name, split)
        ids, held_out = list(self._questions), self._sizes["val"]
        chosen = ids[:held_out] if split == "val" else ids[held_out:][: self._sizes["train"]]
        if not chosen:
            raise ConfigurationError(
                f"{self.name} has {len(ids)} questions and none is left for {split!r}: "
                f"give val={len(ids) // 5 or 1}"
            )
        return [Scenario(f"{self.name}/{one}", {"question": one}) for one in chosen]

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
        question = self._questions[scenario.data["question"]]
        conversation = self._conversation(
            model,
            seed=seed,
            temperature=temperature,
            max_tokens=max_tokens,
            tools=question.tools,
            own_system=question.turns[0][0]["role"] == "system",
        )
        with self._thread() as thread:
            if question.several_turns:
                verdict = await self._play(conversation, question, thread)
            else:
                conversation.add(*question.turns[0])
                text = await conversation.ask()
                result = _newest_calls(conversation) or text
                verdict = await thread.call("the checker", self._library.judge, question, result)
        right = bool(verdict["valid"])
        # The verdict on several turns is a mapping inside of the error.
        error = {} if right else verdict["error"] if question.several_turns else verdict
        reason = "" if right else _text_of_error(error.get("error") or error["error_message"])
        messages: list[Any] = conversation.trajectory.messages()
        calls = sum(len(one.get("tool_calls") or ()) for one in messages)
        return conversation.finish(
            scenario,
            reward=float(right),
            metrics={"right": float(right), "calls": float(calls), "turns": float(conversation.turns)},
            show=f"{text_of_turns(messages)}\n\n{reason or 'right'}",
            environment=self.name,
            category=question.category,
            reason=reason,
            error_type=None if right else str(error["error_type"]),
        )

    async def _play(
        self, conversation: RolloutConversation, question: _Question, thread: EnvironmentThread
    ) -> Mapping[str, Any]:
        """Plays the turns of a question, each until a reply without a call, and returns BFCL's verdict."""
        from bfcl_eval.constants.default_prompts import MAXIMUM_STEP_LIMIT

        library, worlds = self._library, f"art_{uuid4().hex}"
        played: list[list[Calls | str]] = []
        try:
            for messages in question.turns:
                conversation.add(*messages)
                steps: list[Calls | str] = []
                played.append(steps)
                while len(steps) <= MAXIMUM_STEP_LIMIT:
                    text = await conversation.ask()
                    calls = _newest_calls(conversation)
                    run = [one for one in calls if question.knows(one) and not _is_huge(one)]
                    steps.append(run or text)
                    if not calls:
                        break
                    if not all(map(_is_object, calls)):  # as in BFCL, the turn ends
                        conversation.add(*_tool_messages(conversation, [NO_OBJECT] * len(calls)))
                        break
                    results = await thread.call("the calls", library.run_calls, question, worlds, calls)
                    conversation.add(*_tool_messages(conversation, results))
                else:
                    break  # BFCL ends a conversation that goes on like this, and finds it wrong
            verdict: Mapping[str, Any] = await thread.call(
                "the checker", library.judge_turns, question, worlds, played
            )
            return verdict
        finally:
            library.drop_worlds(worlds)


@dataclass(frozen=True, kw_only=True)
class _Question:
    id: str
    category: str
    turns: list[list[dict[str, Any]]]
    """The messages of each turn."""
    tools: list[Any]
    checked: dict[str, Any]
    """The question as the checker wants it, without the hints for the model."""
    truth: Any
    """The right calls; None where it is only asked whether there is a call."""
    several_turns: bool

    def knows(self, call: Mapping[str, str]) -> bool:
        """Returns whether a call may be run: BFCL evaluates names of functions and of arguments as Python."""
        names = {one["function"]["name"] for one in self.tools}
        return all(
            name in names and (not _is_object(call) or all(map(str.isidentifier, json.loads(arguments))))
            for name, arguments in call.items()
        )


@dataclass(frozen=True)
class _Library:
    """The parts of BFCL that are used here."""

    runner: Any
    handler: Any
    """Reads the calls of a reply."""
    folder: TemporaryDirectory[str] = field(repr=False)
    """Its folders for results, which stay empty. It is removed when the process ends."""

    def read_questions(self, category: str) -> list[_Question]:
        """Returns the questions of a category, in their order."""
        from bfcl_eval import utils
        from bfcl_eval.constants.enums import ModelStyle
        from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI
        from bfcl_eval.model_handler.utils import convert_to_tool

        asked = utils.load_dataset_entry(category, include_prereq=False)
        checked = utils.load_dataset_entry(
            category, include_prereq=False, include_language_specific_hint=False
        )
        unanswered = utils.is_relevance_or_irrelevance(category)
        truths = [None] * len(asked) if unanswered else utils.load_ground_truth_entry(category)
        return [
            _Question(
                id=one["id"],
                category=category,
                turns=one["question"],
                tools=convert_to_tool(one["function"], GORILLA_TO_OPENAPI, ModelStyle.OPENAI_COMPLETIONS),
                checked=plain,
                truth=None if truth is None else truth["ground_truth"],
                several_turns=utils.is_multi_turn(category),
            )
            for one, plain, truth in zip(asked, checked, truths, strict=True)
        ]

    def judge(self, question: _Question, result: Any) -> Mapping[str, Any]:
        """Returns BFCL's verdict. result: the calls, each {name: arguments as JSON}, or a text."""
        from bfcl_eval import utils
        from bfcl_eval.constants.enums import Language, ReturnFormat

        category, entry = question.category, deepcopy(question.checked)
        verdict: Mapping[str, Any]
        if question.truth is None:
            verdict = self.runner._evaluate_single_relevance_entry(
                self.handler, question.id, result, entry, JUDGED_AS, category
            )
            return verdict
        language = "JAVA" if utils.is_java(category) else "JAVASCRIPT" if utils.is_js(category) else "PYTHON"
        verdict = self.runner._evaluate_single_ast_entry(
            self.handler,
            question.id,
            result,
            question.truth,
            entry,
            JUDGED_AS,
            category,
            Language[language],
            ReturnFormat[language],
        )
        return verdict

    def judge_turns(
        self, question: _Question, worlds: str, played: Sequence[Sequence[Calls | str]]
    ) -> Mapping[str, Any]:
        """Returns BFCL's verdict on the replies of each turn, which it runs again."""
        verdict: Mapping[str, Any] = self.runner._evaluate_single_multi_turn_entry(
            self.handler,
            question.id,
            played,
            question.truth,
            deepcopy(question.checked),
            worlds,
            question.category,
        )
        return verdict

    def run_calls(self, question: _Question, worlds: str, calls: Calls) -> list[str]:
        """Returns what each call gives. worlds: the name of the rollout's instances of BFCL's classes."""
        from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

        results: list[str] = []
        for call in calls:
            if not question.knows(call):
                results.append(f"Error during execution: name {next(iter(call))!r} is not defined")
                continue
            if _is_huge(call):
                results.append(f"Error during execution: a number is above {MOST_EXPONENT}")
                continue
            given, _ = multi_turn_utils.execute_multi_turn_func_call(
                self.handler.decode_execute([call], has_tool_call_tag=False),
                question.checked["initial_config"],
                question.checked["involved_classes"],
                worlds,
                question.id,
                long_context="long_context" in question.category,
            )
            results += given
        return results

    def drop_worlds(self, worlds: str) -> None:
        """Removes the instances of a rollout, which BFCL keeps as names of a module."""
        from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

        for name in [one for one in vars(multi_turn_utils) if one.startswith(worlds)]:
            delattr(multi_turn_utils, name)


def _known_categories() -> dict[str, list[str]]:
    """Returns the categories that can be trained on by what names them: each itself, then collections."""
    from bfcl_eval.constants import category_mapping as known

    categories = [*known.SINGLE_TURN_CATEGORY, *known.MULTI_TURN_CATEGORY]
    categories.remove(LATER_TOOLS)
    collections = {
        one: list(parts) for one, parts in known.TEST_COLLECTION_MAPPING.items() if {*parts} <= {*categories}
    }
    return {**collections, **{one: [one] for one in categories}}


@functools.cache
def _load_library() -> _Library:
    """Imports BFCL. Raises ModuleNotFoundError."""
    folder = TemporaryDirectory(prefix="art-bfcl-")
    if variable(PROJECT_ROOT):
        from bfcl_eval.eval_checker import eval_runner
    else:
        with variable_set(PROJECT_ROOT, folder.name):
            from bfcl_eval.eval_checker import eval_runner
    from bfcl_eval.model_handler.api_inference.openai_completion import OpenAICompletionsHandler

    handler = OpenAICompletionsHandler.__new__(OpenAICompletionsHandler)  # without its client of OpenAI
    handler.is_fc_model = True
    return _Library(eval_runner, handler, folder)


def _newest_calls(conversation: RolloutConversation) -> Calls:
    return [{one.function.name: one.function.arguments} for one in newest_calls(conversation)]


def _tool_messages(conversation: RolloutConversation, results: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the messages with the results of the newest calls."""
    return [
        {"role": "tool", "tool_call_id": call.id, "content": result}
        for call, result in zip(newest_calls(conversation), results, strict=True)
    ]


def _is_object(call: Mapping[str, str]) -> bool:
    """Returns whether the arguments of a call are a JSON object."""
    try:
        return all(isinstance(json.loads(arguments), dict) for arguments in call.values())
    except (ValueError, RecursionError):
        return False


def _is_huge(call: Mapping[str, str]) -> bool:
    """Returns whether a call would compute for minutes or more."""
    if not _is_object(call):
        return False
    given = [json.loads(text).get(EXPONENTS.get(name)) for name, text in call.items()]
    return any(isinstance(one, int | float) and not abs(one) <= MOST_EXPONENT for one in given)


def _text_of_error(error: Any) -> str:
    return "; ".join(map(str, error)) if isinstance(error, list) else str(error)
