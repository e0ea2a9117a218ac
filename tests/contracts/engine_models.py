"""Tiny random models, a tokenizer and adapters for the engine tests, and how to run a real worker process."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GPTNeoXConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    set_seed,
)

from art.engine.protocol import Delta, GenerateRequest, Sampling, ServerOrder, TopLogprobs
from art.engine.registry import worker_command
from art.wire.engine import BuiltinOptions, WorkerReady, WorkerStart

if TYPE_CHECKING:
    from art.engine.builtin.core import EngineCore
    from art_extensions.vllm.engine import VllmEngine
    from art_extensions.vllm.options import VllmOptions

VOCAB = 384
CONTEXT = 256
END = 380
"""The tokenizer's end-of-text id."""
VLLM_ENVIRONMENT = Path(__file__).parents[2] / ".venv-vllm"
ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def build_qwen3(folder: Path, **changes: Any) -> Path:
    options = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,  # the smallest that vLLM has a kernel for on a CPU
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
        "pad_token_id": 3,
        # Large enough for a distribution with some shape.
        "initializer_range": 0.15,
    }
    return save_model(folder, Qwen3Config(**{**options, **changes}))


def build_neox(folder: Path) -> Path:
    """Another family: parallel residual, one fused query/key/value layer, biases, partial rotation."""
    config = GPTNeoXConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=CONTEXT,
        initializer_range=0.15,
    )
    return save_model(folder, config)


def save_model(folder: Path, config: Any) -> Path:
    set_seed(7)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Printable ASCII and pairs of letters, so that a stop string can begin inside a token."""
    alphabet = [chr(code) for code in range(33, 127)] + ["\u0120"]
    vocab = {symbol: index for index, symbol in enumerate(alphabet)}
    merges = []
    for first in "abcdefghijklmnopq":
        for second in "abcdefghijklmnopq":
            merges.append((first, second))
            vocab[first + second] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    [end] = (symbol for symbol, index in vocab.items() if index == END)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end)


def build_adapter(folder: Path, base: Path, seed: int, **changes: Any) -> Path:
    """A PEFT adapter with random B, saved by PEFT itself."""
    set_seed(seed)
    options: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": ALL_LINEAR}
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(**{**options, **changes}))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return folder


@torch.inference_mode()
def reference_logprobs(model: torch.nn.Module, ids: Sequence[int]) -> list[float]:
    """What `transformers` or PEFT itself computes for a row of ids."""
    tensor = torch.tensor([list(ids)])
    logprobs = model(input_ids=tensor).logits[0, :-1].float().log_softmax(-1)
    return logprobs.gather(1, tensor[0, 1:, None])[:, 0].tolist()


def ask(
    prompt: Sequence[int], adapter: str | None = None, stream: bool = False, **sampling: Any
) -> GenerateRequest:
    sampling.setdefault("max_tokens", 8)
    return GenerateRequest(
        request_id=secrets.token_hex(8),
        adapter=adapter,
        prompt_ids=list(prompt),
        sampling=Sampling(**sampling),
        stream=stream,
    )


async def whole(deltas: AsyncIterator[Delta]) -> Delta:
    """All deltas of a completion as one."""
    ids: list[int] = []
    logprobs: list[float] = []
    tops: list[TopLogprobs] = []
    candidates = b""
    last = None
    async for delta in deltas:
        assert last is None, "a delta came after the one with the finish reason"
        ids.extend(delta.token_ids)
        logprobs.extend(delta.logprobs)
        tops.extend(delta.top_logprobs)
        candidates += delta.candidates
        last = delta if delta.finish_reason else None
    assert last is not None
    return Delta(
        token_ids=ids,
        logprobs=logprobs,
        finish_reason=last.finish_reason,
        stop_string=last.stop_string,
        top_logprobs=tops,
        candidates=candidates,
    )


def run(core: EngineCore, requests: Sequence[GenerateRequest]) -> list[Delta]:
    """Step until nothing is left; returns the last piece of each request."""
    for request in requests:
        core.submit(core.make_sequence(request))
    done: dict[str, Delta] = {}
    while core.has_work:
        for sequence, delta in core.step():
            assert isinstance(delta, Delta), delta
            done[sequence.request.request_id] = delta
    return [done[request.request_id] for request in requests]


@contextmanager
def running_worker(base: Path, options: BuiltinOptions) -> Iterator[tuple[subprocess.Popen[bytes], str, str]]:
    """A real worker process, its url and its key; it ends when its standard input is closed."""
    key = secrets.token_hex(16)
    process = subprocess.Popen(worker_command("builtin"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        start = WorkerStart(base_model=str(base), key=key, options=options.model_dump(mode="json"))
        process.stdin.write(start.model_dump_json().encode() + b"\n")
        process.stdin.flush()
        ready = WorkerReady.model_validate_json(process.stdout.readline())
        assert ready.ready, ready.error
        yield process, f"http://127.0.0.1:{ready.port}", key
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(timeout=240)


@contextmanager
def running_vllm(base: Path, options: VllmOptions, folder: Path) -> Iterator[Callable[[], VllmEngine]]:
    """A real vLLM server, kept by an event loop of its own; each call is a new engine over it."""
    from art_extensions.vllm.client import VllmClient
    from art_extensions.vllm.engine import VllmEngine
    from art_extensions.vllm.start import start_vllm

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    order = ServerOrder(name="vllm", base_model=str(base), options=options, log_path=folder / "vllm.log")
    try:
        server = asyncio.run_coroutine_threadsafe(start_vllm(order), loop).result()
        served, client = server.engine.served, server.engine.client
        yield lambda: VllmEngine(VllmClient(client.url, client.key, client.socket), served, options)
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
