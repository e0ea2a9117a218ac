"""Further arguments of `vllm serve`: checked against what the installed vLLM knows, then written as it wants
them."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from art.engine.vllm.runtime import Runtime, ask_python
from art.errors import ConfigurationError
from art.process.durable import write_whole

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
        kept: Known = json.loads(file.read_text(encoding="utf-8"))
        return kept
    answer = (await ask_python(runtime.python, _LIST, LIST_SECONDS)).strip().splitlines()[-1]
    known: Known = json.loads(answer)
    write_whole(file, answer, durable=False)
    return known


def command_line(given: Mapping[str, Any], known: Known) -> list[str]:
    """Arguments by name -> words of a command line.

    >>> command_line({"enable_prefix_caching": False, "seed": 3}, known)
    ["--no-enable-prefix-caching", "--seed=3"]

    None leaves vLLM's default. Raises: ConfigurationError for a name that vLLM does not know (with the
    nearest that it does), or that is ours.
    """
    words: list[str] = []
    for name, value in given.items():
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
