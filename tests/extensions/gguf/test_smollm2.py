"""`art/smollm2`: a model that others trained, from its GGUF file to a reply of the real server."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

import art
from art.engine.base_models import local_folder
from art_extensions.audit.audit_run import all_verdicts
from art_extensions.gguf.cache import list_converted

pytestmark = pytest.mark.slow

IDS = {
    "The capital of France is": [504, 3575, 282, 4649, 314],
    "12345 apples and 67,890.12 pears": [
        *(33, 34, 35, 36, 37, 13855, 284, 216, 38, 39, 28, 40, 41, 32, 30, 33, 34, 41684)
    ],
    "  two  spaces\n\n\nnewlines\ttab": [216, 827, 216, 5600, 1116, 198, 2241, 5110, 197, 15999],
    "I'm you're WE'LL they'd": [57, 5248, 346, 2316, 26587, 23, 16421, 502, 6737],
}
"""Ids of llama.cpp's own tokenizer for this file (node-llama-cpp 3.21.1)."""


@pytest.fixture(scope="module")
def folder() -> Path:
    return Path(local_folder("art/smollm2"))


def test_its_ids_are_those_of_llama_cpp(folder: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    assert {text: tokenizer.encode(text, add_special_tokens=False) for text in IDS} == IDS
    (found,) = [one for one in list_converted() if one.folder == folder]
    assert found.source == "art/smollm2" and found.size_bytes > 250e6


async def test_it_knows_the_capital_of_france(folder: Path, tmp_path: Path) -> None:
    model = art.TrainableModel(name="plain", project="capitals", base_model="art/smollm2")
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        client = model.openai_client()
        reply = await client.completions.create(
            model=model.get_inference_name(), prompt="The capital of France is", max_tokens=4, temperature=0
        )
        assert reply.choices[0].text.startswith(" Paris")
        chat = await client.chat.completions.create(
            model=model.get_inference_name(),
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            max_tokens=16,
            temperature=0,
        )
        assert "Paris" in (chat.choices[0].message.content or "")


async def test_all_checks_of_the_audit_hold(folder: Path) -> None:
    verdicts = [verdict async for verdict in all_verdicts("art/smollm2", device="cpu")]
    failed = [f"{one.check}: {one.what}" for one in verdicts if one.level == "fail"]
    assert not failed and len(verdicts) >= 13
