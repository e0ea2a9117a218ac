"""From a file its test is guessed: `tests/` has the folders of `src/art`, and a few of its own.

The tests of `src/art_extensions/NAME` are in `tests/extensions/NAME`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
ROOMS = TESTS.parent / "src" / "art"
EXTENSIONS = TESTS.parent / "src" / "art_extensions"
OWN = {"contracts", "flow", "faults", "promises", "scale", "integrations"}
"""All engines or losses by one suite; ways through many rooms; kills and stalls; what holds for the house;
many nodes; agents of other people's frameworks."""
BESIDE = {"programs", "node", "recipes"}
"""In a room's folder: programs that its tests start, their packages, and the tests of an environment of its
own."""


@pytest.mark.slow
def test_every_folder_of_tests_is_a_room_or_one_of_the_few() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "."],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    folders = {Path(name).parent for name in listed if name.endswith(".py") and "/" in name}
    strays = [
        str(folder)
        for folder in sorted(folders)
        if folder.parts[0] not in OWN
        and not (ROOMS / folder).is_dir()
        and not (folder.parts[0] == "extensions" and (EXTENSIONS / Path(*folder.parts[1:])).is_dir())
        and not (ROOMS / folder).with_suffix(".py").is_file()
        and not BESIDE & set(folder.parts)
    ]
    assert not strays, strays
