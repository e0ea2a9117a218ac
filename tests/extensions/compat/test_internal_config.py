"""A key of `_internal_config` acts, is refused with what to use instead, or has no effect and says so."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from wire_double import Double

import art
from art import dev
from art.client.options.foreign_options import (
    ENGINE_ARGS,
    INIT_ARGS,
    NO_EFFECT,
    PEFT_ARGS,
    SECTIONS,
    SERVER_ARGS,
    TINKER_ARGS,
    TRAINER_ARGS,
    ForeignSection,
)
from art.client.requests.registration import model_settings, optimizer_spec, server_config
from art.errors import ConfigurationError
from art.wire.training import LoraSpec, OptimizerSpec

TABLES: dict[str, ForeignSection] = {
    "_internal_config": SECTIONS,
    "init_args": INIT_ARGS,
    "engine_args": ENGINE_ARGS,
    "peft_args": PEFT_ARGS,
    "trainer_args": TRAINER_ARGS,
    "tinker_args": TINKER_ARGS,
    "tinker_native_args": TINKER_ARGS,
    "server_args": SERVER_ARGS,
}
OF_OTHERS = {
    "engine_args": ["enforce_eager", "gpu_memory_utilization", "of_tomorrow", "tensor_parallel_size"],
    "trainer_args": ["bf16", "num_generations", "of_tomorrow", "save_strategy"],
}
"""Names of the sections that take any."""
NESTED = ("init_args", "engine_args", "peft_args", "trainer_args", "tinker_args", "tinker_native_args")


def each(effect: str) -> list[tuple[str, str]]:
    return [(s, name) for s in NESTED for name, key in TABLES[s].options.items() if key.effect == effect]


@pytest.mark.parametrize("section", TABLES)
def test_what_matters_is_a_key_of_the_dictionary(section: str) -> None:
    assert set(TABLES[section].options) <= set(TABLES[section].names)


@pytest.mark.parametrize("section", NESTED)
def test_all_other_keys_are_accepted_with_one_line_that_says_why(
    section: str, caplog: pytest.LogCaptureFixture
) -> None:
    plain = model_settings(None)
    others = sorted(set(TABLES[section].names) - set(TABLES[section].options)) or OF_OTHERS.get(section, [])
    for asked in (others, others[:1]):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            assert model_settings({section: dict.fromkeys(asked, 0.75)}) == plain
        assert caplog.messages == [
            f"_internal_config[{section!r}]: no effect here: {', '.join(asked)}; {NO_EFFECT}"
        ] * bool(others)
    caplog.clear()
    for nothing in (None, False):
        assert model_settings({section: dict.fromkeys(others, nothing)}) == plain and not caplog.messages


@pytest.mark.parametrize(("section", "name"), each("refused"))
def test_what_would_change_results_is_refused_with_what_to_do(section: str, name: str) -> None:
    key = TABLES[section].options[name]
    with pytest.raises(ConfigurationError) as refused:
        model_settings({section: {name: ["something"]}})
    assert f"_internal_config[{section!r}][{name!r}] = ['something']: {key.text}" in str(refused.value)
    for neutral in (None, *key.neutral):
        assert model_settings({section: {name: neutral}}) == model_settings(None)


ACTS: list[tuple[dict[str, Any], str, Any]] = [
    ({"init_args": {"max_seq_length": 64}}, "max_context", 64),
    ({"engine_args": {"max_model_len": 32}, "init_args": {"max_seq_length": 64}}, "max_context", 32),
    ({"peft_args": {"max_seq_length": 16}, "engine_args": {"max_model_len": 32}}, "max_context", 16),
    ({"init_args": {"full_finetuning": True}}, "lora", None),
    ({"init_args": {"load_in_4bit": True}}, "bits", 4),
    ({"init_args": {"load_in_8bit": True, "load_in_4bit": False}}, "bits", 8),
    ({"init_args": {"random_state": 5}}, "seed", 5),
    ({"trainer_args": {"seed": 7}, "init_args": {"random_state": 5}}, "seed", 5),
    ({"peft_args": {"random_state": 3}, "trainer_args": {"seed": 7}}, "seed", 3),
    ({"peft_args": {"r": 4, "lora_alpha": 8}}, "lora", LoraSpec(r=4, alpha=8)),
    ({"peft_args": {"lora_dropout": 0.1}}, "lora", LoraSpec(dropout=0.1)),
    ({"peft_args": {"target_modules": ("q_proj", "v_proj")}}, "lora", LoraSpec(targets=["q_proj", "v_proj"])),
    ({"peft_args": {"target_modules": "all-linear"}}, "lora", LoraSpec()),
    ({"peft_args": {"use_rslora": True}}, "lora", LoraSpec(use_rslora=True)),
    ({"chat_template": "{{ messages }}"}, "chat_template", "{{ messages }}"),
    ({"special_tokens_in_text": "parse"}, "special_tokens_in_text", "parse"),
    ({"tool_format": "template"}, "tool_format", "template"),
    (
        {"chat_template_kwargs": {"enable_thinking": False}},
        "chat_template_kwargs",
        {"enable_thinking": False},
    ),
]

OPTIMIZES: list[tuple[dict[str, Any], str, Any]] = [
    ({"learning_rate": 1e-3}, "learning_rate", 1e-3),
    ({"adam_beta1": 0.5}, "betas", (0.5, 0.99)),
    ({"adam_beta2": 0.5}, "betas", (0.9, 0.5)),
    ({"adam_epsilon": 1e-5}, "eps", 1e-5),
    ({"weight_decay": 0.1}, "weight_decay", 0.1),
    ({"max_grad_norm": 0.1}, "max_grad_norm", 0.1),
    ({"warmup_steps": 3}, "warmup_steps", 3),
    ({"warmup_ratio": 0.1, "max_steps": 25}, "warmup_steps", 3),
    ({"lr_scheduler_type": "constant_with_warmup", "max_steps": -1}, "schedule", "constant"),
    ({"lr_scheduler_type": "cosine", "max_steps": 9}, "schedule", "cosine"),
    ({"lr_scheduler_type": "linear", "max_steps": 9}, "total_steps", 9),
]


@pytest.mark.parametrize(("config", "field", "value"), ACTS)
def test_what_acts_at_registration(config: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(model_settings(config), field) == value


@pytest.mark.parametrize(("trainer_args", "field", "value"), OPTIMIZES)
def test_what_acts_in_the_optimizer(trainer_args: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(optimizer_spec(None, {"trainer_args": trainer_args}, None), field) == value


def test_no_acting_key_is_without_its_test() -> None:
    tested = {(s, name) for config, _, _ in ACTS for s in config if s in NESTED for name in config[s]}
    tested |= {("trainer_args", name) for args, _, _ in OPTIMIZES for name in args}
    assert tested == set(each("acts"))


def test_the_call_wins_over_the_model() -> None:
    config = {"trainer_args": {"weight_decay": 0.1, "learning_rate": 1e-3, "max_grad_norm": 0.1}}
    spec = optimizer_spec(1e-5, config, {"weight_decay": 0.2, "betas": [0.1, 0.2]})
    assert spec == OptimizerSpec(learning_rate=1e-5, betas=(0.1, 0.2), weight_decay=0.2, max_grad_norm=0.1)


def test_a_template_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ messages }}")
    assert model_settings({"chat_template_path": str(tmp_path / "t.jinja")}).chat_template == "{{ messages }}"
    with pytest.raises(ConfigurationError, match=r"chat_template_path.*No such file"):
        model_settings({"chat_template_path": str(tmp_path / "gone")})
    with pytest.raises(ConfigurationError, match="give one of the two"):
        model_settings({"chat_template_path": str(tmp_path / "t.jinja"), "chat_template": "x"})


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"engin_args": {}}, r"_internal_config\['engin_args'\]: no such key; did you mean 'engine_args'"),
        ({"engine_args": {"trust_remote_codes": 1}}, "did you mean 'trust_remote_code'"),
        (
            {"trainer_args": {"adam_beta_1": 1}},
            r"'trainer_args'\]\['adam_beta_1'\]: did you mean 'adam_beta1'",
        ),
        ({"peft_args": {"rank": 1}}, "known: .*lora_alpha"),
        ({"peft_args": 3}, r"_internal_config\['peft_args'\] is 3; it is a dict"),
        ({"init_args": {"max_seq_length": 0}}, "max_seq_length.*at least 1"),
        ({"init_args": {"max_seq_length": "8k"}}, "a whole number"),
        ({"peft_args": {"random_state": -1}}, "at least 0"),
        ({"peft_args": {"r": 0}}, r"\['peft_args'\] is refused: r: "),
        ({"init_args": {"full_finetuning": "yes"}}, "True or False"),
        ({"init_args": {"full_finetuning": True}, "peft_args": {"r": 4}}, "leave one of both out"),
        ({"trainer_args": {"warmup_ratio": 0.1}}, "warmup_ratio.*max_steps"),
        ({"trainer_args": {"lr_scheduler_type": "cosine"}}, "number of steps"),
        ({"trainer_args": {"lr_scheduler_type": "polynomial", "max_steps": 3}}, "schedule"),
        ({"chat_template_kwargs": [1]}, "a dict of names and values"),
        ({"special_tokens_in_text": "none"}, "it is 'text' or 'parse'"),
        ({"tool_format": "hermes"}, "'hermes'; it is 'auto' or 'template'"),
        ({"trainer_gpu_ids": [0]}, "must both be set or both unset"),
        ({"trainer_gpu_ids": [0], "inference_gpu_ids": [0]}, "must not overlap"),
        ({"rollout_weights_mode": "merged"}, "requires dedicated mode"),
        ({"rollout_weights_mode": "full"}, "either 'lora' or 'merged'"),
        ({"lora_config": {"rnk": 4}}, "lora_config has no 'rnk', did you mean 'rank'"),
        ({"lora_config": {"rank": 4}, "peft_args": {"r": 8}}, "lora_config and peft_args differ"),
        ({"lora_confg": {}}, "did you mean 'lora_config'"),
        ({"rollout_weight_update_mode": "in_flight_lora"}, "in_flight_lora': it is not built"),
    ],
)
def test_what_is_wrong_is_named(config: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        model_settings(config)


def test_the_keys_of_newer_releases(caplog: pytest.LogCaptureFixture) -> None:
    newer = {
        "lora_config": art.LoRAConfig(rank=4, alpha=8),
        "rollout_weight_update_mode": "step_lora",
        "vllm_runtime": {"mode": "managed"},
    }
    assert model_settings(newer) == model_settings({"peft_args": {"r": 4, "lora_alpha": 8}})
    assert model_settings({"lora_config": {"rank": 4}, "peft_args": {"r": 4}}) is not None
    assert caplog.messages == []


EXTERNAL = {"mode": "external", "server_url": "http://gpu:8000/v1"}


def test_a_model_may_name_the_vllm_server_of_its_backend(tmp_path: Path) -> None:
    backend = art.LocalBackend(path=tmp_path / "a")
    backend._choose_runtime({"mode": "managed"})
    assert "engine" not in backend._server.options
    backend._choose_runtime({**EXTERNAL, "api_key": "sesame", "health_timeout_s": 60})
    backend._choose_runtime({**EXTERNAL, "api_key": "sesame", "health_timeout_s": 60})  # a second model
    key = tmp_path / "a" / "server" / "external-vllm.key"
    engine = {
        "name": "vllm",
        "options": {"urls": ["http://gpu:8000"], "start_deadline": 60.0, "key_file": str(key)},
    }
    asked = art.LocalBackend(path=tmp_path / "b", server_options={"engine": engine})
    assert backend._server.options == asked._server.options, "as if the backend had been given it"
    assert key.read_text() == "sesame" and key.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigurationError, match="another engine"):
        backend._choose_runtime({**EXTERNAL, "server_url": "http://other"})
    with pytest.raises(ConfigurationError, match="another engine"):
        art.LocalBackend(path=tmp_path / "c", server_options={"engine": {"name": "builtin"}})._choose_runtime(
            EXTERNAL
        )


@pytest.mark.parametrize(
    ("runtime", "said"),
    [
        ({"mode": "external"}, "needs server_url"),
        ({"mode": "extern"}, "'managed' or 'external'"),
        ({**EXTERNAL, "url": "x"}, "no such key"),
        ({**EXTERNAL, "server_checkpoint_root": "/mnt"}, "same path"),
    ],
)
def test_a_vllm_server_that_cannot_be_meant_is_named(
    runtime: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        art.LocalBackend(path=tmp_path)._choose_runtime(runtime)


async def test_a_server_of_somebody_else_has_its_engine() -> None:
    model = art.TrainableModel(
        name="agent", project="p", base_model="art/nano", _internal_config={"vllm_runtime": EXTERNAL}
    )
    with pytest.raises(ConfigurationError, match="that is for LocalBackend"):
        await model.register(art.RemoteBackend("http://127.0.0.1:9", "key"))


def test_two_sets_of_gpus_and_merged_weights_are_noted(caplog: pytest.LogCaptureFixture) -> None:
    config = {"trainer_gpu_ids": [0], "inference_gpu_ids": [1], "rollout_weights_mode": "merged"}
    assert model_settings(config) == model_settings(None)
    assert caplog.messages == [f"_internal_config: no effect here: {', '.join(config)}; {NO_EFFECT}"]


CONFIGS: list[Mapping[str, Any]] = [
    dev.InternalModelConfig(
        init_args=dev.InitArgs(max_seq_length=8192),
        engine_args=dev.EngineArgs(enforce_eager=True, gpu_memory_utilization=0.8),
    ),
    {"_decouple_vllm_and_unsloth": True, "init_args": {"fast_inference": True}},
    {"use_decoupled_unsloth": True},
    {"engine_args": {"enable_sleep_mode": False}, "init_args": {"fast_inference": False}},
    dev.get_model_config("art/nano", "somewhere", None),
]


@pytest.mark.parametrize("config", CONFIGS)
async def test_the_configurations_of_notebooks_register(
    backend: art.RemoteBackend, double: Double, model: art.TrainableModel, config: Mapping[str, Any]
) -> None:
    model._internal_config = config  # type: ignore[assignment]
    await model.register(backend)
    assert [asked["name"] for asked in double.registered] == ["agent"]


def test_the_server_s_configuration() -> None:
    told = server_config(
        {
            "log_file": "x",
            "server_args": {"host": "0.0.0.0", "port": 8123, "api_key": "a key".replace(" ", "-") * 2},
            "engine_args": {"max_model_len": 99, "gpu_memory_utilization": 0.5},
        }
    )
    assert (told.host, told.port, told.api_key, told.max_context) == ("0.0.0.0", 8123, "a-keya-key", 99)
    assert server_config(dev.get_openai_server_config("agent", "art/nano", "x")).place == {}
    for wrong, named in (
        ({"server_arg": {}}, "did you mean 'server_args'"),
        ({"server_args": {"port": 99999}}, "from 0"),
        ({"server_args": {"api_key": "short"}}, r"api_key'\] is '...'; it is at least 8"),
        ({"server_args": {"ssl_keyfile": "k"}}, "plain HTTP"),
        ({"engine_args": {"max_model_len": 0}}, "at least 1"),
    ):
        with pytest.raises(ConfigurationError, match=named):
            server_config(wrong)


@pytest.mark.parametrize(
    ("init_args", "what"),
    [
        ({"load_in_4bit": "nf4"}, r"\['load_in_4bit'\] is 'nf4'; it is True or False"),
        ({"load_in_4bit": True, "load_in_8bit": True}, "gives load_in_4bit and load_in_8bit, which exclude"),
        ({"load_in_8bit": True, "full_finetuning": True}, "gives load_in_8bit and full_finetuning"),
    ],
)
def test_bits_that_cannot_be_are_refused(init_args: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        model_settings({"init_args": init_args})


def test_the_defaults_of_older_releases_are_taken(tmp_path: Path) -> None:
    """`get_model_config` spells out what those released programs got without asking."""
    config = dict(art.dev.get_model_config("some/base", str(tmp_path), None))
    assert "optim" in config["trainer_args"] and "report_to" in config["trainer_args"]
    assert model_settings(config).lora is not None


@pytest.mark.parametrize(
    ("trainer_args", "remedy"),
    [
        ({"push_to_hub": True}, "Upload the folder `result.checkpoint_path`"),
        ({"report_to": "tensorboard"}, r"set report_metrics=\['wandb'\] of the model"),
        ({"temperature": 0.7}, "pass it to `chat.completions.create`"),
        ({"top_k": 1}, "pass it to `chat.completions.create`"),
        ({"max_completion_length": 256}, "pass max_tokens to `chat.completions.create`"),
        ({"eval_strategy": "steps"}, "call `await model.log"),
        ({"save_total_limit": 2}, "call `await model.delete_checkpoints"),
        ({"num_train_epochs": 3}, "algorithm={'updates': {'epochs': ...}}"),
        ({"optim": "sgd"}, "the optimizer is AdamW"),
    ],
)
def test_what_a_user_of_other_trainers_relies_on_is_refused_with_what_does_it_here(
    trainer_args: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"(?i){remedy}"):
        model_settings({"trainer_args": trainer_args})
