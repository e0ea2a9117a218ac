"""Stop strings are found wherever they begin, also across tokens that are parts of a character."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from art.engine.builtin.scheduler import StopStrings


class Bytes:
    """A token is a piece of bytes: the hardest tokenizer there is."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def decode(self, token_ids: list[int]) -> str:
        return b"".join(self.pieces[token] for token in token_ids).decode(errors="replace")


def first_stop(pieces: list[bytes], strings: tuple[str, ...]) -> tuple[int, str] | None:
    """After how many tokens which string was found."""
    stops = StopStrings(strings, Bytes(pieces))
    for count in range(1, len(pieces) + 1):
        found = stops.find(list(range(count)))
        if found is not None:
            return count, found
    return None


def test_a_string_over_several_tokens_is_found() -> None:
    assert first_stop([b"ab", b"c\n", b"\nd", b"e"], ("\n\n",)) == (3, "\n\n")


def test_the_earliest_string_is_named() -> None:
    assert first_stop([b"one two"], ("two", "one")) == (1, "one")


def test_half_a_character_is_waited_for() -> None:
    smile = "\N{SLIGHTLY SMILING FACE}"
    pieces = [bytes([byte]) for byte in f"x{smile}y".encode()]
    assert first_stop(pieces, (smile,)) == (5, smile)
    assert first_stop(pieces, (f"{smile}y",)) == (6, f"{smile}y")


@given(
    st.text("ab\N{LATIN SMALL LETTER E WITH ACUTE}\n", max_size=30),
    st.text("ab\n", min_size=1, max_size=3),
    st.data(),
)
def test_it_is_found_with_the_token_that_completes_it(text: str, stop: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(raw) - 1)), max_size=12)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True) if a < b]
    expected = None
    for count in range(1, len(pieces) + 1):
        if stop in b"".join(pieces[:count]).decode(errors="replace"):
            expected = (count, stop)
            break
    assert first_stop(pieces, (stop,)) == expected


def stop_after(pieces: list[bytes], stop: str, least: int) -> int | None:
    """After how many tokens it ends, when the first `least` end nothing."""
    stops = StopStrings((stop,), Bytes(pieces))
    for count in range(1, len(pieces) + 1):
        if count <= least:
            stops.pass_over(list(range(count)))
        elif stops.find(list(range(count))) is not None:
            return count
    return None


def test_what_is_passed_over_ends_nothing_but_may_begin_a_stop_string() -> None:
    smile = "\N{SLIGHTLY SMILING FACE}".encode()
    assert stop_after([b"\n", b"\n", b"a", b"b\n"], "\n\n", 1) == 2  # as under vLLM
    assert stop_after([b"\n\n", b"a", b"\n\n"], "\n\n", 1) == 3
    assert stop_after([b"\n\n", b"\n", b"a"], "\n\n", 1) == 2
    assert stop_after([b"x" + smile[:2], smile[2:], b"x"], "x", 1) == 3
    assert stop_after([b"x" + smile[:2], smile[2:], b"x"], smile.decode(), 1) == 2
