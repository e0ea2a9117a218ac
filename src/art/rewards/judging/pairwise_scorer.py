"""A tournament: two trajectories at a time, the better one wins; a score is the share of games won.

Up to six play each against each; more play a Swiss tournament, n (log2 n + 2) / 2 games, and the model of
Bradley and Terry says what they would have won. On a sample of games the judge is asked in both orders; where
its answers contradict each other the game is a tie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean

from art.errors import BudgetExceededError, ConfigurationError, LlmAnswerError, LlmError, LlmRefusedError
from art.llm.channel import Channel
from art.rewards.checks.selection import content_key, is_chosen
from art.rewards.judging.bradley_terry import win_rates
from art.rewards.judging.pairwise_prompt import pairwise_request, read_winner
from art.rewards.judging.presentation import drawn_order, exhibit, signature
from art.rewards.judging.questions import Experience
from art.rewards.judging.ruler_prompt import DEFAULT_RUBRIC
from art.rewards.judging.ruler_scorer import PROMPT_TOKENS
from art.rewards.judging.swiss import swiss_pairs, swiss_rounds
from art.rewards.judging.view import View
from art.rewards.reward import Score
from art.types import Unscored

EACH_AGAINST_EACH = 6
"""Trajectories of a group in which all pairs play."""


@dataclass(frozen=True, kw_only=True)
class Game:
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
            raise ConfigurationError(f"rubric={rubric!r}: say in a sentence or more what a good attempt is")
        if not 0 <= both_orders <= 1:
            raise ConfigurationError(f"both_orders={both_orders!r}: a share, from 0 to 1")
        self.channel, self.rubric, self.name, self.both_orders = channel, rubric, name, both_orders
        self.experience = Experience(max_prompt_tokens)

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
        table = _Table(scorer=self, views=views, players=players, place=place, salt=salt)
        await table.play()
        results = dict(_results(same, table.games))
        rates = win_rates(len(views), results)
        return [self._score(i, same, rates[i], results, table) for i in range(len(views))]

    async def compare(self, first: View, second: View, *, salt: str = "") -> Game:
        """Ask which is better; `first` is shown first. Raises LlmError."""
        return await self.experience.ask_about([first, second], lambda fits: self._game(fits, salt))

    async def _game(self, fits: Sequence[View], salt: str) -> Game:
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
        return Game(result=(game.result + other.result) / 2, explanation=game.explanation, flipped=flipped)

    async def _ask(self, views: Sequence[View], order: Sequence[int], salt: str) -> Game:
        shown = exhibit(views, order=order, salt=salt)
        request = pairwise_request(shown, self.rubric, salt=salt)
        result, why = await self.channel.ask_json(request, lambda said: read_winner(said, shown.ids))
        for name, word in zip(shown.ids, ("the first", "the second"), strict=True):
            why = why.replace(name, word)
        return Game(result=result, explanation=why)

    def _score(
        self,
        i: int,
        same: Sequence[int],
        rate: float,
        results: Mapping[tuple[int, int], float],
        table: _Table,
    ) -> Score:
        if not any(i in pair for pair in results):
            reason = next(iter(table.failures.get(same[i], ())), "none of its games has a result")
            return Score(value=Unscored(f"{self.name}: {reason}"))
        games = {pair: game for pair, game in table.games.items() if same[i] in pair}
        doubled = [game.flipped for game in games.values() if game.flipped is not None]
        metrics = {f"{self.name}/games": float(len(games))}
        if doubled:
            metrics[f"{self.name}/flipped"] = fmean(map(float, doubled))
        return Score(value=rate, explanation=_told(same[i], games), metrics=metrics)


@dataclass(kw_only=True)
class _Table:
    """One tournament. Players and games go by indices of `views`."""

    scorer: PairwiseScorer
    views: Sequence[View]
    players: Sequence[int]
    place: Mapping[int, int]
    salt: str
    games: dict[tuple[int, int], Game] = field(default_factory=dict)
    """By (shown first, shown second)."""
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
        shown = [self._shown(i, j) for i, j in pairs]
        ask = self.scorer.compare
        ask_all = self.scorer.experience.ask_all
        try:
            outcomes = await ask_all(ask(self.views[i], self.views[j], salt=self.salt) for i, j in shown)
        except BudgetExceededError as error:
            if not self.games:
                raise
            outcomes = [error] * len(shown)
        for pair, outcome in zip(shown, outcomes, strict=True):
            if isinstance(outcome, Game):
                self.games[pair] = outcome
                continue
            for i in pair:
                self.failures.setdefault(i, []).append(str(outcome))

    def _shown(self, i: int, j: int) -> tuple[int, int]:
        """Who is shown first: each about as often as second, and the other way round in the reverse order."""
        early, late = sorted((i, j), key=self.place.__getitem__)
        return (early, late) if (self.place[i] + self.place[j]) % 2 else (late, early)

    def _points(self) -> list[float]:
        points = dict.fromkeys(self.players, 0.0)
        for (i, j), game in self.games.items():
            points[i] += game.result
            points[j] += 1 - game.result
        return list(points.values())


def _results(
    same: Sequence[int], games: Mapping[tuple[int, int], Game]
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


def _told(player: int, games: Mapping[tuple[int, int], Game]) -> str:
    said = []
    for (i, j), game in games.items():
        other, result = (j, game.result) if i == player else (i, 1 - game.result)
        word = "beats" if result > 0.5 else "loses to" if result < 0.5 else "ties with"
        role = "as the first" if i == player else "as the second"
        said.append(f"{word} trajectory {other + 1} ({role}): {game.explanation}")
    return "\n".join(said)
