"""The pages that a new user reads first train in one way, and so does what `art init` writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FIRST = [ROOT / "README.md", ROOT / "docs/index.md", ROOT / "docs/get-started/first-agent.md"]
SKELETON = ROOT / "src" / "art_extensions" / "init" / "skeleton"
PROJECTS = [one for one in sorted(SKELETON.glob("*/train.py")) if one.parent.name != "sft"]
NEXT = [ROOT / "docs" / name for name in ("concepts/training-loop.md", "guides/client.md")]


@pytest.mark.parametrize("page", [*FIRST, *PROJECTS, *NEXT], ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_trains_in_the_one_way(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "art.local import" not in text and re.search(r"async with art\.LocalBackend\(\) as backend:", text)
    assert "backend.train(" not in text and re.search(r"await model\.train\(groups[,)]", text)
    assert not re.search(r"model\.train\(\w+, learning_rate", text), (
        "config=art.TrainConfig(learning_rate=...)"
    )
    assert not re.search(r"for (?!step\b)\w+ in range\(await model\.get_step\(\)", text)


@pytest.mark.parametrize("page", FIRST, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_first_pages_have_the_same_loop(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    loop = text.split("async with art.LocalBackend() as backend:\n")[1].split("\n\n")[0]
    lines = [re.sub(r"\s*#.*", "", line).strip() for line in loop.splitlines()]
    assert lines[0] == "await model.register(backend)"
    assert re.fullmatch(r"for step in range\(await model\.get_step\(\), (10|steps)\):", lines[1])
    assert lines[2] == "groups = await art.gather_trajectory_groups("
    assert lines[5] == "await model.train(groups, config=art.TrainConfig(learning_rate=2e-3))"
