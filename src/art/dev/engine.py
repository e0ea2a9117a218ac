"""The arguments of vLLM's engine, of its releases 0.8 to 0.20."""

from __future__ import annotations

from typing import Any, TypedDict


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
