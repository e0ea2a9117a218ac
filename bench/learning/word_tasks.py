"""Task folders of Harbor for a coding agent on a small model: each asks for a word in a named file."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from art_extensions.harbor.mini_swe_agent import CONFIGS

WORDS = (
    "apple bread chair dance eagle flame grape horse igloo juice knife lemon mouse night ocean paper "
    "queen river sugar table uncle voice water yacht zebra amber beach cloud dream earth field glass"
).split()
TEST = """#!/bin/bash
reward=0; right=0
if cat /app/*.txt 2>/dev/null | grep -q {word}; then reward=0.25; fi
if [ -f /app/{name}.txt ]; then reward=0.5; fi
if [ "$(cat /app/{name}.txt 2>/dev/null)" = {word} ]; then reward=1; right=1; fi
echo "{{\\"reward\\": $reward, \\"right\\": $right}}" > /logs/verifier/reward.json
"""
COMMAND = r"```mswea_bash_command\n[^`\n]{1,40}\n```"


def write_word_tasks(folder: Path, number: int) -> Path:
    """Writes so many task folders, and the prompt beside them. Returns the folder of the tasks."""
    dice, pairs = random.Random("word tasks"), [(word, name) for word in WORDS for name in WORDS]
    for word, name in dice.sample(pairs, number):
        files = {
            "task.toml": "[agent]\ntimeout_sec = 600\n[verifier]\ntimeout_sec = 60\n",
            "instruction.md": f"Write the word {word} to the file {name}.txt.",
            "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\n",
            "tests/test.sh": TEST.format(word=word, name=name),
            "solution/solve.sh": f"#!/bin/bash\necho {word} > {name}.txt\n",
        }
        for place, text in files.items():
            path = folder / "tasks" / f"{word}-{name}" / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    shutil.copy(CONFIGS["small-model"], folder / "prompt.yaml")
    return folder / "tasks"
