"""JSON of one line stays one, whichever function cuts it."""

from __future__ import annotations

import json
import sys

import orjson

from art.wire.json_lines import one_line

POINTS = map(chr, range(sys.maxunicode + 1))
EVERY_BREAK = "".join(mark for mark in POINTS if len(f"a{mark}b".splitlines()) > 1)


def test_every_character_that_ends_a_line_is_escaped() -> None:
    assert "\u2028" in EVERY_BREAK
    value = {"text": f"é{EVERY_BREAK}🙂", EVERY_BREAK: 1}
    for written in (orjson.dumps(value), json.dumps(value, ensure_ascii=False)):
        line = one_line(written)
        assert len(line.decode().splitlines()) == 1
        assert json.loads(line) == orjson.loads(line) == value
