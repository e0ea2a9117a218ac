"""`python -m art_extensions.testing`: start a judge that knows the truth, or a generator with prepared
answers.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from art.errors import ARTError, ConfigurationError
from art_extensions.testing.answers import Answer, Mischief, ScriptedGenerator, either
from art_extensions.testing.llm_server import LlmServer
from art_extensions.testing.truthful_judge import BY_TASK, Quality, TruthfulJudge

EXAMPLES = """
  python -m art_extensions.testing --quality mail --port 8100
  python -m art_extensions.testing --quality my_package.truth:quality --mischief 0.3 --noise 0.1
  python -m art_extensions.testing --answers answers.json      # {"scenarios": [...], "rubric": "..."}
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m art.testing",
        description="A real endpoint of OpenAI's shape on loopback that knows the truth, and can misbehave.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tasks = ", ".join(BY_TASK)
    made.add_argument("--quality", help=f"who knows what a trajectory is worth: {tasks}, or module:function")
    made.add_argument(
        "--answers", type=Path, help="JSON file: what is generated, by the name of the property"
    )
    made.add_argument("--port", type=int, default=0, help="default: a free one")
    made.add_argument("--key", default="test-key", help="what clients must send; default: %(default)s")
    made.add_argument("--mischief", type=float, default=0.0, help="share of requests that meet trouble")
    made.add_argument("--position-bias", type=float, default=0.0, help="what the first place is worth")
    made.add_argument("--length-bias", type=float, default=0.0, help="what the longest is worth")
    made.add_argument("--noise", type=float, default=0.0, help="standard deviation of each score")
    made.add_argument("--seed", type=int, default=0)
    return made


def find_quality(name: str) -> Quality:
    """The function that `name` stands for. Raises ConfigurationError where there is none."""
    if name in BY_TASK:
        return BY_TASK[name]
    module, _, attribute = name.partition(":")
    try:
        found: Any = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"--quality {name!r} names no function ({error}); write {', '.join(BY_TASK)} or module:function"
        ) from error
    if not callable(found):
        raise ConfigurationError(f"--quality {name!r} is no function but {found!r}")
    quality: Quality = found
    return quality


def answers(options: argparse.Namespace) -> Answer:
    """Returns the endpoint's answers. Raises ConfigurationError if there would be none."""
    judge = generator = None
    if options.quality is not None:
        judge = TruthfulJudge(
            find_quality(options.quality),
            position_bias=options.position_bias,
            length_bias=options.length_bias,
            noise=options.noise,
            seed=options.seed,
        )
    if options.answers is not None:
        generator = ScriptedGenerator(**json.loads(options.answers.read_text()))
    if judge is not None and generator is not None:
        return either(judge=judge, generator=generator)
    known = judge or generator
    if known is None:
        raise ConfigurationError("pass --quality for a judge, --answers for a generator, or both")
    return known


def main(arguments: Sequence[str]) -> int:
    """Serve until interrupted. Returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        mischief = Mischief.everything(options.mischief, seed=options.seed)
        server = LlmServer(answers(options), mischief=mischief, key=options.key, port=options.port)
        with server:
            sys.stdout.write(f"{server.base_url} key {server.key}\n")
            sys.stdout.flush()
            threading.Event().wait()
    except (ARTError, OSError, json.JSONDecodeError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
