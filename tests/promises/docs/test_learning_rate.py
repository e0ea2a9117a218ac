"""One answer to the question which learning rate to begin with, on every page and in every command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from art.client.options.learning_rates import BUILT_IN_RATES, LORA_RATE, spelled_rate, starting_rate
from art.engine.nano_models import NAMES, resolve
from art.environments.tasks import defaults_of, find
from art.runs.folder import RunSettings
from art_extensions.init.command import TEMPLATES, create_project

ROOT = Path(__file__).parents[3]
PAGES = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.py")),
    *sorted((ROOT / "examples").rglob("*.ipynb")),
    *sorted((ROOT / "src").rglob("*.md")),
    ROOT / "src" / "art" / "__init__.py",
)
SAID = re.compile(
    r"(?:--(?:learning|sft)-rate |learning_rate[`\"]?(?:=|: )|rate of |peak_lr=|with )(\d[\d.]*e-\d+)"
)
OWN = {
    "docs/guides/asynchronous-training.md": {"1e-5"},  # the default of PipelineTrainer, and says so
    "docs/guides/coding-agents.md": {"5e-4"},  # of the measured run, twelve steps
    "examples/coding_agent.py": {"5e-4"},
    "docs/guides/tinker.md": {"5e-4"},  # of twelve steps, measured
    "docs/internals/benchmarks.md": {"1e-5"},  # a peer's
    "examples/tic_tac_toe/self_play.py": {"1e-3"},  # of its SFT, measured
    "examples/tic_tac_toe/self_play.ipynb": {"1e-3"},
    "examples/notebooks/own_agent.py": {"4e-4"},  # their outputs are kept
    "examples/notebooks/own_agent.ipynb": {"4e-4"},
    "examples/notebooks/ruler.py": {"5e-4"},
    "examples/notebooks/ruler.ipynb": {"5e-4"},
}
"""Pages that say another rate."""


def rates_of(page: Path) -> Iterator[str]:
    yield from SAID.findall(page.read_text(encoding="utf-8"))


def test_every_page_says_the_rates_to_begin_with() -> None:
    known = {spelled_rate(rate) for rate in (LORA_RATE, *BUILT_IN_RATES.values())}
    said = {page.relative_to(ROOT).as_posix(): set(rates_of(page)) - known for page in PAGES}
    assert {page: rates for page, rates in said.items() if rates} == OWN
    assert sum(len([*rates_of(page)]) for page in PAGES) > 40, "the pattern finds what pages say"


def test_the_page_on_tuning_has_the_table() -> None:
    page = (ROOT / "docs" / "guides" / "tuning.md").read_text(encoding="utf-8")
    rows = dict(
        re.findall(r"^\| (.*?) \| (\d[\d.]*e-\d+)(?: \(measured on `art/smollm2`\))? \|$", page, re.M)
    )
    assert float(rows.pop("a pretrained model: `art/smollm2`, a model of the hub")) == LORA_RATE
    built_in = {
        name: float(rate) for names, rate in rows.items() for name in re.findall("`(art/.*?)`", names)
    }
    assert built_in == BUILT_IN_RATES


def test_each_card_says_the_rate_of_its_model() -> None:
    assert set(BUILT_IN_RATES) == set(NAMES)
    for name, rate in BUILT_IN_RATES.items():
        card = (resolve(name) / "README.md").read_text(encoding="utf-8")
        assert f"- Learning rate to begin with, of a LoRA: {spelled_rate(rate)}.\n" in card


def test_the_commands_begin_with_it(tmp_path: Path) -> None:
    from art.client.options.declared_options import field_docstrings

    assert f"Default: {spelled_rate(LORA_RATE)}, or" in field_docstrings(RunSettings)["learning_rate"]
    assert defaults_of(find("tic-tac-toe"), "Qwen/Qwen3-0.6B").learning_rate == LORA_RATE
    for template in TEMPLATES:
        for base in ("art/smollm2", "Qwen/Qwen3-0.6B", "art/nano-words"):
            folder = tmp_path / template / base
            create_project(folder, template=template, base_model=base, project="words")
            program = (folder / "train.py").read_text(encoding="utf-8")
            assert f'default=float("{spelled_rate(starting_rate(base))}")' in program
            assert "__" not in (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "said", ["--learning-rate 5e-5", "learning_rate=1e-4", '"learning_rate": 1e-5', "Start with 1e-5 for"]
)
def test_the_pattern_finds_what_pages_said(said: str) -> None:
    assert SAID.search(said)
