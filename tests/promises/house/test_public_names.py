"""Every public name can be imported, is documented, and importing the package does nothing else."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

import pytest

import art

HEAVY = [
    "torch",
    "transformers",
    "vllm",
    "litellm",
    "wandb",
    "starlette",
    "uvicorn",
    "numpy",
    "openai",
    "tokenizers",
]


def test_every_public_name_is_importable_and_documented() -> None:
    undocumented = []
    for name in art.__all__:
        value = getattr(art, name)
        if (
            inspect.isclass(value) or inspect.isfunction(value) or inspect.ismodule(value)
        ) and not inspect.getdoc(value):
            undocumented.append(name)
    assert art.__all__, "nothing is public"
    assert not undocumented, undocumented


def test_dir_lists_the_public_names() -> None:
    assert set(art.__all__) <= set(dir(art))


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(art, "no_such_name")


@pytest.mark.slow
def test_importing_is_silent() -> None:
    program = f"""
import json, os, sys, threading
before = dict(os.environ); filters = len(__import__("warnings").filters)
import art
print(json.dumps({{
    "environment": dict(os.environ) == before,
    "filters": len(__import__("warnings").filters) == filters,
    "threads": threading.active_count(),
    "heavy": [name for name in {HEAVY!r} if name in sys.modules],
}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 1 and not done.stderr
    assert json.loads(lines[0]) == {"environment": True, "filters": True, "threads": 1, "heavy": []}
