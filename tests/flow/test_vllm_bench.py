"""vLLM's own load tool, `vllm bench serve` with its random data, measures this server as it does vLLM's."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest

import art
from art.engine.nano_models import resolve

PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"
REQUESTS, LENGTH = 12, 16
TOOL = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""The script `vllm` of the CPU build looks for a distribution of another name and cannot start."""


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_every_request_of_the_load_tool_succeeds(tmp_path: Path) -> None:
    model = art.TrainableModel(name="bench", project="bench", base_model="art/nano-words")
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        url = str(model.inference_base_url).removesuffix("/v1")
        options = {
            "backend": "openai-chat",
            "base-url": url,
            "endpoint": "/v1/chat/completions",
            "model": model.get_inference_name(),
            "tokenizer": resolve("art/nano-words"),
            "dataset-name": "random",
            "random-input-len": 32,
            "random-output-len": LENGTH,
            "num-prompts": REQUESTS,
            "result-filename": tmp_path / "found.json",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        process = await asyncio.create_subprocess_exec(
            PYTHON,
            *("-c", TOOL, "--save-result", *words),
            env={**os.environ, "OPENAI_API_KEY": str(model.inference_api_key), "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        printed = (await asyncio.wait_for(process.communicate(), 240))[0].decode()
    assert process.returncode == 0, printed[-3000:]
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert (found["completed"], found["failed"]) == (REQUESTS, 0), printed[-3000:]
    assert found["total_output_tokens"] == REQUESTS * LENGTH, "it asks for a length, and gets it"
