"""A model that others made, from its file to other people's servers: served, trained, killed, resumed,
evaluated by lm-evaluation-harness, exported three ways. PEFT, vLLM and llama.cpp answer as ART does.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx
import pytest

import art
from art.process.resources import find_free_tcp_port
from starting import StartedProgram
from waiting import DEADLINE_S, eventually

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

ROOT = Path(__file__).parents[2]
OTHERS = ROOT / ".venv-deployment"
"""llama.cpp's server and converter, and lm-evaluation-harness."""
VLLM = ROOT / ".venv-vllm"
ART = str(Path(sys.executable).with_name("art"))
BASE = "art/smollm2"
END = "<|im_end|>"
QUESTIONS = ("What is the capital of France?", "Name three fruits.", "How many days does a week have?")
UNDECIDED = 0.05
"""Nats between the two best tokens, below which 16-bit weights (llama.cpp) may prefer the other."""
QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def greedy(model: str, question: str) -> dict[str, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": 12}
    return {**body, "temperature": 0.0}


def asked(url: str, model: str, key: str = "none") -> list[str]:
    """The greedy replies of an OpenAI-compatible endpoint."""
    replies = []
    for question in QUESTIONS:
        reply = httpx.post(
            f"{url}/chat/completions",
            json=greedy(model, question),
            headers={"authorization": f"Bearer {key}"},
            timeout=DEADLINE_S,
        )
        assert reply.status_code == 200, reply.text
        replies.append(reply.json()["choices"][0]["message"]["content"])
    return replies


def decided(url: str, model: str, key: str) -> list[str]:
    """ART's greedy replies, each up to the first token that rounding the weights may change."""
    replies = []
    for question in QUESTIONS:
        reply = httpx.post(
            f"{url}/chat/completions",
            json={**greedy(model, question), "logprobs": True, "top_logprobs": 2},
            headers={"authorization": f"Bearer {key}"},
            timeout=DEADLINE_S,
        )
        assert reply.status_code == 200, reply.text
        tokens = reply.json()["choices"][0]["logprobs"]["content"]
        best = [token["top_logprobs"] for token in tokens]
        sure = takewhile(lambda two: two[0]["logprob"] - two[1]["logprob"] > UNDECIDED, best)
        replies.append("".join(two[0]["token"] for two in sure if two[0]["token"] != END))
    return replies


def test_from_its_file_to_other_servers(tmp_path: Path) -> None:
    trained_and_killed(tmp_path)
    before, after, ours, sure = asyncio.run(evaluated(tmp_path))
    assert len(before) == len(after) == len(CHOICES)
    assert before != after, "lm-evaluation-harness measured the same weights twice"
    adapter, merged, gguf = (exported(tmp_path, format) for format in ("peft", "merged", "gguf"))
    assert peft_replies(adapter) == ours
    with vllm_server(merged, tmp_path) as url:
        assert asked(url, "sea") == ours
    assert sum(map(len, sure)) > sum(map(len, ours)) / 2, (sure, ours)
    with llama_cpp_server(gguf / "sea.gguf") as url:
        theirs = asked(url, "sea")
    assert all(map(str.startswith, theirs, sure)), (theirs, sure)


def trained_and_killed(folder: Path) -> None:
    """The program is killed while it asks for the rollouts of step 2, and goes on from step 1."""
    program = [sys.executable, str(Path(__file__).parent / "programs" / "smollm2_trains.py"), BASE]
    log = folder / "log"
    with log.open("w") as out:
        first = subprocess.Popen(program, cwd=folder, stdout=out, stderr=out, env={**os.environ, **QUIET})
        eventually(lambda: "rollouts of step 2" in log.read_text() or first.poll() is not None, timeout=400)
        first.send_signal(signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL, log.read_text()
    again = subprocess.run(
        program, cwd=folder, capture_output=True, text=True, timeout=400, env={**os.environ, **QUIET}
    )
    assert re.findall(r"^step \d", again.stdout, re.M) == ["step 2"], again.stdout + again.stderr


CHOICES = (
    ("The capital of France is", (" Paris", " London"), 0),
    ("Two and two make", (" nine", " four"), 1),
    ("A week has seven", (" days", " colours"), 0),
    ("Fish live in the", (" desert", " sea"), 1),
)
TASK = """
task: four_choices
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
target_delimiter: ""
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


async def evaluated(folder: Path) -> tuple[list[Any], list[Any], list[str], list[str]]:
    """The log-likelihoods that the harness read of the base and of the trained model, and ART's replies,
    whole and as far as they are decided.
    """
    tasks = folder / "tasks"
    tasks.mkdir()
    data = folder / "choices.jsonl"
    rows = [{"question": text, "choices": choices, "answer": right} for text, choices, right in CHOICES]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tasks / "four_choices.yaml").write_text(TASK.replace("DATA", str(data)))
    model = art.TrainableModel(name="sea", project="real", base_model=BASE)
    async with art.LocalBackend(path=str(folder / ".art")) as backend:
        await model.register(backend)
        assert await model.get_step() == 2
        url, key = str(model.inference_base_url), str(model.inference_api_key)
        newest = model.get_inference_name()
        tokenizer = folder / ".art" / "real" / "models" / "sea" / "checkpoints" / "0002"
        names = [f"{newest.partition('@')[0]}@0", newest]
        scores = await asyncio.to_thread(harness_scores, folder, tasks, url, key, names, tokenizer)
        replies = await asyncio.to_thread(asked, url, newest, key)
        return scores[0], scores[1], replies, await asyncio.to_thread(decided, url, newest, key)


SEVERAL_TIMES = """
import json, sys
from lm_eval.__main__ import cli_evaluate

for words in json.loads(sys.argv[1]):
    sys.argv = ["lm_eval", *words]
    cli_evaluate()
"""
"""The command `lm_eval`, once for each list of words; what it imports takes longer than what it does here."""


def harness_scores(
    folder: Path, tasks: Path, url: str, key: str, names: list[str], tokenizer: Path
) -> list[list[Any]]:
    """Runs the real lm_eval against the endpoint. Returns, for each name of a model, the log-likelihoods of
    each question's choices.
    """
    where = f"base_url={url}/completions,tokenizer={tokenizer},num_concurrent=4,max_length=1024"
    runs = [
        [
            "--model=local-completions",
            f"--model_args=model={name},{where}",
            "--tasks=four_choices",
            f"--include_path={tasks}",
            f"--output_path={folder / f'lm_eval-{number}'}",
            "--log_samples",
        ]
        for number, name in enumerate(names)
    ]
    done = subprocess.run(
        [str(OTHERS / "bin" / "python"), "-c", SEVERAL_TIMES, json.dumps(runs)],
        env={**os.environ, **QUIET, "OPENAI_API_KEY": key, "HF_HOME": str(folder / "hf")},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = []
    for number in range(len(names)):
        (file,) = (folder / f"lm_eval-{number}").rglob("samples_four_choices*.jsonl")
        samples = [json.loads(line) for line in file.read_text().splitlines()]
        found.append([one["filtered_resps"] for one in sorted(samples, key=lambda one: one["doc_id"])])
    return found


def exported(folder: Path, format: str) -> Path:
    converter = OTHERS / "llama.cpp" / "convert_hf_to_gguf.py"
    words = ["export", "real/sea", "--format", format, "--output", format]
    words += ["--converter", str(converter)] if format == "gguf" else []
    done = subprocess.run([ART, *words], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / format


def peft_replies(adapter: Path) -> list[str]:
    """The greedy replies of transformers with the exported adapter, loaded by PEFT."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    from art.engine.base_models import local_folder

    base = AutoModelForCausalLM.from_pretrained(local_folder(BASE), dtype="float32")
    model = PeftModel.from_pretrained(base, adapter).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(adapter)
    replies = []
    for question in QUESTIONS:
        asked_for = [{"role": "user", "content": question}]
        ids = tokenizer.apply_chat_template(asked_for, add_generation_prompt=True, return_tensors="pt")
        out = model.generate(**ids, max_new_tokens=12, do_sample=False)
        replies.append(tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True))
    return replies


@contextmanager
def vllm_server(model: Path, folder: Path) -> Iterator[str]:
    """A stock vLLM over the merged model, with nothing of ART beside it."""
    port = find_free_tcp_port()
    command = [str(VLLM / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server", f"--model={model}"]
    command += ["--served-model-name=sea", "--host=127.0.0.1", f"--port={port}", "--max-model-len=1024"]
    command += ["--dtype=float32", "--enforce-eager", "--generation-config=vllm"]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCHDYNAMO_DISABLE": "1",
    }
    log = folder / "vllm.log"
    with log.open("w") as out:
        server = subprocess.Popen(
            command,
            env={**os.environ, **QUIET, **settings, "VLLM_NO_USAGE_STATS": "1"},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            eventually(lambda: server.poll() is not None or answers(f"{url}/health"), timeout=400)
            assert server.poll() is None, log.read_text()[-3000:]
            yield f"{url}/v1"
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(timeout=DEADLINE_S)
            finally:
                os.killpg(server.pid, signal.SIGKILL) if server.poll() is None else None


@contextmanager
def llama_cpp_server(file: Path) -> Iterator[str]:
    """llama.cpp over the exported file, with the chat template that the file carries."""
    program = Path(__file__).parent / "programs" / "llama_cpp_server.py"
    command = [str(OTHERS / "bin" / "python"), str(program), str(file)]
    with StartedProgram(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        url = server.stdout.readline().strip()
        try:
            eventually(lambda: answers(f"{url}/health"))
            yield f"{url}/v1"
        finally:
            server.stdin.close()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
