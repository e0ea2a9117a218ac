"""The reward of a rubric of turns: a judge sees one trajectory, and scores each turn by weighted criteria.

One question about a trajectory. Its turns have names, drawn for the trajectory, that none of its texts has;
what the judge leaves out, says twice or names otherwise is asked for again, alone. Where a turn has no score
after that, the whole rollout is unscored: no turn is worth 0 because a judge failed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

from art.errors import ConfigurationError
from art.rewards.judge_view import (
    DIGEST_CHARS,
    View,
    block,
    content_dice,
    drawn_names,
    escape,
    present_views,
    trajectory_view,
)
from art.rewards.judged import DEFAULT_JUDGE, JudgedReward, JudgeOptions, judge_channel
from art.rewards.llm.channel import Channel
from art.rewards.llm.request import Request
from art.rewards.reward import GroupScores, Score
from art.rewards.ruler_scorer import PROMPT_TOKENS, GivenScore, RulerAnswer
from art.trajectories import History, Trajectory, TrajectoryGroup, is_choice
from art.types import sample_id
from art_extensions.rubric.rubric import Criterion, RubricScorer, read_named_verdicts, verdicts_request

if TYPE_CHECKING:
    from art.rewards.judge_checks import JudgeChecks
    from art.rewards.judged import JudgeModel

Total = Literal["mean", "sum"]
STANDARDS = (
    "Judge each turn on its own, by what was known before it and by what it does. Later messages show what "
    "came of it. 1: the criterion is met in full; 0: not met at all; between them: in part."
)
_TASK = (
    "Below are the trajectory of an agent and a list of criteria. Your job is to give single turns of the "
    "trajectory a score between 0 and 1 by each criterion. A turn is a message of the assistant; its id is "
    'in the field "turn".'
)
_FORM = (
    'Answer with one JSON object, {"verdicts": [{"turn": "...", "criterion": "...", "reason": "...", '
    '"score": 0.5}, ...]}: one entry for each that stands under verdicts_needed, named as there.'
)
Place = tuple[int, int]
"""A message: the number of its conversation, and its index there."""


@dataclass(frozen=True, kw_only=True)
class TurnView(View):
    """A trajectory whose turns have names, in the field `turn` of their messages."""

    turns: tuple[str, ...] = ()
    """The names, in the order of the turns."""


@dataclass(frozen=True)
class TurnCriterion(Criterion):
    """One turn by one criterion. Its name is that of both."""

    turn: str = ""
    criterion: str = ""


def with_turns(view: View, places: Sequence[Place] | None = None) -> TurnView:
    """Returns the view with a name for each turn. places: of these messages; None: all of the assistant."""
    if places is None:
        said = enumerate(view.conversations)
        places = [
            (c, m) for c, messages in said for m, one in enumerate(messages) if one.get("role") == "assistant"
        ]
    content = escape([list(map(list, view.conversations)), list(places), view.tools])
    names = drawn_names(len(places), content_dice(content, "turns"), content)
    named = dict(zip(places, names, strict=True))
    conversations = tuple(
        tuple(
            {"turn": named[c, m]} | one | {"turn": named[c, m]} if (c, m) in named else one
            for m, one in enumerate(messages)
        )
        for c, messages in enumerate(view.conversations)
    )
    return TurnView(conversations=conversations, tools=view.tools, length=view.length, turns=tuple(names))


def turns_of(trajectory: Trajectory) -> list[tuple[Place, str | None]]:
    """Returns where the turns of a trajectory are, with their samples: those that ART's server sampled; where
    it sampled none, each `Choice`.
    """
    histories: list[Trajectory | History] = [trajectory, *trajectory.additional_histories]
    said = [
        ((number, place), sample_id(item))
        for number, history in enumerate(histories)
        for place, item in enumerate(history.messages_and_choices)
        if is_choice(item)
    ]
    return [one for one in said if one[1] is not None] or said


def turns_request(view: TurnView, parts: Sequence[TurnCriterion], *, standards: str, salt: str) -> Request:
    """The question as it is sent."""
    criteria = {one.criterion: one.description for one in parts}
    needed = [{"turn": one.turn, "criterion": one.criterion} for one in parts]
    text = "\n\n".join(
        [
            block("criteria", [{"name": name, "description": said} for name, said in criteria.items()]),
            present_views([view], salt=salt).text,
            block("verdicts_needed", needed),
        ]
    )
    return verdicts_request(
        task=_TASK,
        form=_FORM,
        standards=standards,
        text=text,
        known={"turn": list(dict.fromkeys(one.turn for one in parts)), "criterion": list(criteria)},
        salt=salt,
    )


def read_turn_verdicts(answer: Any, wanted: Collection[str]) -> RulerAnswer:
    """The scores and reasons by turn and criterion. Raises ValueError where none can be used."""
    return read_named_verdicts(
        answer,
        wanted,
        "turn",
        lambda one: _name(str(one.get("turn")).strip(), str(one.get("criterion")).strip()),
    )


def _name(turn: str, criterion: str) -> str:
    return f"{turn} {criterion}"


class TurnRubricScorer(RubricScorer):
    """Scores the turns of views. `Score.turns` has what each earned, by its number from 0, as a text."""

    def __init__(
        self,
        channel: Channel,
        criteria: Iterable[Criterion] | Mapping[str, str],
        *,
        total: Total = "mean",
        standards: str = STANDARDS,
        name: str = "turn_rubric",
        max_prompt_tokens: int = PROMPT_TOKENS,
    ) -> None:
        """total: what the rollout earns of the scores of its turns. Raises ConfigurationError."""
        super().__init__(
            channel, criteria, standards=standards, name=name, max_prompt_tokens=max_prompt_tokens
        )
        if total not in get_args(Total):
            raise ConfigurationError(f"total={total!r}: known are {', '.join(get_args(Total))}")
        self._total: Total = total

    async def judge(self, view: View, salt: str) -> Score:
        """Asks until each turn has a score, a few times at most. A view without names gets them. Raises
        LlmError where the first question got no answer for other reasons than its content.
        """
        named = _view_with_turns(view)
        if not named.turns:
            return self.unscored("it has no turn of the model")
        return await super().judge(named, salt)

    def parts(self, view: View) -> Sequence[TurnCriterion]:
        """Returns each turn by each criterion."""
        return [
            TurnCriterion(
                name=_name(turn, one.name),
                description=one.description,
                weight=one.weight,
                turn=turn,
                criterion=one.name,
            )
            for turn in _view_with_turns(view).turns
            for one in self.criteria
        ]

    async def ask(self, view: View, parts: Sequence[Criterion], salt: str) -> RulerAnswer:
        """Asks about these: turns in their order, and the criteria of each in the order that was drawn."""
        named, names = _view_with_turns(view), [one.name for one in parts]
        asked = [one for one in parts if isinstance(one, TurnCriterion)]
        asked.sort(key=lambda one: named.turns.index(one.turn))
        request = turns_request(named, asked, standards=self.standards, salt=salt)
        return await self.channel.ask_json(request, lambda said: read_turn_verdicts(said, names))

    def total(self, view: View, scores: Mapping[str, GivenScore]) -> Score:
        """Returns the score of the rollout, with what each turn earned of it."""
        turns = _view_with_turns(view).turns
        weights = sum(one.weight for one in self.criteria)
        share = 1 / len(turns) if self._total == "mean" else 1.0
        earned: dict[str, float] = {}
        reasons: dict[str, str] = {}
        lines: list[str] = []
        notes: list[str] = []
        for place, turn in enumerate(turns):
            given = [(one, scores[_name(turn, one.name)]) for one in self.criteria]
            value = sum(one.weight * verdict.score for one, verdict in given) / weights
            earned[str(place)] = share * value
            said = [
                f"{one.name} {verdict.score:g}: {_with_numbers(verdict.explanation, turns)}"
                for one, verdict in given
            ]
            reasons[str(place)] = "\n".join(said)
            lines += [f"turn {place + 1}, {line}" for line in said]
            for one, verdict in given:
                if verdict.note:
                    notes.append(f"turn {place + 1}, {one.name}: {verdict.note}")
        return Score(
            value=sum(earned.values()),
            explanation="\n".join(lines),
            metrics={
                f"{self.name}/{one.name}": fmean(scores[_name(turn, one.name)].score for turn in turns)
                for one in self.criteria
            },
            notes=tuple(notes),
            turns=earned,
            turn_reasons=reasons,
        )


def _view_with_turns(view: View) -> TurnView:
    return view if isinstance(view, TurnView) else with_turns(view)


def _with_numbers(text: str, turns: Sequence[str]) -> str:
    """The text with the numbers of turns in place of their names, which mean nothing afterwards."""
    for place, turn in enumerate(turns, 1):
        text = text.replace(turn, f"turn {place}")
    return text


class TurnRubric(JudgedReward):
    """Each turn by itself: `after_each=TurnRubric({"useful": "It gets closer."}).score_group`.

    What a turn earns is its reward (`reward_turn`), for an algorithm of turns. The reward of the trajectory
    is the mean of its turns' scores, so that more turns are not worth more. Metrics: `reward/turn_rubric`,
    `turn_rubric/<criterion>` (the mean over the turns), `independent_reward`. A trajectory with a turn that
    has no verdict has the reward `Unscored(reason)`. One question a trajectory; docs/guides/judges.md.
    """

    def __init__(
        self,
        criteria: Iterable[Criterion] | Mapping[str, str],
        judge_model: JudgeModel = DEFAULT_JUDGE,
        *,
        total: Total = "mean",
        standards: str = STANDARDS,
        name: str = "turn_rubric",
        max_prompt_tokens: int = PROMPT_TOKENS,
        digest_chars: int = DIGEST_CHARS,
        checks: JudgeChecks | None = None,
        **asking: Unpack[JudgeOptions],
    ) -> None:
        """criteria: or {name: description}, of equal weight. total: "mean", each turn earns its score divided
        by the number of turns, or "sum", it earns its score. standards: what holds for all criteria.

        judge_model: see `judge_channel`. max_prompt_tokens: of one question, estimated. checks: what the
        judge undergoes while it trains. asking: base_url, api_key, params, cache, budget, pace, attempts,
        deadline, as `JudgeOptions` has them. Raises ConfigurationError.
        """
        self.channel = judge_channel(judge_model, name=name, **asking)
        scorer = TurnRubricScorer(
            self.channel,
            criteria,
            total=total,
            standards=standards,
            name=name,
            max_prompt_tokens=max_prompt_tokens,
        )
        super().__init__(scorer, checks=checks, digest_chars=digest_chars)

    def views(self, group: TrajectoryGroup) -> list[View]:
        """Returns the trajectories with names for their turns."""
        return [
            with_turns(
                trajectory_view(one, digest_chars=self.digest_chars), [place for place, _ in turns_of(one)]
            )
            for one in group.trajectories
        ]

    async def scores(self, group: TrajectoryGroup) -> Sequence[Score]:
        """The scorer's, without checks, with the rewards of the group's own turns."""
        return _by_samples(group, await super().scores(group))

    async def judge(self, group: TrajectoryGroup) -> GroupScores:
        """The scores with the rewards of the group's own turns; figures of the checks are of the group."""
        judged = await super().judge(group)
        return replace(judged, scores=_by_samples(group, judged.scores))


def _by_samples(group: TrajectoryGroup, scores: Sequence[Score]) -> list[Score]:
    """The scores with the turns by their samples. A turn that was not sampled here is nothing to train."""
    found = []
    for trajectory, score in zip(group.trajectories, scores, strict=True):
        samples = [sample for _, sample in turns_of(trajectory)]
        sampled = [(str(k), sample) for k, sample in enumerate(samples) if sample]
        earned = {sample: score.turns[k] for k, sample in sampled} if score.turns else {}
        reasons = {sample: score.turn_reasons[k] for k, sample in sampled if k in score.turn_reasons}
        found.append(replace(score, turns=earned, turn_reasons=reasons))
    return found
