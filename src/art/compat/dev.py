"""Dictionaries of low-level settings (`art.dev`), with the names that users' programs give them.

    model._internal_config = art.dev.InternalModelConfig(
        init_args=art.dev.InitArgs(max_seq_length=8192), peft_args=art.dev.PeftArgs(r=16)
    )

All are plain `dict`s; the typed ones an editor can complete. What acts, and what is refused, is decided where
they are used: at `model.register` and `backend.train`.
"""

from __future__ import annotations

from typing import Any, Literal, Required, TypeAlias, TypedDict

EngineArgs: TypeAlias = dict[str, Any]
"""vLLM's `EngineArgs`. Any key is taken; `docs/reference/options.md` lists those that matter here."""

TrainerArgs: TypeAlias = dict[str, Any]
"""What transformers' `TrainingArguments` and TRL's `GRPOConfig` take. Any key is taken; the optimizer's names
act (`adam_beta1`, `weight_decay`, `max_grad_norm`, `warmup_steps` ...).
"""


class InitArgs(TypedDict, total=False):
    """The loading options of the base model: the keywords of Unsloth's `from_pretrained`."""

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
    """The options with which releases before 0.5 trained all weights with torchtune; `register`
    refuses them.
    """

    model: Required[str]
    model_type: Required[str]
    async_weight_syncing: bool
    enable_activation_offloading: bool


class InternalModelConfig(TypedDict, total=False):
    """The dictionary that `TrainableModel(_internal_config=...)` takes."""

    init_args: InitArgs
    engine_args: EngineArgs
    peft_args: PeftArgs
    lora_config: dict[str, Any]
    """The keys of `art.LoRAConfig`."""
    tinker_args: TinkerArgs | None
    tinker_native_args: TinkerNativeArgs | None
    trainer_args: TrainerArgs
    trainer_gpu_ids: list[int]
    inference_gpu_ids: list[int]
    rollout_weights_mode: Literal["lora", "merged"]
    rollout_weight_update_mode: Literal["step_lora", "in_flight_lora"]
    vllm_runtime: dict[str, Any]
    chat_template_kwargs: dict[str, Any]
    chat_template: str
    chat_template_path: str
    special_tokens_in_text: Literal["text", "parse"]
    tool_format: Literal["auto", "template"]
    chat_template_content_format: str
    chat_template_tool_schema_format: Literal["default", "vllm_openai"]
    allow_unvalidated_arch: bool
    torchtune_args: TorchtuneArgs | None
    """The options of torchtune in releases before 0.5."""
    _decouple_vllm_and_unsloth: bool
    """A switch of releases before 0.5; later releases name the GPUs instead."""
    use_decoupled_unsloth: bool
    """The same."""


class ServerArgs(TypedDict, total=False):
    """The arguments of vLLM's OpenAI-compatible server."""

    host: str | None
    port: int
    uvicorn_log_level: str
    allow_credentials: bool
    allowed_origins: list[str]
    allowed_methods: list[str]
    allowed_headers: list[str]
    api_key: str | None
    lora_modules: list[str] | None
    prompt_adapters: list[str] | None
    chat_template: str | None
    chat_template_content_format: str
    response_role: str
    ssl_keyfile: str | None
    ssl_certfile: str | None
    ssl_ca_certs: str | None
    enable_ssl_refresh: bool
    ssl_cert_reqs: int
    root_path: str | None
    middleware: list[str]
    return_tokens_as_token_ids: bool
    disable_frontend_multiprocessing: bool
    enable_request_id_headers: bool
    enable_auto_tool_choice: bool
    tool_call_parser: str | None
    tool_parser_plugin: str
    max_log_len: int | None
    disable_fastapi_docs: bool
    enable_prompt_tokens_details: bool
    enable_server_load_tracking: bool
    enable_reasoning: bool
    reasoning_parser: str | None


class OpenAIServerConfig(TypedDict, total=False):
    """The dictionary that `register(backend, _openai_client_config=...)` takes."""

    log_file: str
    server_args: ServerArgs
    engine_args: EngineArgs


class TrainSFTConfig(TypedDict, total=False):
    """The further keywords of a supervised step: there are none."""
