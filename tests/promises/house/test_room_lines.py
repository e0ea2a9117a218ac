"""The core stays small enough to hold: the lines of each room may only fall.

    python tests/promises/house/test_room_lines.py      writes the numbers of today where they have fallen

A number in `room_lines.toml` that is raised is a line of the diff, beside the feature of CHANGELOG.md.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "src"
FILE = Path(__file__).with_name("room_lines.toml")
MOST_CORE = 73_179
"""Lines of `src/art`."""


def count_lines(source: Path = SOURCE) -> dict[str, int]:
    """Room -> its lines of Python. Files at the top of the core are one room, `art`."""
    found = {"art": sum(lines_of(path) for path in (source / "art").glob("*.py"))}
    for tree in ("art", "art_extensions"):
        for room in sorted(path for path in (source / tree).iterdir() if (path / "__init__.py").exists()):
            found[f"{tree}/{room.name}"] = sum(lines_of(path) for path in room.rglob("*.py"))
    return found


def lines_of(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def agreed_lines() -> dict[str, int]:
    return {str(room): int(lines) for room, lines in tomllib.loads(FILE.read_text()).items()}


def written(lines: dict[str, int]) -> str:
    return "".join(f'"{room}" = {count}\n' for room, count in lines.items())


def test_no_room_has_more_lines_than_agreed() -> None:
    agreed, found = agreed_lines(), count_lines()
    assert agreed.keys() == found.keys()
    more = {room: lines - agreed[room] for room, lines in found.items() if lines > agreed[room]}
    assert not more, "so many lines too many: take something out, or raise it for a feature of CHANGELOG.md"


def test_the_core_is_not_larger_than_agreed() -> None:
    assert sum(lines for room, lines in count_lines().items() if room.split("/")[0] == "art") <= MOST_CORE


def test_lines_are_counted_by_room(tmp_path: Path) -> None:
    for name in ("art/__init__", "art/one/__init__", "art/one/deep/two", "art_extensions/three/__init__"):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a = 1\nb = 2\n")
    assert count_lines(tmp_path) == {"art": 2, "art/one": 4, "art_extensions/three": 2}


if __name__ == "__main__":
    known = agreed_lines() if FILE.exists() else {}
    FILE.write_text(written({room: min(known.get(room, n), n) for room, n in count_lines().items()}))
