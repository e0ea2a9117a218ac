"""A vLLM server of our own as a child process: its command line and environment, and its life.

Further arguments of `vllm serve` are checked against what the installed vLLM knows, then written as it wants
them. The process is started, read, watched, and never left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import hashlib
import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from art.errors import ConfigurationError
from art.process.environment import inherited_variables
from art.process.files import WorkerLog, write_whole
from art.process.runtimes import ask_python
from art.process.threads import OMP_NUM_THREADS, cpu_threads, thread_variables
from art_extensions.vllm.options import VllmOptions
from art_extensions.vllm.runtime import MODULE, Runtime

OURS = {
    "api_key": "each server has a random key of its own",
    "config": "give the arguments themselves",
    "dtype": "use the engine option dtype",
    "enable_lora": "it is always on",
    "enable_sleep_mode": "use the engine option sleep_mode",
    "generation_config": "requests say everything themselves",
    "headless": "the engine needs its server",
    "host": "it listens on a socket that only this user can reach",
    "logprobs_mode": "the logprobs are those of the distribution that was sampled from",
    "lora_modules": "adapters are loaded while it runs",
    "lora_target_modules": "use the engine option lora_targets",
    "max_cpu_loras": "use the engine option max_cpu_loras",
    "max_logprobs": "requests may ask for 20, vLLM's own default",
    "max_lora_rank": "use the engine option max_lora_rank",
    "max_loras": "use the engine option max_loras",
    "max_model_len": "use the engine option max_context",
    "max_num_seqs": "use the engine option max_running",
    "model": "it is the base model of the models that are registered",
    "model_tag": "it is the base model of the models that are registered",
    "port": "it listens on a socket that only this user can reach",
    "root_path": "its routes are not changed",
    "served_model_name": "models are named by the project",
    "skip_tokenizer_init": "stop strings and constraints need the tokenizer",
    "trust_remote_code": "a model's own code is never run",
    "uds": "it listens on a socket that only this user can reach",
}
"""What cannot be given, and why."""
LIST_SECONDS = 240.0
_LIST = """
import json, sys
sys.argv = ["vllm"]
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
found = {}
for action in make_arg_parser(FlexibleArgumentParser())._actions:
    long = [flag for flag in action.option_strings if flag.startswith("--")]
    found[action.dest] = {"flags": long, "kind": type(action).__name__, "many": action.nargs in ("*", "+")}
print("\\n" + json.dumps(found))
"""
Known = Mapping[str, Mapping[str, Any]]
"""Arguments by name: `flags`, the `kind` of argparse's action, and whether it takes `many` values."""


async def known_arguments(runtime: Runtime, cache: Path | None = None) -> Known:
    """All arguments that this vLLM's server takes. vLLM is asked once for each version and environment.

    Loading it takes seconds, so the answer is kept in `cache` (default: in the user's cache folder).
    """
    folder = cache or Path.home() / ".cache" / "art" / "vllm-arguments"
    where = hashlib.sha256(str(runtime.python).encode()).hexdigest()[:12]
    file = folder / f"{runtime.version}-{where}.json"
    if file.is_file():
        cached: Known = json.loads(file.read_text(encoding="utf-8"))
        return cached
    answer = (await ask_python(runtime.python, _LIST, seconds=LIST_SECONDS)).strip().splitlines()[-1]
    known: Known = json.loads(answer)
    write_whole(file, answer, durable=False)
    return known


def command_line(options: Mapping[str, Any], known: Known) -> list[str]:
    """Arguments by name -> words of a command line.

        {"enable_prefix_caching": False, "seed": 3} -> ["--no-enable-prefix-caching", "--seed=3"]

    None leaves vLLM's default. Raises: ConfigurationError for a name that vLLM does not know (with the
    nearest that it does), or that is ours.
    """
    words: list[str] = []
    for name, value in options.items():
        dest = name.replace("-", "_")
        if dest in OURS:
            raise ConfigurationError(f"engine_args[{name!r}] cannot be given: {OURS[dest]}")
        if dest not in known or dest == "help":
            near = difflib.get_close_matches(dest, [*known, *OURS], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(
                f"engine_args[{name!r}] = {value!r}: this vLLM has no such argument{hint}"
            )
        if value is not None:
            words += _words(name, value, known[dest])
    return words


def _words(name: str, value: Any, argument: Mapping[str, Any]) -> list[str]:
    flag, kind = argument["flags"][0], argument["kind"]
    if kind in ("BooleanOptionalAction", "_StoreTrueAction", "_StoreFalseAction"):
        if not isinstance(value, bool):
            raise ConfigurationError(f"engine_args[{name!r}] = {value!r}: it is True or False")
        if kind == "BooleanOptionalAction":
            off = next(other for other in argument["flags"] if other.startswith("--no-"))
            return [flag if value else off]
        return [flag] if value == (kind == "_StoreTrueAction") else []
    if isinstance(value, list | tuple):
        if kind == "_AppendAction":
            return [f"{flag}={_text(one)}" for one in value]
        if argument["many"]:
            return [flag, *map(_text, value)]
    return [f"{flag}={_text(value)}"]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


SEEING_ARGUMENTS = (
    "--enable-scale-out",  # the route that takes ids and images
    '--mm-processor-kwargs={"do_resize": false, "do_image_splitting": false}',
)
"""Images come in the size that the model's tower wants (`art.rendering.images`), and stay as they are."""
SERVED_NAME = "art-base"
SOCKET = "s"
"""The socket's file in the server's own folder; short: its path has at most 107 characters."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The program to start, and the address and model that it will serve."""

    command: list[str]
    environment: dict[str, str] = field(repr=False)
    key: str = field(repr=False)
    socket: str
    device: str
    dtype: str
    sleep_mode: bool


async def prepare_launch(
    base_model: str,
    runtime: Runtime,
    options: VllmOptions,
    folder: Path,
    device: str | None,
    *,
    images: bool = False,
    copies: int = 1,
) -> Launch:
    """`folder`: private to this user, for the socket and temporary files. `device`: such as `cuda:1`.
    `images`: prompts may hold some. `copies`: servers like it on this machine, which divide its cores.

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
    if images:
        arguments += SEEING_ARGUMENTS
    if options.engine_args:
        arguments += command_line(options.engine_args, await known_arguments(runtime))
    return Launch(
        command=[str(runtime.python), "-m", MODULE, *arguments],
        environment=_environment(base_model, options, key, folder, where, sleeps=sleeps, copies=copies),
        key=key,
        socket=socket,
        device=where,
        dtype=dtype,
        sleep_mode=sleeps,
    )


def _arguments(
    base_model: str, options: VllmOptions, socket: str, dtype: str, *, cuda: bool, sleeps: bool
) -> list[str]:
    """Returns ART's own arguments. Those that may be overridden come first: the last of two counts."""
    words = [f"--model={base_model}", f"--served-model-name={SERVED_NAME}", f"--uds={socket}"]
    words += ["--enable-lora", f"--max-lora-rank={options.max_lora_rank}", f"--max-loras={options.max_loras}"]
    words += [f"--max-cpu-loras={options.max_cpu_loras}", f"--max-num-seqs={options.max_running}"]
    words += ["--lora-target-modules", *options.lora_targets]
    words += [f"--dtype={dtype}", "--generation-config=vllm", "--logprobs-mode=processed_logprobs"]
    if options.max_context is not None:
        words.append(f"--max-model-len={options.max_context}")
    if sleeps:
        words.append("--enable-sleep-mode")
    if not options.own_masks:
        # The builtin engine's library: the trainer can follow its masks.
        words.append('--structured-outputs-config={"backend": "guidance"}')
    if not cuda and "enforce_eager" not in options.engine_args:
        words.append("--enforce-eager")  # compiling takes minutes of a CPU and a C++ compiler
    if "disable_uvicorn_access_log" not in options.engine_args:
        words.append("--disable-uvicorn-access-log")
    return words


def _environment(
    base_model: str,
    options: VllmOptions,
    key: str,
    folder: Path,
    device: str,
    *,
    sleeps: bool,
    copies: int,
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
        inherited = inherited_variables()
        variables |= thread_variables(inherited, copies=copies)
        threads = cpu_threads(options.threads, _parameters(base_model), inherited)
        if threads is not None:
            variables[OMP_NUM_THREADS] = threads
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


TAIL_LINES = 15
STOP_SECONDS = 10.0
"""Seconds for a server to end: more than the guard takes to end it in order, or to kill it."""


class VllmProcess:
    """A running server under its guard (`art.process.guard`); made with `await VllmProcess.start(...)`."""

    def __init__(self, process: asyncio.subprocess.Process, log: WorkerLog) -> None:
        self.log = log
        self._process = process
        assert process.stderr is not None
        self._copy = asyncio.create_task(log.follow(process.stderr))

    @classmethod
    async def start(
        cls, command: Sequence[str], environment: Mapping[str, str], folder: str, log: WorkerLog
    ) -> VllmProcess:
        """`environment`: what is added to ours. `folder`: for temporary files, removed when it has ended."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "art.process.guard",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # who kills the server's group must leave the guard to clean up
        )
        assert process.stdin is not None
        order = {"command": list(command), "environment": dict(environment), "folder": folder}
        process.stdin.write(orjson.dumps(order) + b"\n")
        return cls(process, log)

    async def wait(self) -> None:
        """Return once it has ended, and its last words are in the log."""
        await self._process.wait()
        await asyncio.wait({self._copy}, timeout=1.0)

    def death(self) -> str:
        """Returns how it ended, with its last lines."""
        code, log = self._process.returncode, self.log
        return f"ended with code {code}; log: {log.path}\n{log.tail(TAIL_LINES)}".rstrip()

    async def stop(self) -> None:
        """Lets the guard end vLLM in order, or kill it; calling it twice is allowed.

        Never the guard itself: without it vLLM leaves its engine behind, with the GPU's memory.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):  # the guard goes on without us
            async with asyncio.timeout(STOP_SECONDS):
                await self._process.wait()
        await asyncio.wait({self._copy}, timeout=1.0)  # the last words are in the pipe
        self._copy.cancel()
        self.log.close()
