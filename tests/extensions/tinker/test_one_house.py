"""A run of the real SDK is a model like any other: its samples are in the ledger, its saved sampler answers
chats, and `art export`, `art explain` and the pages take it by its name.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from starlette.testclient import TestClient
from tinker_fixtures import run_program, started
from tinker_service import Service, with_sdk
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from art.cli.main import app
from art.process.running_server import find_server
from art.server.ledger.ledger import read_samples
from art.server.ledger.schema import SampleRecord
from art_extensions.ui.app import RunPages

STEPS, QUESTION, ANSWER = 6, "Answer with yes, no or maybe.", "no yes no"
"""The model would not say this by itself."""

pytestmark = with_sdk


@dataclass(frozen=True)
class House:
    """The data folder after the program has ended, with its server still there."""

    service: Service
    name: str
    """Of the model, as SESSION-N."""
    steps: list[dict[str, Any]]
    prompt: list[int]

    def chat(self, step: int) -> Any:
        """A greedy answer of the saved sampler of a step, by the OpenAI endpoint of the folder's server."""
        server = find_server(self.service.data / "server")
        assert server is not None
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key) as client:
            return client.chat.completions.create(
                model=f"{self.name}@{step}",
                messages=[{"role": "user", "content": QUESTION}],
                temperature=0,
                max_tokens=12,
            )

    def samples(self) -> list[SampleRecord]:
        """Those of the run, in the order of the ledger."""
        ledger = self.service.data / "server" / "ledger.sqlite"
        query = "SELECT sample_id FROM samples WHERE adapter LIKE ? ORDER BY rowid"
        with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as connection:
            ids = [row[0] for row in connection.execute(query, [f"tinker/{self.name}@%"])]
        found = read_samples(ledger, ids)
        return [found[one] for one in ids]

    def art(self, *arguments: str) -> str:
        """What a command of `art` prints. Fails where it fails."""
        done = CliRunner().invoke(app, [*arguments, "--data-dir", str(self.service.data)])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with started(tmp_path_factory.mktemp("house") / "data") as service:
        *steps, run = run_program(service, "taught_answer.py", str(STEPS), QUESTION, ANSWER)
        assert len(steps) == STEPS
        yield House(service, run["run"].replace(":train:", "-"), steps, run["prompt"])


def test_samples_are_rows_of_the_ledger_with_the_step_of_their_adapter(house: House) -> None:
    rows = [row for row in house.samples() if row.sampling.get("temperature") == 1.0]
    assert [row.step for row in rows] == [one["step"] for one in house.steps for _ in one["samples"]]
    told = [sample for one in house.steps for sample in one["samples"]]
    for row, (tokens, logprobs) in zip(rows, told, strict=True):
        assert row.adapter == f"tinker/{house.name}@{row.step}" and row.base_model == "art/nano-games"
        assert list(row.prompt_ids) == house.prompt
        assert list(row.completion_ids) == tokens
        assert list(row.completion_logprobs) == pytest.approx(logprobs, abs=1e-6)


def test_a_saved_sampler_answers_chats_by_its_name(house: House) -> None:
    (last,), (first,) = house.chat(STEPS).choices, house.chat(0).choices
    assert last.message.content == ANSWER and last.model_extra["step"] == STEPS
    assert first.message.content != ANSWER and first.model_extra["step"] == 0
    assert [row.step for row in house.samples()[-2:]] == [STEPS, 0]


def test_a_run_is_exported_by_its_name(house: House, tmp_path: Path) -> None:
    told = json.loads(house.art("export", f"tinker/{house.name}", "--output", str(tmp_path / "m"), "--json"))
    assert told["model"] == f"tinker/{house.name}" and told["step"] == STEPS
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    with torch.no_grad():
        ids = model.generate(torch.tensor([house.prompt]), max_new_tokens=12, do_sample=False)[0]
    said = tokenizer.decode(ids[len(house.prompt) :], skip_special_tokens=True)
    assert said == house.chat(STEPS).choices[0].message.content == ANSWER


def test_its_page_shows_its_steps(house: House) -> None:
    pages = RunPages(house.service.data)
    address = f"/runs/-/tinker/{house.name}"
    with TestClient(pages.app(), raise_server_exceptions=True) as client:
        assert house.name in client.get("/").text
        page = client.get(address)
        assert page.status_code == 200 and "art/nano-games" in page.text and "No curve yet" not in page.text
        for step in range(1, STEPS + 1):
            assert f'{address}/train/{step}"' in page.text
            assert client.get(f"{address}/train/{step}").status_code == 200
        for metric, column in (("loss/train", "loss"), ("loss/grad_norm", "norm")):
            chart = client.get(f"{address}/metric.json", params={"name": metric}).json()
            assert chart["steps"] == [*range(1, STEPS + 1)]
            assert chart["curves"][0]["values"] == pytest.approx([one[column] for one in house.steps])
    pages.reader.close()


def test_explain_reads_its_steps(house: House) -> None:
    run = f"tinker/{house.name}"
    assert house.art("explain", run) == f"{run}: nothing found in {STEPS} steps.\n"
