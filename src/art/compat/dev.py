"""Dictionaries of low-level settings (`art.dev`), with the names that users' programs give them.

    model._internal_config = art.dev.InternalModelConfig(
        init_args=art.dev.InitArgs(max_seq_length=8192), peft_args=art.dev.PeftArgs(r=16)
    )

They are typed dictionaries: plain `dict`s that an editor can complete. What acts, and what is refused, is
decided where they are used: at `model.register` and `backend.train`.
"""

from __future__ import annotations

from typing import Any, Literal, Required, TypedDict


class EngineArgs(TypedDict, total=False):
    """vLLM's `EngineArgs`, as its documentation lists them; other keys are possible too."""

    # the model
    model: str
    served_model_name: str | list[str] | None
    tokenizer: str | None
    hf_config_path: str | None
    task: str
    runner: str
    convert: str
    skip_tokenizer_init: bool
    tokenizer_mode: str
    trust_remote_code: bool
    allowed_local_media_path: str
    download_dir: str | None
    load_format: str
    config_format: str
    dtype: str
    seed: int | None
    max_model_len: int | None
    revision: str | None
    code_revision: str | None
    tokenizer_revision: str | None
    rope_scaling: dict[str, Any] | None
    rope_theta: float | None
    hf_token: bool | str | None
    hf_overrides: dict[str, Any] | None
    quantization: str | None
    enforce_eager: bool
    max_seq_len_to_capture: int
    max_context_len_to_capture: int | None
    max_logprobs: int
    logprobs_mode: str
    disable_sliding_window: bool
    disable_cascade_attn: bool
    enable_prompt_embeds: bool
    logits_processor_pattern: str | None
    generation_config: str | None
    override_generation_config: dict[str, Any] | None
    override_neuron_config: dict[str, Any] | None
    override_pooler_config: Any
    enable_sleep_mode: bool
    model_impl: str
    override_attention_dtype: str | None
    model_loader_extra_config: dict[str, Any] | None
    ignore_patterns: str | list[str] | None
    use_tqdm_on_load: bool
    pt_load_map_location: str | dict[str, str]
    # memory
    kv_cache_dtype: str
    block_size: int | None
    gpu_memory_utilization: float
    swap_space: float
    cpu_offload_gb: float
    num_gpu_blocks_override: int | None
    enable_prefix_caching: bool | None
    prefix_caching_hash_algo: str
    calculate_kv_scales: bool
    num_lookahead_slots: int
    use_v2_block_manager: bool
    preemption_mode: str | None
    # scheduling
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    max_num_partial_prefills: int
    max_long_partial_prefills: int
    long_prefill_token_threshold: int
    num_scheduler_steps: int
    multi_step_stream_outputs: bool
    scheduler_delay_factor: float
    enable_chunked_prefill: bool | None
    disable_chunked_mm_input: bool
    scheduling_policy: str
    scheduler_cls: str | type
    disable_async_output_proc: bool
    async_scheduling: bool
    # several devices
    device: str
    distributed_executor_backend: str | None
    pipeline_parallel_size: int
    tensor_parallel_size: int
    data_parallel_size: int
    data_parallel_rank: int | None
    data_parallel_size_local: int | None
    data_parallel_address: str | None
    data_parallel_rpc_port: int | None
    data_parallel_backend: str
    enable_expert_parallel: bool
    max_parallel_loading_workers: int | None
    ray_workers_use_nsight: bool
    disable_custom_all_reduce: bool
    worker_cls: str
    worker_extension_cls: str
    # adapters
    enable_lora: bool
    enable_lora_bias: bool
    max_loras: int
    max_lora_rank: int
    fully_sharded_loras: bool
    max_cpu_loras: int | None
    lora_dtype: str | None
    lora_extra_vocab_size: int
    lora_target_modules: list[str] | None
    long_lora_scaling_factors: tuple[float, ...] | None
    default_mm_loras: dict[str, str] | None
    enable_prompt_adapter: bool
    max_prompt_adapters: int
    max_prompt_adapter_token: int
    qlora_adapter_name_or_path: str | None
    # images and sound
    limit_mm_per_prompt: dict[str, int] | None
    mm_processor_kwargs: dict[str, Any] | None
    disable_mm_preprocessor_cache: bool
    interleave_mm_strings: bool
    # guided and speculative decoding
    guided_decoding_backend: str
    guided_decoding_disable_fallback: bool
    guided_decoding_disable_any_whitespace: bool
    guided_decoding_disable_additional_properties: bool
    enable_reasoning: bool | None
    reasoning_parser: str
    speculative_config: dict[str, Any] | None
    speculative_model: str | None
    num_speculative_tokens: int | None
    # logs
    disable_log_stats: bool
    disable_log_requests: bool
    enable_log_requests: bool
    show_hidden_metrics_for_version: str | None
    otlp_traces_endpoint: str | None
    collect_detailed_traces: list[str] | None
    # the rest
    compilation_config: dict[str, Any] | int | None
    kv_transfer_config: Any
    kv_events_config: Any
    weight_transfer_config: Any
    additional_config: dict[str, Any] | None


class TrainerArgs(TypedDict, total=False):
    """The optimizer's names act (`adam_beta1`, `weight_decay`, `max_grad_norm`, `warmup_steps` ...)."""

    # transformers
    output_dir: str | None
    overwrite_output_dir: bool
    do_train: bool
    do_eval: bool
    do_predict: bool
    eval_strategy: str
    prediction_loss_only: bool
    per_device_train_batch_size: int
    per_device_eval_batch_size: int
    per_gpu_train_batch_size: int | None
    per_gpu_eval_batch_size: int | None
    gradient_accumulation_steps: int
    eval_accumulation_steps: int | None
    eval_delay: float
    torch_empty_cache_steps: int | None
    learning_rate: float
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    max_grad_norm: float
    num_train_epochs: float
    max_steps: int
    lr_scheduler_type: str
    lr_scheduler_kwargs: dict[str, Any] | str | None
    warmup_ratio: float
    warmup_steps: float
    log_level: str
    log_level_replica: str
    log_on_each_node: bool
    logging_dir: str | None
    logging_strategy: str
    logging_first_step: bool
    logging_steps: float
    logging_nan_inf_filter: bool
    save_strategy: str
    save_steps: float
    save_total_limit: int | None
    save_safetensors: bool
    save_on_each_node: bool
    save_only_model: bool
    restore_callback_states_from_checkpoint: bool
    no_cuda: bool
    use_cpu: bool
    use_mps_device: bool
    seed: int
    data_seed: int | None
    jit_mode_eval: bool
    use_ipex: bool
    bf16: bool
    fp16: bool
    fp16_opt_level: str
    half_precision_backend: str
    bf16_full_eval: bool
    fp16_full_eval: bool
    tf32: bool | None
    local_rank: int
    ddp_backend: str | None
    tpu_num_cores: int | None
    tpu_metrics_debug: bool
    debug: str | list[str]
    dataloader_drop_last: bool
    eval_steps: float | None
    dataloader_num_workers: int
    dataloader_prefetch_factor: int | None
    past_index: int
    run_name: str | None
    project: str
    disable_tqdm: bool | None
    remove_unused_columns: bool | None
    label_names: list[str] | None
    load_best_model_at_end: bool
    metric_for_best_model: str | None
    greater_is_better: bool | None
    ignore_data_skip: bool
    fsdp: str | None
    fsdp_min_num_params: int
    fsdp_config: dict[str, Any] | str | None
    fsdp_transformer_layer_cls_to_wrap: str | None
    accelerator_config: dict[str, Any] | str | None
    parallelism_config: Any
    deepspeed: dict[str, Any] | str | None
    label_smoothing_factor: float
    optim: str
    optim_args: str | None
    adafactor: bool
    group_by_length: bool
    length_column_name: str
    report_to: str | list[str] | None
    ddp_find_unused_parameters: bool | None
    ddp_bucket_cap_mb: int | None
    ddp_broadcast_buffers: bool | None
    ddp_timeout: int
    dataloader_pin_memory: bool
    dataloader_persistent_workers: bool
    skip_memory_metrics: bool
    use_legacy_prediction_loop: bool
    push_to_hub: bool
    resume_from_checkpoint: str | None
    hub_model_id: str | None
    hub_strategy: str
    hub_token: str | None
    hub_private_repo: bool | None
    hub_always_push: bool
    hub_revision: str | None
    gradient_checkpointing: bool
    gradient_checkpointing_kwargs: dict[str, Any] | str | None
    include_inputs_for_metrics: bool
    include_for_metrics: list[str]
    eval_do_concat_batches: bool
    auto_find_batch_size: bool
    full_determinism: bool
    torchdynamo: str | None
    ray_scope: str | None
    torch_compile: bool
    torch_compile_backend: str | None
    torch_compile_mode: str | None
    include_tokens_per_second: bool | None
    include_num_input_tokens_seen: bool | str
    neftune_noise_alpha: float | None
    optim_target_modules: str | list[str] | None
    batch_eval_metrics: bool
    eval_on_start: bool
    use_liger_kernel: bool
    liger_kernel_config: dict[str, bool] | None
    eval_use_gather_object: bool
    average_tokens_across_devices: bool
    # TRL
    model_init_kwargs: dict[str, Any] | str | None
    disable_dropout: bool
    max_prompt_length: int | None
    num_generations: int | None
    max_completion_length: int | None
    ds3_gather_for_generation: bool
    shuffle_dataset: bool | None
    generation_batch_size: int | None
    steps_per_generation: int | None
    temperature: float
    top_p: float
    top_k: int | None
    min_p: float | None
    generation_kwargs: dict[str, Any] | None
    repetition_penalty: float
    use_transformers_paged: bool
    cache_implementation: str | None
    use_vllm: bool
    vllm_mode: str
    vllm_server_base_url: str | None
    vllm_server_host: str
    vllm_server_port: int
    vllm_server_timeout: float
    vllm_guided_decoding_regex: str | None
    vllm_gpu_memory_utilization: float
    vllm_tensor_parallel_size: int
    beta: float
    num_iterations: int
    epsilon: float
    delta: float | None
    epsilon_high: float | None
    importance_sampling_level: str
    reward_weights: list[float] | None
    scale_rewards: bool | str
    loss_type: str
    mask_truncated_completions: bool
    sync_ref_model: bool
    ref_model_mixup_alpha: float
    ref_model_sync_steps: int
    top_entropy_quantile: float
    use_liger_loss: bool
    log_completions: bool
    num_completions_to_print: int | None
    wandb_log_unique_prompts: bool | None


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
    tool_format: Literal["auto", "template"]
    chat_template_content_format: str
    chat_template_tool_schema_format: Literal["default", "vllm_openai"]
    allow_unvalidated_arch: bool
    torchtune_args: TorchtuneArgs | None
    """Of releases before 0.5."""
    _decouple_vllm_and_unsloth: bool
    """Of releases before 0.5; later ones name the GPUs."""
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
