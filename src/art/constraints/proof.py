"""Whether a grammar compiles within limits, found out by a helper of `art.process.bounded`."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from art.constraints.vocabulary import Vocabulary
from art.errors import RequestError
from art.process.bounded import Bounded, WorkLimits

LIMITS = WorkLimits(cpu_s=4, wall_s=60.0, memory_bytes=256 << 20, output_bytes=1 << 16)
"""What one constraint may cost to be compiled."""


def helper(vocabulary: Callable[[], Vocabulary]) -> Bounded:
    """Who compiles first. A task is `compile_task`'s; its answer says what is wrong and how large it is."""

    def setup() -> bytes:
        read = vocabulary()
        return orjson.dumps([read.text, read.end])

    return Bounded(__name__, setup, LIMITS)


def prepare(setup: bytes) -> Callable[[bytes], bytes]:
    """In the helper: `[vocabulary, its end]` in JSON."""
    import resource

    from art.constraints.grammar import compiled
    from art.engine.protocol import Constraint

    vocabulary = Vocabulary(*orjson.loads(setup))
    tokens = vocabulary.tokens

    def prove(task: bytes) -> bytes:
        kind, text = orjson.loads(task)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            compiled(Constraint(kind=kind, text=text), tokens)
        except RequestError as error:
            return orjson.dumps([str(error), 0])
        return orjson.dumps([None, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)])

    return prove
