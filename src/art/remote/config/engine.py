"""`engine_args`: the arguments of vLLM's engine, as its releases 0.8 to 0.20 had them."""

from __future__ import annotations

from art.remote.config.keys import Key, acts, noted, refused
from art.remote.config.model import DEVICES, PRECISION

_OWN = "the server's engine has options of its own, LocalBackend(server_options={'engine': ...})"
_MEMORY = f"how memory is used does not change a reply; {_OWN}"
_SPEED = f"how fast it samples does not change a reply; {_OWN}"
_ADAPTERS = (
    "the builtin engine takes adapters of all ranks, and vLLM's limits are options of the server's engine"
)
_TEXT_ONLY = "messages are text here, so nothing of it is read"
_LOGS = "the engine's logs are those of the server, `<path>/server/logs`"
_BASE = "it is TrainableModel(base_model=...)"
_NEVER = "code or settings of a model's folder that change what it computes are not taken. Leave it out."

ENGINE_ARGS = {
    **acts(
        max_model_len="Prompt and completion have at most so many tokens, where the model itself allows more."
    ),
    **noted(
        _BASE,
        "model tokenizer served_model_name hf_config_path skip_tokenizer_init tokenizer_mode config_format",
    ),
    **noted(
        PRECISION, "dtype kv_cache_dtype calculate_kv_scales override_attention_dtype lora_dtype quantization"
    ),
    **noted("each request has a seed of its own (`seed`), the model's is peft_args['random_state']", "seed"),
    **noted("log in to the hub with the variable HF_TOKEN, where the server runs", "hf_token"),
    **noted(
        "models come from the hub's cache or a folder, with safetensors",
        "download_dir load_format model_impl model_loader_extra_config ignore_patterns use_tqdm_on_load "
        "pt_load_map_location",
        neutral=["auto"],
    ),
    **noted(
        _MEMORY,
        "gpu_memory_utilization block_size swap_space cpu_offload_gb num_gpu_blocks_override "
        "enable_prefix_caching prefix_caching_hash_algo preemption_mode enable_sleep_mode "
        "max_seq_len_to_capture max_context_len_to_capture kv_transfer_config kv_events_config "
        "use_v2_block_manager num_lookahead_slots",
    ),
    **noted(
        _SPEED,
        "enforce_eager compilation_config max_num_batched_tokens max_num_seqs max_num_partial_prefills "
        "max_long_partial_prefills long_prefill_token_threshold num_scheduler_steps "
        "multi_step_stream_outputs scheduler_delay_factor enable_chunked_prefill disable_chunked_mm_input "
        "scheduling_policy scheduler_cls disable_async_output_proc async_scheduling disable_cascade_attn "
        "speculative_config speculative_model num_speculative_tokens additional_config "
        "override_neuron_config",
    ),
    **noted(
        DEVICES,
        "device distributed_executor_backend pipeline_parallel_size tensor_parallel_size "
        "data_parallel_size data_parallel_rank data_parallel_size_local data_parallel_address "
        "data_parallel_rpc_port data_parallel_backend enable_expert_parallel max_parallel_loading_workers "
        "ray_workers_use_nsight disable_custom_all_reduce worker_cls worker_extension_cls",
    ),
    **noted(
        _ADAPTERS,
        "enable_lora max_loras max_lora_rank fully_sharded_loras max_cpu_loras lora_extra_vocab_size "
        "lora_target_modules",
    ),
    **noted(
        _TEXT_ONLY,
        "allowed_local_media_path limit_mm_per_prompt mm_processor_kwargs disable_mm_preprocessor_cache "
        "interleave_mm_strings default_mm_loras",
    ),
    **noted("new weights reach the engine as adapters", "weight_transfer_config"),
    **noted("the model's format says how its reasoning is read", "enable_reasoning reasoning_parser"),
    **noted(
        "a request says what its answer must look like, and the server holds it to that",
        "guided_decoding_backend guided_decoding_disable_fallback guided_decoding_disable_any_whitespace "
        "guided_decoding_disable_additional_properties",
    ),
    **noted(
        "one logprob a token is kept, of the distribution that it was drawn from",
        "max_logprobs logprobs_mode",
    ),
    **noted(
        _LOGS,
        "disable_log_stats disable_log_requests enable_log_requests show_hidden_metrics_for_version "
        "otlp_traces_endpoint collect_detailed_traces",
    ),
    **refused(
        "a request that says nothing is sampled from the model's own distribution, temperature 1. Send "
        "temperature and top_p with each request.",
        "generation_config override_generation_config",
        neutral=["vllm", {}],
    ),
    **refused(_NEVER, "trust_remote_code disable_sliding_window", neutral=[False]),
    **refused(_NEVER, "rope_scaling rope_theta hf_overrides", neutral=[{}]),
    **refused(
        "download that revision and give its folder as base_model.",
        "revision code_revision tokenizer_revision",
        neutral=["main"],
    ),
    **refused(
        "a served model generates text. Leave it out.",
        "task runner convert",
        neutral=["auto", "generate", "none"],
    ),
    **refused("it is not built. Leave it out.", "override_pooler_config", neutral=[{}]),
    **refused("it is not built. Leave it out.", "enable_prompt_embeds enable_lora_bias", neutral=[False]),
    **refused("it is not built. Leave it out.", "enable_prompt_adapter", neutral=[False]),
    **refused(
        "it is not built. Leave it out.", "max_prompt_adapters max_prompt_adapter_token", neutral=[0, 1]
    ),
    **refused(
        "it is not built. Leave it out.",
        "logits_processor_pattern qlora_adapter_name_or_path long_lora_scaling_factors",
    ),
}

SERVER_ARGS = {
    **acts(
        host="Where the server of a LocalBackend listens; 127.0.0.1 unless given.",
        port="Its port; a free one unless given.",
    ),
    "api_key": Key(effect="acts", text="Its key; a random one unless given.", neutral=("default",)),
    **noted(
        "the model's format says how calls and reasoning are read, always",
        "enable_auto_tool_choice tool_call_parser tool_parser_plugin enable_reasoning reasoning_parser",
    ),
    **noted(
        "replies carry the sample that they are; its ids are in the ledger", "return_tokens_as_token_ids"
    ),
    **noted("adapters are served by the names of their models", "lora_modules"),
    **noted(
        _LOGS,
        "uvicorn_log_level max_log_len enable_server_load_tracking disable_fastapi_docs "
        "enable_request_id_headers disable_frontend_multiprocessing",
    ),
    **noted(
        'pages of browsers: `server_options={"allow_origins": [...]}`',
        "allow_credentials allowed_origins allowed_methods allowed_headers",
    ),
    **noted("usage tells prompt and completion", "enable_prompt_tokens_details"),
    **refused("say it in `_internal_config`, where it belongs to the model.", "chat_template"),
    **refused(
        "a message's content is given to the template as text. Leave it out.",
        "chat_template_content_format",
        neutral=["auto", "string"],
    ),
    **refused("a reply's role is 'assistant'.", "response_role", neutral=["assistant"]),
    **refused(
        "the server speaks plain HTTP on this machine; put a proxy before it.",
        "ssl_keyfile ssl_certfile ssl_ca_certs enable_ssl_refresh ssl_cert_reqs root_path",
        neutral=[False, 0],
    ),
    **refused("it is not built. Leave it out.", "middleware prompt_adapters", neutral=[[]]),
}
"""`_openai_client_config["server_args"]`."""
