"""Games of textarena: `find_environment("textarena:TicTacToe-v0", opponent="random")`.

The model has one seat of the game and others have the rest: `opponent` is "random", "self", your own function
as "module:function", or another `art.Model`. A scenario is a seat and a seed of the game. The reward is the
game's for that seat, mostly 1, 0 or -1.

With opponent="self" the model has all seats. `rollout` returns the trajectory of the scenario's seat, `play`
those of all seats: groups of them, a group for each seat, train both sides of one game.

Each turn is a message with what the player has not seen yet; its own moves are the model's replies.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from art.environments.adapters.environment import OwnRandom, RolloutConversation, Scenario, load_object
from art.environments.tasks import turn_seed
from art.errors import ConfigurationError, EnvironmentFailedError, did_you_mean, extra_needed
from art.types import Unscored
from art_extensions.environments.library_environment import AdapterOptions, LibraryEnvironment, takes_options

if TYPE_CHECKING:
    from art.model import Model
    from art.trajectories import Trajectory

PREFIX = "textarena:"
RANDOM, SELF = "random", "self"
PLAYERS = (2, 1, 3, 4, 5, 6)
"""Numbers of players, in the order in which they are tried."""
GAME = -1
"""textarena's number for messages of the game itself."""
BOARD = "GAME_BOARD"
MOVE = re.compile(r"\[[^\[\]\n]+\]")
OFFER = re.compile(r"(available|valid|legal|possible)[^\n:\[]*:", re.IGNORECASE)
"""The words before a list of moves."""

Player = Callable[[str], str]
"""What a player who is no model does: text seen on its turn -> action."""


@dataclass
class _Game:
    """One game, called in one thread; it draws from a generator of its own."""

    world: Any
    players: int
    seed: int
    last_board: bool = False
    moves: list[str] = field(default_factory=list)
    board: str = ""

    def reset(self) -> None:
        self._random = OwnRandom(self.seed)
        with self._random.drawing():
            self.world.reset(num_players=self.players, seed=self.seed)

    def observe(self) -> tuple[int, str]:
        """Returns whose turn it is, and what that player has not seen yet."""
        with self._random.drawing():
            player, seen = self.world.get_observation()
        boards = [place for place, (_, _, kind) in enumerate(seen) if getattr(kind, "name", kind) == BOARD]
        if boards:
            self.board = seen[boards[-1]][1]
        old = set(boards[:-1]) if self.last_board else set()
        roles = self.world.state.role_mapping
        lines = [
            text if sender == GAME else f"[{roles.get(sender, f'Player {sender}')}] {text}"
            for place, (sender, text, _) in enumerate(seen)
            if sender != player and place not in old and isinstance(text, str)
        ]
        return player, "\n".join(lines) or "It is your turn."

    def step(self, player: int, action: str) -> bool:
        """Returns whether the game has ended."""
        self.moves.append(f"Player {player}: {action.strip()}")
        with self._random.drawing():
            ended, _ = self.world.step(action=action)
        return bool(ended)

    def close(self) -> tuple[Mapping[int, float] | None, Mapping[int, Mapping[str, Any]]]:
        """Returns the rewards by seat, None where the game gave none, and what it tells of each seat."""
        self.observe()  # the last board
        with self._random.drawing():
            result: tuple[Mapping[int, float] | None, Mapping[int, Mapping[str, Any]]] = self.world.close()
        return result


class TextArenaEnvironment(LibraryEnvironment):
    """A game by its id in textarena's registry.

    opponent: who has the other seats, see above. seat: the model's; None: the scenarios take turns.

    players: how many play; None: two, or as many as the game needs. max_turns: moves of all players after
    which a game ends without a reward. last_board: only the newest board of those that a player has not seen
    is shown; shorter, but a few games say on a board what they say once. rewrite: a function, or
    "module:function", that gets the text of a turn and returns what the model is shown instead. config:
    arguments of `textarena.make`.
    """

    LIBRARY = "textarena"

    @staticmethod
    def installed_names() -> dict[str, str]:
        """Returns the games, none of which needs anything."""
        import textarena  # noqa: F401  # registers its games
        from textarena.envs.registration import ENV_REGISTRY

        return dict.fromkeys(sorted(ENV_REGISTRY), "")

    @takes_options()
    def __init__(
        self,
        game: str,
        options: AdapterOptions,
        /,
        *,
        opponent: str | Model = RANDOM,
        seat: int | None = None,
        players: int | None = None,
        max_turns: int = 100,
        last_board: bool = False,
        rewrite: Callable[[str], str] | str | None = None,
        **config: Any,
    ) -> None:
        super().__init__(PREFIX + game, options)
        self._game_id, self._config = game, config
        self._library = self._find_game()
        self._players = self._count_players(players)
        if seat is not None and seat not in range(self._players):
            raise ConfigurationError(f"{self.name} has seats 0 to {self._players - 1}, not seat={seat}")
        self._seats = range(self._players) if seat is None else (seat,)
        self._opponent = opponent
        self._player = self._own_player(opponent)
        self._max_turns = max_turns
        self._last_board = last_board
        self._rewrite = load_object("rewrite", rewrite) if isinstance(rewrite, str) else rewrite

    def scenarios(self, split: str) -> Sequence[Scenario]:
        """Returns the scenarios of a split: seeds of the game, with the seats in turn."""
        found = []
        for index, seed in enumerate(self._scenario_seeds(split)):
            seat = self._seats[index % len(self._seats)]
            found.append(Scenario(f"{self.name}/{seed}/{seat}", {"seed": seed, "seat": seat}))
        return found

    async def rollout(
        self,
        model: Model,
        scenario: Scenario,
        *,
        seed: int | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
    ) -> Trajectory:
        """Plays one game and returns the trajectory of the scenario's seat, as `NamedEnvironment.rollout`."""
        played = await self.play(model, scenario, seed=seed, temperature=temperature, max_tokens=max_tokens)
        return next(one for one in played if one.metadata["seat"] == scenario.data["seat"])

    async def play(
        self,
        model: Model,
        scenario: Scenario,
        *,
        seed: int | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
    ) -> list[Trajectory]:
        """Plays one game and returns a trajectory for each seat that the model had, in the order of seats.

        With opponent="self" these are all seats, else the scenario's. Arguments as of `rollout`.
        """
        trained = list(range(self._players)) if self._opponent == SELF else [scenario.data["seat"]]
        talking = {
            player: self._conversation(
                model if player in trained else self._opponent,  # type: ignore[arg-type]
                seed=None if seed is None else turn_seed(seed, player),
                temperature=temperature,
                max_tokens=max_tokens,
            )
            for player in range(self._players)
            if player in trained or not isinstance(self._opponent, str)
        }
        chance = random.Random(None if seed is None else f"{self.name}/{scenario.id}/{seed}")
        with self._thread() as thread:
            world = await thread.call("making it", self._new_world)
            game = _Game(world, self._players, scenario.data["seed"], self._last_board)
            await thread.call("reset", game.reset)
            for _ in range(self._max_turns):
                player, seen = await thread.call("observing", game.observe)
                if player in talking:
                    shown = seen if self._rewrite is None else str(self._rewrite(seen))
                    talking[player].add({"role": "user", "content": shown})
                    action = await talking[player].ask()
                elif self._player is not None:
                    action = str(await thread.call("the opponent", self._player, seen))
                else:
                    action = await thread.call("the random opponent", draw_move, seen, chance)
                if await thread.call("step", game.step, player, action):
                    break
            rewards, infos = await thread.call("close", game.close)
        return [self._finish(talking[seat], scenario, seat, game, rewards, infos) for seat in trained]

    def _finish(
        self,
        conversation: RolloutConversation,
        scenario: Scenario,
        seat: int,
        game: _Game,
        rewards: Mapping[int, float] | None,
        facts_by_seat: Mapping[int, Mapping[str, Any]],
    ) -> Trajectory:
        facts = facts_by_seat.get(seat, {})
        metrics = {"turns": float(conversation.turns), "invalid": float(bool(facts.get("invalid_move")))}
        reward: float | Unscored
        if not conversation.turns:
            reward = Unscored(f"{self.name} ended before seat {seat} had a turn")
        elif rewards is None:
            reward = Unscored(f"{self.name} did not end within {self._max_turns} moves")
        else:
            reward = self._number(rewards.get(seat, 0.0))
            metrics["score"] = reward
            if self._players > 1:
                best, worst = max(rewards.values()), min(rewards.values())
                metrics["won"] = float(reward == best > worst)
                metrics["draw"] = float(best == worst)
                metrics["not_lost"] = float(reward == best)
        shown = f"reward: {reward if isinstance(reward, Unscored) else format(reward, 'g')}"
        return conversation.finish(
            scenario,
            reward=reward,
            metrics=metrics,
            show="\n".join([*game.moves, game.board, str(facts.get("reason") or ""), shown]),
            environment=self.name,
            seat=seat,
        )

    def _number(self, reward: Any) -> float:
        """Returns a game's reward as a number; a few games give a text in its place after a wrong move."""
        try:
            return float(reward)
        except (TypeError, ValueError) as error:
            raise EnvironmentFailedError(
                f"environment {self.name!r}: the game's reward is {reward!r}, not a number"
            ) from error

    def _find_game(self) -> Any:
        """Returns the library. Raises ConfigurationError where it has no such game."""
        with extra_needed("textarena", f"environment {self.name!r}"):
            import textarena
            from textarena.envs.registration import ENV_REGISTRY
        if self._game_id not in ENV_REGISTRY:
            hint = did_you_mean(self._game_id, ENV_REGISTRY)
            raise ConfigurationError(
                f"textarena has no game {self._game_id!r}{f'; {hint}' if hint else ''} "
                "textarena.envs.registration.ENV_REGISTRY lists them"
            )
        return textarena

    def _new_world(self) -> Any:
        """Returns a game that tells each message once, without the wrapper that joins all to one text.

        It takes "4" for "[4]" where the library's own does.
        """
        try:
            world = self._library.make(self._game_id, **self._config)
        except TypeError as error:
            raise ConfigurationError(f"{self.name} cannot be made with {self._config}: {error}") from error
        brackets, takes_bare_moves = self._library.wrappers.ActionFormattingWrapper, False
        while isinstance(world, self._library.Wrapper):
            takes_bare_moves |= isinstance(world, brackets)
            world = world.env
        return brackets(world) if takes_bare_moves else world

    def _count_players(self, asked: int | None) -> int:
        refused: Exception | None = None
        for players in PLAYERS if asked is None else (asked,):
            try:
                _Game(self._new_world(), players, 0).reset()
            except (AssertionError, ValueError) as error:
                refused = error
            except ConfigurationError:
                raise
            except Exception as error:
                raise EnvironmentFailedError(
                    f"environment {self.name!r}: reset failed: {type(error).__name__}: {error}"
                ) from error
            else:
                return players
        problem = "it cannot be started" if asked is None else f"players={asked} is refused"
        raise ConfigurationError(f"{self.name}: {problem}: {refused}") from refused

    def _own_player(self, opponent: str | Model) -> Player | None:
        """Returns the user's function. Raises ConfigurationError for text that names no opponent."""
        if not isinstance(opponent, str) or opponent in (RANDOM, SELF):
            return None
        if ":" not in opponent:
            raise ConfigurationError(
                f"{self.name}: opponent={opponent!r} is unknown: use 'random', 'self', 'module:function' or "
                "an art.Model"
            )
        player: Player = load_object("opponent", opponent)
        return player


def draw_move(seen: str, chance: random.Random) -> str:
    """Returns one of the moves in brackets that a text offers, such as "[4]", drawn at random.

    The moves are those after the last "Available moves:" or the like. Raises ConfigurationError where there
    are none.
    """
    offers = list(OFFER.finditer(seen))
    moves: list[str] = MOVE.findall(seen, offers[-1].end()) if offers else []
    if not moves:
        raise ConfigurationError(
            'the random opponent finds no list of moves in brackets, as in "Available moves: [0], [1]", in '
            f'{seen[-200:]!r}: give opponent="module:function" or opponent="self"'
        )
    return chance.choice(moves)
