"""The low-level dictionaries and the functions that fill and check them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import art
from art.client.requests.registration import model_settings
from art.dev.get_model_config import get_model_config
from art.errors import ConfigurationError


def test_configs_are_plain_dicts_and_take_unknown_keys() -> None:
    config = art.dev.InternalModelConfig(
        init_args=art.dev.InitArgs(max_seq_length=8192),
        engine_args=art.dev.EngineArgs(enforce_eager=True, gpu_memory_utilization=0.8),
        peft_args=art.dev.PeftArgs(r=4),
        trainer_args=art.dev.TrainerArgs(max_grad_norm=0.5),
    )
    assert type(config) is dict
    assert config["engine_args"] == {"enforce_eager": True, "gpu_memory_utilization": 0.8}
    newer: Any = {"a_flag_of_tomorrow": 1}
    assert art.dev.EngineArgs(**newer) == newer


def test_model_config_fills_in_defaults_and_keeps_what_is_given(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "0003").mkdir(parents=True)
    (tmp_path / "checkpoints" / "0012").mkdir()
    (tmp_path / "checkpoints" / "notes").mkdir()
    config = get_model_config(
        "some/base",
        str(tmp_path),
        art.dev.InternalModelConfig(
            init_args=art.dev.InitArgs(max_seq_length=100),
            peft_args=art.dev.PeftArgs(target_modules=["q_proj"]),
            chat_template="{{ x }}",
        ),
    )
    assert config["init_args"]["model_name"] == str(tmp_path / "checkpoints" / "0012")
    assert config["init_args"]["max_seq_length"] == 100 and config["init_args"]["load_in_4bit"] is True
    assert config["peft_args"]["r"] == 8 and config["peft_args"]["target_modules"] == ["q_proj"]
    assert config["engine_args"]["lora_target_modules"] == ["q_proj"]
    assert config["engine_args"]["enable_sleep_mode"] is True
    assert config["trainer_args"]["adam_beta2"] == 0.99
    assert config["trainer_args"]["output_dir"] == str(tmp_path)
    assert config["trainer_args"]["disable_tqdm"] is True
    assert config["rollout_weights_mode"] == "lora" and config["tinker_args"] is None
    assert "chat_template" not in config


def test_model_config_of_dedicated_gpus(tmp_path: Path) -> None:
    split = art.dev.InternalModelConfig(
        trainer_gpu_ids=[0], inference_gpu_ids=[1], rollout_weights_mode="merged"
    )
    config = get_model_config("some/base", str(tmp_path), split)
    assert config["init_args"]["model_name"] == "some/base"
    assert config["engine_args"]["enable_sleep_mode"] is False
    assert "lora_target_modules" not in config["engine_args"]
    assert config["trainer_gpu_ids"] == [0] and config["rollout_weights_mode"] == "merged"


@pytest.mark.parametrize("name", ["Qwen/Qwen3.5-35B-A3B", "Qwen/Qwen3.6-27B", "Qwen/Qwen3-8B"])
def test_model_config_names_the_layers_of_the_family(name: str, tmp_path: Path) -> None:
    targets = get_model_config(name, str(tmp_path), None)["peft_args"]["target_modules"]
    assert ("in_proj_qkv" in targets) is ("Qwen3-8B" not in name)
    assert {"q_proj", "o_proj", "gate_proj", "down_proj"} <= set(targets)


def test_torchtune_args_are_a_dictionary_that_register_refuses() -> None:
    args = art.dev.TorchtuneArgs(model="qwen3_32b", model_type="QWEN3", async_weight_syncing=True)
    config = art.dev.InternalModelConfig(torchtune_args=args)
    art.TrainableModel(name="a", project="p", base_model="art/nano", _internal_config=config)
    with pytest.raises(ConfigurationError, match=r"torchtune_args.*full_finetuning"):
        model_settings(config)


def test_server_config_names_the_adapter_by_its_step() -> None:
    config = art.dev.get_openai_server_config(
        "agent",
        "some/base",
        "server.log",
        "/models/agent/checkpoints/0007",
        art.dev.OpenAIServerConfig(server_args=art.dev.ServerArgs(tool_call_parser="llama3_json", port=8000)),
    )
    assert config["log_file"] == "server.log"
    assert config["server_args"] == {
        "api_key": "default",
        "lora_modules": ['{"name": "agent@7", "path": "/models/agent/checkpoints/0007"}'],
        "return_tokens_as_token_ids": True,
        "enable_auto_tool_choice": True,
        "tool_call_parser": "llama3_json",
        "port": 8000,
    }
    assert config["engine_args"] == {
        "model": "some/base",
        "served_model_name": "some/base",
        "generation_config": "vllm",
    }


def test_server_config_without_an_adapter_serves_under_the_model_name() -> None:
    config = art.dev.get_openai_server_config("agent", "some/base", "server.log")
    assert "lora_modules" not in config["server_args"]
    assert config["engine_args"]["served_model_name"] == "agent"


def test_an_adapter_folder_without_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'/models/final'.*names the step"):
        art.dev.get_openai_server_config("agent", "some/base", "server.log", "/models/final")


def test_dedicated_means_both_lists() -> None:
    assert art.dev.is_dedicated_mode({"trainer_gpu_ids": [0], "inference_gpu_ids": [1]})
    assert not art.dev.is_dedicated_mode({"trainer_gpu_ids": [0]})
    assert not art.dev.is_dedicated_mode({})


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"trainer_gpu_ids": [0, 1], "inference_gpu_ids": [2]},
        {"trainer_gpu_ids": [0], "inference_gpu_ids": [1], "rollout_weights_mode": "merged"},
        {"engine_args": {"enable_sleep_mode": True}},
    ],
)
def test_valid_gpu_lists(config: dict[str, Any]) -> None:
    art.dev.validate_dedicated_config(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"trainer_gpu_ids": [0]}, "trainer_gpu_ids and inference_gpu_ids must both be set or both unset"),
        ({"inference_gpu_ids": [0]}, "trainer_gpu_ids and inference_gpu_ids must both be set or both unset"),
        ({"rollout_weights_mode": "both"}, "rollout_weights_mode must be either 'lora' or 'merged'"),
        ({"rollout_weights_mode": "merged"}, "rollout_weights_mode='merged' requires dedicated mode"),
        (
            {"init_args": {"fast_inference": False}},
            "fast_inference is no longer supported; ART always uses an external vLLM runtime",
        ),
        ({"trainer_gpu_ids": [], "inference_gpu_ids": [1]}, "trainer_gpu_ids must be non-empty"),
        ({"trainer_gpu_ids": [0], "inference_gpu_ids": []}, "inference_gpu_ids must be non-empty"),
        (
            {"trainer_gpu_ids": [0, 1], "inference_gpu_ids": [1]},
            "trainer_gpu_ids and inference_gpu_ids must not overlap",
        ),
        (
            {"trainer_gpu_ids": [0], "inference_gpu_ids": [1, 2]},
            "Multi-GPU inference not yet supported; inference_gpu_ids must have exactly one GPU",
        ),
        (
            {"trainer_gpu_ids": [1], "inference_gpu_ids": [0]},
            "trainer_gpu_ids must start at GPU 0 (training runs in-process)",
        ),
        (
            {"trainer_gpu_ids": [0, 2], "inference_gpu_ids": [1]},
            "trainer_gpu_ids must be contiguous starting from 0 (e.g., [0], [0,1])",
        ),
        (
            {
                "trainer_gpu_ids": [0],
                "inference_gpu_ids": [1],
                "engine_args": {"enable_sleep_mode": True},
            },
            "enable_sleep_mode is incompatible with dedicated mode",
        ),
        ({"engine_args": {"enable_sleep_mode": False}}, "enable_sleep_mode must be True"),
    ],
)
def test_gpu_lists_that_do_not_fit(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        art.dev.validate_dedicated_config(config)
    assert str(caught.value).startswith(message)
