"""How a model is loaded, adapted and served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict

from art.dev.engine import EngineArgs
from art.dev.trainer import TrainerArgs

if TYPE_CHECKING:
    from art.dev.get_model_config import get_model_config as get_model_config


class InitArgs(TypedDict, total=False):
    """How the base model is loaded: the keywords of Unsloth's `from_pretrained`."""

    model_name: str
    max_seq_length: int
    dtype: str | None
    load_in_4bit: bool
    load_in_8bit: bool
    load_in_16bit: bool
    full_finetuning: bool
    token: str | None
    device_map: str
    rope_scaling: dict[str, Any] | None
    fix_tokenizer: bool
    trust_remote_code: bool
    use_gradient_checkpointing: bool | str
    resize_model_vocab: int | None
    revision: str | None
    use_exact_model_name: bool
    fast_inference: bool
    gpu_memory_utilization: float
    float8_kv_cache: bool
    random_state: int
    max_lora_rank: int
    disable_log_stats: bool
    enable_prefix_caching: bool
    use_async: bool


class PeftArgs(TypedDict, total=False):
    """The adapter's shape."""

    r: int
    target_modules: list[str]
    lora_alpha: int
    lora_dropout: float
    bias: str
    layers_to_transform: list[int] | None
    layers_pattern: str | None
    use_gradient_checkpointing: bool | str
    random_state: int
    max_seq_length: int
    use_rslora: bool
    modules_to_save: list[str] | None
    init_lora_weights: bool | str
    loftq_config: dict[str, Any]
    temporary_location: str


class TinkerTrainingClientArgs(TypedDict, total=False):
    """The adapter of a model that Tinker's service trains."""

    rank: int
    seed: int | None
    train_mlp: bool
    train_attn: bool
    train_unembed: bool
    user_metadata: dict[str, str] | None


class TinkerArgs(TypedDict, total=False):
    """A model of Tinker's service behind a local proxy."""

    renderer_name: Required[str]
    training_client_args: TinkerTrainingClientArgs


class TinkerNativeArgs(TypedDict, total=False):
    """A model of Tinker's service, spoken to directly."""

    renderer_name: Required[str]
    training_client_args: TinkerTrainingClientArgs


class TorchtuneArgs(TypedDict, total=False):
    """How releases before 0.5 trained all weights with torchtune; `register` refuses it."""

    model: Required[str]
    model_type: Required[str]
    async_weight_syncing: bool
    enable_activation_offloading: bool


class InternalModelConfig(TypedDict, total=False):
    """What `TrainableModel(_internal_config=...)` takes."""

    init_args: InitArgs
    engine_args: EngineArgs
    peft_args: PeftArgs
    tinker_args: TinkerArgs | None
    tinker_native_args: TinkerNativeArgs | None
    trainer_args: TrainerArgs
    trainer_gpu_ids: list[int]
    inference_gpu_ids: list[int]
    rollout_weights_mode: Literal["lora", "merged"]
    chat_template_kwargs: dict[str, Any]
    chat_template: str
    chat_template_path: str
    special_tokens_in_text: Literal["text", "parse"]
    chat_template_content_format: str
    chat_template_tool_schema_format: Literal["default", "vllm_openai"]
    allow_unvalidated_arch: bool
    torchtune_args: TorchtuneArgs | None
    """Of releases before 0.5."""
    _decouple_vllm_and_unsloth: bool
    """Of releases before 0.5; later ones name the GPUs."""
    use_decoupled_unsloth: bool
    """The same."""


def __getattr__(name: str) -> Any:
    """`get_model_config`, which was here in release 0.3, and imports this module."""
    if name != "get_model_config":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from art.dev.get_model_config import get_model_config

    return get_model_config
