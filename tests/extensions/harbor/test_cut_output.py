"""The output of a command is cut in the middle, in whatever parts it comes."""

from __future__ import annotations

import pytest

from art_extensions.harbor.sandbox import OUTPUT_BYTES, CutOutput


@pytest.mark.parametrize(
    "size", [0, 5, OUTPUT_BYTES - 1, OUTPUT_BYTES, OUTPUT_BYTES + 1, 3 * OUTPUT_BYTES + 7]
)
@pytest.mark.parametrize("part", [4096, 65_537, OUTPUT_BYTES // 2, 10 * OUTPUT_BYTES])
def test_the_first_and_the_last_half_are_kept(size: int, part: int) -> None:
    given = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    output, half = CutOutput(), OUTPUT_BYTES // 2
    for start in range(0, size, part):
        output.add(given[start : start + part])
    between = f"\n... {size - 2 * half} bytes are left out ...\n".encode() if size > 2 * half else b""
    kept = given[:half] + between + given[half:][-half:]
    assert output.text() == kept.decode()
