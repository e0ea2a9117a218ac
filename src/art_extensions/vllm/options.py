"""What can be chosen about the vLLM engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from art.wire.records import Strict

LoraRank = Literal[1, 8, 16, 32, 64, 128, 256, 320, 512]
"""The largest ranks that vLLM can be started with."""


LINEAR_LAYERS = tuple(
    """q_proj k_proj v_proj o_proj qkv_proj gate_proj up_proj down_proj gate_up_proj
    in_proj_qkv in_proj_z in_proj_b in_proj_a in_proj_qkvz in_proj_ba in_proj out_proj
    query_key_value dense dense_h_to_4h dense_4h_to_h c_attn c_proj c_fc fc1 fc2 w1 w2 w3 experts""".split()
)
"""Linear layers of the usual model families, which `all-linear` adapters change."""


class VllmOptions(Strict):
    """vLLM in a process of its own, or servers of it that run already (`urls`)."""

    environment: Path | None = None
    """The virtual environment (or its python) that vLLM is installed in; None: the one that `art runtime
    install` makes."""
    urls: tuple[str, ...] = ()
    """Base URLs of vLLM servers that run already, one for each replica; nothing is started then."""
    key_file: Path | None = None
    """A file that holds the key of the servers in `urls` and nothing else."""
    key_variable: str | None = None
    """The environment variable that holds their key, instead of `key_file`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: float32 on a CPU, bfloat16 on a GPU. With `urls`: what those servers compute in, if it is not
    bfloat16."""
    max_context: int | None = Field(default=None, ge=2)
    """Prompt plus completion, in tokens; None is what the model was made for."""
    max_running: int = Field(default=256, ge=1)
    """Requests sampled at the same time."""
    max_waiting: int = Field(default=4096, ge=0)
    """Requests that wait for a place; more are refused with 429."""
    max_lora_rank: LoraRank = 16
    """The largest rank of an adapter. On a CPU every token pays for the whole rank, on a GPU memory does."""
    lora_targets: tuple[str, ...] = LINEAR_LAYERS
    """Modules that an adapter may change, by the last components of their names. Not lm_head: with it in
    reach, vLLM fails (0.32) when several requests are scored at once."""
    max_loras: int = Field(default=8, ge=1)
    """Adapters in one batch; requests of more wait."""
    max_cpu_loras: int = Field(default=32, ge=1)
    """Adapters kept in memory; others are read again from their folder when they are asked for."""
    cache_gb: int = Field(default=1, ge=1)
    """On a CPU: memory of keys and values in GiB. On a GPU, `engine_args` takes gpu_memory_utilization."""
    threads: int | None = Field(default=None, ge=1)
    """On a CPU: threads that compute; None: one for a small model, otherwise one a core."""
    sleep_mode: bool | None = None
    """Give the GPU's memory back while the engine sleeps; None: where there is a GPU."""
    start_deadline: float = Field(default=270.0, gt=0)
    """Seconds until it must answer. The server's own deadline is `control.start`."""
    engine_args: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of `vllm serve` by their names, such as {"gpu_memory_utilization": 0.8}."""

    @property
    def own_masks(self) -> bool:
        """Returns whether another library than the builtin engine's may compile constraints."""
        return bool(self.urls) or "structured_outputs_config" in {
            name.replace("-", "_") for name in self.engine_args
        }

    @model_validator(mode="after")
    def _consistent(self) -> VllmOptions:
        if self.max_cpu_loras < self.max_loras:
            raise ValueError(f"max_cpu_loras {self.max_cpu_loras} is below max_loras {self.max_loras}")
        if self.urls and (self.environment or self.engine_args):
            raise ValueError(
                "urls attaches to servers that run already: environment and engine_args act "
                "where one is started"
            )
        if not self.urls and (self.key_file or self.key_variable):
            raise ValueError(
                "key_file and key_variable belong to urls; a server started here has a key of its own"
            )
        if self.key_file and self.key_variable:
            raise ValueError("key_file and key_variable say the same; give one of the two")
        return self
