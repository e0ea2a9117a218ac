"""The reward of a tournament: two trajectories at a time, the better one wins; a score is a share of wins.

Up to six play each against each. More play a Swiss tournament, n (log2 n + 2) / 2 games, and the model of
Bradley and Terry (1952) says what they would have won. On a sample of games the judge is asked in both
orders; where its answers contradict each other the game is a tie.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING, Any, Unpack

from art.errors import BudgetExceededError, ConfigurationError, LlmAnswerError, LlmError, LlmRefusedError
from art.rewards.judge_view import (
    CAUTION,
    DIGEST_CHARS,
    JudgeView,
    View,
    content_key,
    drawn_order,
    is_chosen,
    plain_value,
    present_views,
    signature,
)
from art.rewards.judged import DEFAULT_JUDGE, JudgedReward, JudgeOptions, judge_channel
from art.rewards.llm.channel import Channel
from art.rewards.llm.request import Request
from art.rewards.reward import Score
from art.rewards.ruler_scorer import DEFAULT_RUBRIC, EXPLANATION_CHARS, PROMPT_TOKENS
from art.types import Unscored
from art_extensions.rubric.judge_questions import JudgeExperience

if TYPE_CHECKING:
    from art.rewards.judge_checks import JudgeChecks
    from art.rewards.judged import JudgeModel


def swiss_rounds(players: int) -> int:
    """Enough to tell the best from the rest, and two more for the order of the middle."""
    return math.ceil(math.log2(players)) + 2


def swiss_pairs(
    points: Sequence[float], played: Collection[frozenset[int]], rested: Collection[int]
) -> list[tuple[int, int]]:
    """The games of a round: neighbours by points that have not met, places of equal points by number.

    With an odd number of players the last who has not rested yet rests; nobody plays twice in a round.
    """
    table = sorted(range(len(points)), key=lambda i: (-points[i], i))
    if len(table) % 2:
        table.remove(next((i for i in reversed(table) if i not in rested), table[-1]))
    pairs = []
    while len(table) > 1:
        first = table.pop(0)
        second = next((i for i in table if frozenset((first, i)) not in played), None)
        if second is not None:
            table.remove(second)
            pairs.append((first, second))
    return pairs


ROUNDS = 200
_PRIOR = 0.5
"""Each has half a win and half a loss against one of strength 1: strengths stay finite."""


def win_rates(players: int, results: Mapping[tuple[int, int], float]) -> list[float]:
    """The share of games that each would win against all others, 0 to 1.

    results: (i, j) -> 1 where i won, 0 where j won, 0.5 for a tie; each pair at most once. Where all pairs
    have played it is what they won; otherwise what their strengths say (Hunter 2004, MM algorithm).
    """
    if players < 2:
        return [0.5] * players
    wins = [0.0] * players
    for (i, j), result in results.items():
        wins[i] += result
        wins[j] += 1 - result
    if len(results) == players * (players - 1) // 2:
        return [won / (players - 1) for won in wins]
    strength = _strengths(wins, list(results))
    return [
        fmean(strength[i] / (strength[i] + strength[j]) for j in range(players) if j != i)
        for i in range(players)
    ]


def _strengths(wins: Sequence[float], games: Sequence[tuple[int, int]]) -> list[float]:
    strength = [1.0] * len(wins)
    opponents: list[list[int]] = [[] for _ in wins]
    for i, j in games:
        opponents[i].append(j)
        opponents[j].append(i)
    for _ in range(ROUNDS):
        strength = [
            (wins[i] + _PRIOR)
            / (2 * _PRIOR / (strength[i] + 1) + sum(1 / (strength[i] + strength[j]) for j in opponents[i]))
            for i in range(len(wins))
        ]
    return strength


TIE = "tie"

_TASK = (
    "Both of the trajectories below have been given the same goal. Your job is to consider each of them and "
    "say which one is better. Take into consideration your best judgement of the agent's goal."
)
_FORM = (
    'Answer with one JSON object, {"explanation": "...", "winner": "..."}: the winner is the id of the '
    'better trajectory, or "tie" where neither is better.'
)


def pairwise_request(shown: JudgeView, rubric: str, *, salt: str = "") -> Request:
    """The question as it is sent."""
    system = f"{_TASK}\n\nGrading standards:\n{rubric.strip()}\n\n{CAUTION}\n\n{_FORM}"
    return Request(
        messages=({"role": "system", "content": system}, {"role": "user", "content": shown.text}),
        schema={
            "type": "object",
            "properties": {
                "explanation": {"type": "string"},
                "winner": {"type": "string", "enum": [*shown.ids, TIE]},
            },
            "required": ["explanation", "winner"],
            "additionalProperties": False,
        },
        schema_name="winner",
        salt=salt,
    )


def read_winner(answer: Any, ids: Sequence[str]) -> tuple[float, str]:
    """Returns 1 if the first of `ids` won, 0 if the second did, 0.5 for a tie; and the reason. Raises
    ValueError.
    """
    if not isinstance(answer, dict):
        raise ValueError('the answer must be {"explanation": "...", "winner": "..."}')
    winner = str(answer.get("winner", "")).strip()
    results = {ids[0]: 1.0, ids[1]: 0.0, TIE: 0.5}
    found = results.get(winner, results.get(winner.lower()))
    if found is None:
        raise ValueError(f"the winner {winner[:40]!r} is neither {ids[0]!r} nor {ids[1]!r} nor {TIE!r}")
    return found, str(plain_value(answer.get("explanation") or ""))[:EXPLANATION_CHARS]


EACH_AGAINST_EACH = 6
"""Trajectories of a group in which all pairs play."""


@dataclass(frozen=True, kw_only=True)
class ComparedPair:
    """One comparison. result: 1 where the first won, 0 where the second did, 0.5 for a tie."""

    result: float
    explanation: str
    flipped: bool | None = None
    """Whether the two orders contradict each other; None: asked in one."""


class PairwiseScorer:
    """Scores views by having a judge compare two at a time."""

    def __init__(
        self,
        channel: Channel,
        *,
        rubric: str = DEFAULT_RUBRIC,
        name: str = "pairwise",
        both_orders: float = 0.25,
        max_prompt_tokens: int = PROMPT_TOKENS,
    ) -> None:
        """both_orders: share of the games that are asked in both orders, 0 to 1.

        max_prompt_tokens: of one question, estimated; longer tool outputs are digested further. Raises
        ConfigurationError.
        """
        if not isinstance(rubric, str) or not rubric.strip():
            raise ConfigurationError(f"rubric={rubric!r}: say in a sentence or more what a good rollout is")
        if not 0 <= both_orders <= 1:
            raise ConfigurationError(f"both_orders={both_orders!r}: a share, from 0 to 1")
        self.channel, self.rubric, self.name, self.both_orders = channel, rubric, name, both_orders
        self.experience = JudgeExperience(max_prompt_tokens)

    @property
    def question(self) -> str:
        """Returns what better means."""
        return self.rubric.strip()

    async def score(
        self, views: Sequence[View], *, order: Sequence[int] | None = None, salt: str = ""
    ) -> list[Score]:
        """One score for each view: the share of the others that it is better than, a tie counting half.

        `Unscored(reason)` where none of its games has a result. Equal views tie without being asked about.
        Raises ConfigurationError, and BudgetExceededError where nothing could be asked.
        """
        if len(views) == 1:
            return [Score(value=Unscored(f"{self.name}: one trajectory alone has nobody to compare it with"))]
        place = {i: p for p, i in enumerate(order if order is not None else drawn_order(views, salt=salt))}
        firsts: dict[str, int] = {}
        same = [firsts.setdefault(signature(view), i) for i, view in enumerate(views)]
        players = sorted(firsts.values(), key=place.__getitem__)
        table = _Tournament(scorer=self, views=views, players=players, place=place, salt=salt)
        await table.play()
        results = dict(_pair_results(same, table.games))
        rates = win_rates(len(views), results)
        return [self._score(i, same, rates[i], results, table) for i in range(len(views))]

    async def compare(self, first: View, second: View, *, salt: str = "") -> ComparedPair:
        """Ask which is better; `first` is shown first. Raises LlmError."""
        return await self.experience.ask_about([first, second], lambda fits: self._game(fits, salt))

    async def _game(self, fits: Sequence[View], salt: str) -> ComparedPair:
        try:
            game = await self._ask(fits, (0, 1), salt)
        except (LlmRefusedError, LlmAnswerError):
            return await self._ask(fits, (1, 0), salt)
        key = content_key(sorted(fits, key=signature))
        if not is_chosen(key, self.both_orders, sample="both orders", seed=0):
            return game
        try:
            other = await self._ask(fits, (1, 0), salt)
        except LlmError:
            return game  # it has a result; what else was to be known of it is lost
        flipped = {game.result, other.result} == {0.0, 1.0}
        return ComparedPair(
            result=(game.result + other.result) / 2, explanation=game.explanation, flipped=flipped
        )

    async def _ask(self, views: Sequence[View], order: Sequence[int], salt: str) -> ComparedPair:
        shown = present_views(views, order=order, salt=salt)
        request = pairwise_request(shown, self.rubric, salt=salt)
        result, why = await self.channel.ask_json(request, lambda said: read_winner(said, shown.ids))
        for name, word in zip(shown.ids, ("the first", "the second"), strict=True):
            why = why.replace(name, word)
        return ComparedPair(result=result, explanation=why)

    def _score(
        self,
        i: int,
        same: Sequence[int],
        rate: float,
        results: Mapping[tuple[int, int], float],
        table: _Tournament,
    ) -> Score:
        if not any(i in pair for pair in results):
            reason = next(iter(table.failures.get(same[i], ())), "none of its games has a result")
            return Score(value=Unscored(f"{self.name}: {reason}"))
        games = {pair: game for pair, game in table.games.items() if same[i] in pair}
        doubled = [game.flipped for game in games.values() if game.flipped is not None]
        metrics = {f"{self.name}/games": float(len(games))}
        if doubled:
            metrics[f"{self.name}/flipped"] = fmean(map(float, doubled))
        return Score(value=rate, explanation=_explanation(same[i], games), metrics=metrics)


@dataclass(kw_only=True)
class _Tournament:
    """One tournament. Players and games go by indices of `views`."""

    scorer: PairwiseScorer
    views: Sequence[View]
    players: Sequence[int]
    place: Mapping[int, int]
    salt: str
    games: dict[tuple[int, int], ComparedPair] = field(default_factory=dict)
    """The compared pairs by (shown first, shown second)."""
    failures: dict[int, list[str]] = field(default_factory=dict)

    async def play(self) -> None:
        if len(self.players) <= EACH_AGAINST_EACH:
            await self._round(list(combinations(self.players, 2)))
            return
        rested: set[int] = set()
        tried: set[frozenset[int]] = set()
        for _ in range(swiss_rounds(len(self.players))):
            number = {player: n for n, player in enumerate(self.players)}
            met = {frozenset(number[i] for i in pair) for pair in tried}
            pairs = swiss_pairs(self._points(), met, {number[i] for i in rested})
            drawn = [(self.players[a], self.players[b]) for a, b in pairs]
            rested |= set(self.players) - {i for pair in drawn for i in pair}
            tried |= {frozenset(pair) for pair in drawn}
            await self._round(drawn)

    async def _round(self, pairs: Sequence[tuple[int, int]]) -> None:
        shown = [self._order_shown(i, j) for i, j in pairs]
        ask = self.scorer.compare
        ask_all = self.scorer.experience.ask_all
        try:
            outcomes = await ask_all(ask(self.views[i], self.views[j], salt=self.salt) for i, j in shown)
        except BudgetExceededError as error:
            if not self.games:
                raise
            outcomes = [error] * len(shown)
        for pair, outcome in zip(shown, outcomes, strict=True):
            if isinstance(outcome, ComparedPair):
                self.games[pair] = outcome
                continue
            for i in pair:
                self.failures.setdefault(i, []).append(str(outcome))

    def _order_shown(self, i: int, j: int) -> tuple[int, int]:
        """Returns the order shown: each is first about as often as second, and the other way round in the
        reverse order.
        """
        early, late = sorted((i, j), key=self.place.__getitem__)
        return (early, late) if (self.place[i] + self.place[j]) % 2 else (late, early)

    def _points(self) -> list[float]:
        points = dict.fromkeys(self.players, 0.0)
        for (i, j), game in self.games.items():
            points[i] += game.result
            points[j] += 1 - game.result
        return list(points.values())


def _pair_results(
    same: Sequence[int], games: Mapping[tuple[int, int], ComparedPair]
) -> list[tuple[tuple[int, int], float]]:
    """Results of all pairs of trajectories; equal ones tie, and have what the one that played has."""
    found = []
    for i, j in combinations(range(len(same)), 2):
        a, b = same[i], same[j]
        if a == b:
            found.append(((i, j), 0.5))
        elif (a, b) in games:
            found.append(((i, j), games[a, b].result))
        elif (b, a) in games:
            found.append(((i, j), 1 - games[b, a].result))
    return found


def _explanation(player: int, games: Mapping[tuple[int, int], ComparedPair]) -> str:
    said = []
    for (i, j), game in games.items():
        other, result = (j, game.result) if i == player else (i, 1 - game.result)
        word = "beats" if result > 0.5 else "loses to" if result < 0.5 else "ties with"
        role = "as the first" if i == player else "as the second"
        said.append(f"{word} trajectory {other + 1} ({role}): {game.explanation}")
    return "\n".join(said)


class Pairwise(JudgedReward):
    """The share of its group that a trajectory beats: `after_each=Pairwise("openai/o3").score_group`.

    Metrics of a trajectory: `reward/pairwise`, `pairwise/games`, `pairwise/flipped` (share of its games with
    both orders whose answers contradict each other), `independent_reward`. docs/guides/judges.md has the
    costs.
    """

    def __init__(
        self,
        judge_model: JudgeModel = DEFAULT_JUDGE,
        *,
        rubric: str = DEFAULT_RUBRIC,
        both_orders: float = 0.25,
        name: str = "pairwise",
        max_prompt_tokens: int = PROMPT_TOKENS,
        digest_chars: int = DIGEST_CHARS,
        checks: JudgeChecks | None = None,
        **asking: Unpack[JudgeOptions],
    ) -> None:
        """rubric: what good means. both_orders: share of the games that are asked in both orders.

        judge_model: see `judge_channel`. max_prompt_tokens: of one question, estimated. checks: what the
        judge undergoes while it trains. asking: base_url, api_key, params, cache, budget, pace, attempts,
        deadline, as `JudgeOptions` has them. Raises ConfigurationError.
        """
        self.channel = judge_channel(judge_model, name=name, **asking)
        scorer = PairwiseScorer(
            self.channel,
            rubric=rubric,
            both_orders=both_orders,
            name=name,
            max_prompt_tokens=max_prompt_tokens,
        )
        super().__init__(scorer, checks=checks, digest_chars=digest_chars)
