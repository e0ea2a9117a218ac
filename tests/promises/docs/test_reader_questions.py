"""Thirty questions of a new reader: each has its answer at most two links from the README.

An answer is a section of a page with the words that answer the question: a command, an option, a number.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MOST_LINKS = 2
_LINK = re.compile(r"\]\(([^)\s#:]+\.md)(?:#[^)]*)?\)")
ANSWERS = {
    "How do I install it?": ("docs/get-started/installation.md#with-pip", ["pip install", "[local]"]),
    "Which Python do I need?": ("README.md#art-the-agent-reinforcement-trainer", ["Python 3.11"]),
    "Does it run on macOS and Windows?": (
        "docs/get-started/installation.md#operating-systems",
        ["macOS", "Windows", "not supported"],
    ),
    "How do I get torch without CUDA?": (
        "docs/get-started/installation.md#torch-cuda-and-cpus",
        ["download.pytorch.org/whl/cpu"],
    ),
    "How much VRAM do I need?": ("docs/guides/hardware.md#model-size", ["Qwen3-8B", "24 GB"]),
    "How do I compute the memory of my model?": ("docs/guides/hardware.md#hardware", ["art doctor --plan"]),
    "Was it measured on a GPU?": (
        "README.md#art-the-agent-reinforcement-trainer",
        ["from two CPU cores unless a GPU is named"],
    ),
    "What does a program look like?": ("README.md#an-agent-of-your-own", ["model.train(", "reward"]),
    "How do I start a project of my own?": (
        "docs/get-started/first-agent.md#replace-the-task",
        ["art init", "scenario", "reward"],
    ),
    "Which base model should I choose?": (
        "docs/get-started/first-agent.md#choose-a-base-model",
        ["Qwen/Qwen3-0.6B", "24 GB"],
    ),
    "Why does art/nano answer noise?": (
        "docs/get-started/first-agent.md#choose-a-base-model",
        ["`art/nano` knows"],
    ),
    "What learning rate should I use?": ("docs/guides/tuning.md#learning-rate", ["3e-4", "2e-3"]),
    "What group size should I use?": (
        "docs/concepts/rollouts-and-groups.md#group-size-and-scenarios-per-step",
        ["8 scenarios of 8 rollouts", "batch size"],
    ),
    "Which options matter?": ("docs/reference/options.md#ten-options-to-know-first", ["learning_rate"]),
    "Is my run healthy?": ("docs/reference/metrics.md#healthy-ranges", ["loss/entropy", "lower"]),
    "Why does a step train nothing?": (
        "docs/guides/troubleshooting.md#the-reward-does-not-rise",
        ["trained nothing", "equal"],
    ),
    "My reward collapsed. What now?": (
        "docs/guides/troubleshooting.md#the-run-gets-worse",
        ["learning rate is too high", "Fork"],
    ),
    "What is an advantage?": ("docs/concepts/glossary.md#glossary", ["| advantage |", "baseline"]),
    "How do I see rollouts?": ("docs/get-started/faq.md#training", ["art show", "trajectories/"]),
    "How do I draw the reward curve?": ("docs/reference/logs.md#charts", ["training_progress_chart"]),
    "How do I log to Weights & Biases?": ("docs/reference/metrics.md#weights-biases", ["WANDB_API_KEY"]),
    "How do I resume a run?": ("docs/concepts/checkpoints.md#resume-a-run", ["get_step"]),
    "How do I write a reward?": ("docs/concepts/rewards.md#rewards", ["as_reward", "trajectory.reward"]),
    "How do I train without labels?": ("docs/guides/ruler.md#ruler", ["judge", "no labels"]),
    "How do I stop paying for the judge?": ("docs/guides/judge-models.md#budgets", ["Budget(", "usd"]),
    "Can the judge be a model of mine?": (
        "docs/guides/judge-models.md#judge-and-generator-models",
        ["ollama", "base_of(model)"],
    ),
    "How do I train an agent that I did not write?": ("docs/guides/any-agent.md#any-agent", ["base URL"]),
    "How do I train a LangGraph agent?": ("docs/guides/langgraph.md#langgraph", ["wrap_rollout"]),
    "How do I fine-tune on examples first?": (
        "docs/guides/sft.md#from-conversations",
        ["train_sft", "learning_rate"],
    ),
    "How do I use the trained model elsewhere?": (
        "docs/guides/export.md#export-a-checkpoint",
        ["art export", "vLLM", "Ollama"],
    ),
}


def slug(heading: str) -> str:
    return re.sub(r"-+", "-", re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-"))


def section(page: str, anchor: str) -> str:
    """Returns the text below a heading, up to the next heading."""
    text = (ROOT / page).read_text(encoding="utf-8")
    code = [(found.start(), found.end()) for found in re.finditer(r"^```.*?^```", text, re.M | re.S)]
    headings = [
        found
        for found in re.finditer(r"^#+ (.+)$", text, re.M)
        if not any(start < found.start() < end for start, end in code)
    ]
    for number, heading in enumerate(headings):
        if slug(heading[1]) == anchor:
            return text[heading.end() : headings[number + 1].start() if headings[number + 1 :] else None]
    raise AssertionError(f"{page} has no heading #{anchor}")


@cache
def links_from_the_readme() -> dict[str, int]:
    """Page -> the links that lead to it from the README, at least."""
    found, newest = {"README.md": 0}, ["README.md"]
    while newest:
        reached = []
        for page in newest:
            text = (ROOT / page).read_text(encoding="utf-8")
            for link in _LINK.findall(text):
                target = (ROOT / page).parent.joinpath(link).resolve()
                name = str(target.relative_to(ROOT)) if target.is_relative_to(ROOT) else ""
                if name and target.exists() and name not in found:
                    found[name] = found[page] + 1
                    reached.append(name)
        newest = reached
    return found


def test_there_are_thirty() -> None:
    assert len(ANSWERS) == 30


@pytest.mark.parametrize("question", ANSWERS)
def test_the_answer_is_at_most_two_links_from_the_readme(question: str) -> None:
    where, words = ANSWERS[question]
    page, _, anchor = where.partition("#")
    assert links_from_the_readme()[page] <= MOST_LINKS
    answer = section(page, anchor)
    missing = [word for word in words if word not in answer]
    assert not missing, f"{where} does not answer {question!r}: {missing}"


def test_a_section_ends_at_the_next_heading() -> None:
    assert "art doctor --plan" not in section("README.md", "install")
    with pytest.raises(AssertionError, match="no heading"):
        section("README.md", "no-such-heading")
