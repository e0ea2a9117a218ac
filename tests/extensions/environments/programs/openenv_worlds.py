"""Environments of OpenEnv behind one real server, each under a path of its own: prints the server's port.

/guess: text in one field. /number: a whole number, by a field that has more beside it. /plan: a JSON object.
/single: one session at a time. /opening: `reset` tells other fields than `step`. /drops: closes the session
after one step. /calls: tools, by actions that name one. /rewarded: the same by actions without fields, until
the right call, with rewards. /fails, /hangs: in `step`. /tools: actions without fields. /huge: a picture.
/stepped: two steps that each have a reward. /faulty: the fault that `reset` is told. /dies: in `step`, which
ends the server. /pictured: pixels beside a text.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from typing import Any

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

HANGS = threading.Event()
"""Never set: what a hanging step waits for."""
WORTH = {"yes": 0.25, "no": 0.5, "maybe": 1.0}
REWARDS = {"nan": 7.5, "word": 8.5}
"""What the library is given in place of rewards that it does not write itself."""
SPELLED = {'"reward":7.5': '"reward":NaN', '"reward":8.5': '"reward":"great"'}


class Guess(Action):
    text: str


class Told(Observation):
    hint: str


class Number(Action):
    number: int
    why: str = ""


class Plan(Action):
    first: int
    second: str | None = None


class Board(Observation):
    board: str
    moves: list[int]


class GuessWorld(Environment[Any, Any, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.number, self.steps, self.most = 0, 0, 4

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, *, most: int = 4, **more: Any
    ) -> Any:
        self.number, self.steps, self.most = (seed or 0) // 2 % 10, 0, most
        return self.told("Guess a number from 0 to 9.")

    def step(self, action: Any, timeout_s: float | None = None, **more: Any) -> Any:
        self.steps += 1
        guess = self.guessed(action)
        right = guess == self.number
        hint = "Right." if right else "Higher." if guess < self.number else "Lower."
        return self.told(hint, done=right or self.steps == self.most, reward=1.0 if right else -0.125)

    def guessed(self, action: Any) -> int:
        return int(action.text) if action.text.strip().isdigit() else 99

    def told(self, hint: str, **more: Any) -> Any:
        return Told(hint=hint, **more)

    @property
    def state(self) -> State:
        return State(step_count=self.steps)


class NumberWorld(GuessWorld):
    def guessed(self, action: Any) -> int:
        return int(action.number)

    def told(self, hint: str, **more: Any) -> Any:
        return Board(board=hint, moves=[1, 2], **more)


class PlanWorld(NumberWorld):
    def guessed(self, action: Any) -> int:
        return int(action.first)


class SingleWorld(GuessWorld):
    SUPPORTS_CONCURRENT_SESSIONS = False


class OpeningWorld(GuessWorld):
    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Any:
        super().reset(seed, episode_id)
        return Board(board="Guess a number from 0 to 9.", moves=[1, 2])


class CallsWorld(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        tools = FastMCP("guess")

        @tools.tool
        def guess(number: int) -> str:
            """Guess the number 3."""
            return "Right." if number == 3 else "Higher."

        super().__init__(tools)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Any:
        return Observation(metadata={"status": "ready"})

    def _step_impl(self, action: Any, timeout_s: float | None = None, **more: Any) -> Any:
        return Observation()

    @property
    def state(self) -> State:
        return State()


class RewardedWorld(CallsWorld):
    async def step_async(self, action: Any, timeout_s: float | None = None, **more: Any) -> Any:
        told = await super().step_async(action, timeout_s, **more)
        if isinstance(action, CallToolAction):
            told.done = "Right." in str(told.result)
            told.reward = 1.0 if told.done else -0.125
        return told


class FailsWorld(GuessWorld):
    def guessed(self, action: Any) -> int:
        raise KeyError("no board")


class HangsWorld(GuessWorld):
    def guessed(self, action: Any) -> int:
        HANGS.wait(20)
        return 0


class HugeWorld(GuessWorld):
    def told(self, hint: str, **more: Any) -> Any:
        return Told(hint="A" * 300_000, **more)


class Pictured(Told):
    pixels: list[list[list[int]]] | None = None


class PicturedWorld(GuessWorld):
    def told(self, hint: str, **more: Any) -> Any:
        return Pictured(hint=hint, pixels=[[[255, 0, 0], [0, 0, self.steps]]] * 2, **more)


class SteppedWorld(GuessWorld):
    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Any:
        self.steps = 0
        return self.told("respond with yes, no or maybe")

    def step(self, action: Any, timeout_s: float | None = None, **more: Any) -> Any:
        self.steps += 1
        reward = WORTH.get(action.text.strip(), 0.0) * self.steps
        return self.told("respond with maybe, no or yes", reward=reward, done=self.steps == 2)


class FaultyWorld(GuessWorld):
    def reset(
        self, seed: int | None = None, episode_id: str | None = None, *, fault: str = "", **more: Any
    ) -> Any:
        self.fault = fault
        return self.told("word " * 2_000_000 if fault == "prompt" else "respond with yes, no or maybe")

    def step(self, action: Any, timeout_s: float | None = None, **more: Any) -> Any:
        if self.fault == "hangs":
            HANGS.wait(20)
        if self.fault == "fails":
            raise KeyError("no board")
        hint = "flood " * 4_000_000 if self.fault == "floods" else "Right."
        return self.told(hint, done=True, reward=REWARDS.get(self.fault, 1.0))


class DyingWorld(GuessWorld):
    def guessed(self, action: Any) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0


def world(made: type[Any], action: type[Action], told: type[Observation], most: int = 64) -> Any:
    return create_fastapi_app(made, action, told, max_concurrent_envs=most)


def dropping(app: Any, answers: int) -> Any:
    """Returns the application with sessions that are closed after so many answers."""

    async def run(scope: Any, receive: Any, send: Any) -> None:
        left = answers

        async def send_some(message: Any) -> None:
            nonlocal left
            await send(message)
            left -= message["type"] == "websocket.send"
            if left == 0:
                await send({"type": "websocket.close", "code": 1001})

        await app(scope, receive, send_some)

    return run


def spelling(app: Any) -> Any:
    """Returns the application with rewards as other servers may send them."""

    async def run(scope: Any, receive: Any, send: Any) -> None:
        async def send_spelled(message: Any) -> None:
            for text, other in SPELLED.items():
                if message.get("text"):
                    message = {**message, "text": message["text"].replace(text, other)}
            await send(message)

        await app(scope, receive, send_spelled)

    return run


def main() -> None:
    worlds = {
        "guess": world(GuessWorld, Guess, Told),
        "number": world(NumberWorld, Number, Board),
        "plan": world(PlanWorld, Plan, Board),
        "single": world(SingleWorld, Guess, Told, 1),
        "opening": world(OpeningWorld, Guess, Told),
        "drops": dropping(world(GuessWorld, Guess, Told), 2),
        "calls": world(CallsWorld, CallToolAction, CallToolObservation),
        "rewarded": world(RewardedWorld, Action, Observation),
        "fails": world(FailsWorld, Guess, Told),
        "hangs": world(HangsWorld, Guess, Told),
        "huge": world(HugeWorld, Guess, Told),
        "tools": world(GuessWorld, Action, Told),
        "pictured": world(PicturedWorld, Guess, Pictured),
        "stepped": world(SteppedWorld, Guess, Told),
        "faulty": spelling(world(FaultyWorld, Guess, Told)),
        "dies": world(DyingWorld, Guess, Told),
    }
    routes = [Mount(f"/{name}", app) for name, app in worlds.items()]
    other = Route("/other/schema", lambda request: PlainTextResponse("hello"))
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=[*routes, other]), log_level="warning"))
    server.run(sockets=[listening])


if __name__ == "__main__":
    main()
