"""The extra `litellm`, in the environment where litellm is installed: it pins another `openai` than ours."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from art_extensions.testing import LlmServer, Mischief
from waiting import DEADLINE_S

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-frameworks" / "bin" / "python"
PROGRAM = Path(__file__).parent / "programs" / "ask_through_litellm.py"
MISSING = not PYTHON.exists() and not os.environ.get("ART_TEST_EVERYTHING")


@pytest.mark.slow
@pytest.mark.frameworks
@pytest.mark.skipif(MISSING, reason=f"no {PYTHON.parents[1].name}: `make .venv-frameworks/.installed`")
async def test_a_judge_is_asked_through_litellm() -> None:
    busy = Mischief(busy=0.5, retry_after=0.01, seed=1)
    async with LlmServer(lambda body: {"a": 1}, mischief=busy) as server:
        process = await asyncio.create_subprocess_exec(
            *(str(PYTHON), str(PROGRAM), server.base_url, server.key),
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT / "src"),
                "LITELLM_LOCAL_MODEL_COST_MAP": "1",
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), DEADLINE_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode == 0, err.decode()[-3000:]
    told: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert told["answer"] == [1, 1, 1] and told["tokens"] > 0 and told["usd"] > 0
    assert told["refused"] == "ConfigurationError"
    assert told["retries"] == sum(one.trouble == "busy" for one in server.served)
    body = server.requests[-1]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("gpt-4.1-mini", 0.5, 9)
    assert body["response_format"]["type"] == "json_schema"
