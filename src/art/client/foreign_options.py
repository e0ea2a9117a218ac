"""The options of other libraries that `_internal_config` may carry, and what each does here.

An option acts, is noted (it has no effect, and the log says so), or is refused because it would change the
result. The tables: the sections themselves with `init_args` and `peft_args`; `engine_args`, the arguments of
vLLM's engine as its releases 0.8 to 0.20 had them; `trainer_args`, the fields of transformers'
`TrainingArguments` and TRL's `GRPOConfig`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from art.errors import ConfigurationError, did_you_mean
from art.wire.nested import MASK, SECRETS, HiddenKey

_log = logging.getLogger(__name__)

Effect = Literal["acts", "noted", "refused"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignOption:
    """One key.

    acts: it does what `text` says. noted: other engines need it and nothing changes here, for the reason in
    `text`; one line in the log says so. refused: results would be others than the key asks for, so only
    `neutral` values pass, which ask for nothing; `text` says what to use instead. None always asks for
    nothing.
    """

    effect: Effect
    text: str
    neutral: tuple[Any, ...] = ()


ForeignOptions = Mapping[str, ForeignOption]


def acts(**texts: str) -> dict[str, ForeignOption]:
    """Keys that act, with what they do."""
    return {name: ForeignOption(effect="acts", text=text) for name, text in texts.items()}


def noted(text: str, names: str, *, neutral: Sequence[Any] = ()) -> dict[str, ForeignOption]:
    """Keys without effect here, for one reason. `neutral` values are not worth a line in the log."""
    return {name: ForeignOption(effect="noted", text=text, neutral=tuple(neutral)) for name in names.split()}


def refused(text: str, names: str, *, neutral: Sequence[Any] = ()) -> dict[str, ForeignOption]:
    """Keys that are refused, for one reason, unless their value asks for nothing."""
    return {
        name: ForeignOption(effect="refused", text=text, neutral=tuple(neutral)) for name in names.split()
    }


def read_options(
    where: str, given: Mapping[str, Any] | None, keys: ForeignOptions, *, told: bool = True
) -> dict[str, Any]:
    """The values that act. Raises ConfigurationError for unknown and refused keys; `told`: logs the noted.

    where: how the section is called in messages, such as `_internal_config['peft_args']`.
    """
    if given is not None and not isinstance(given, Mapping):
        raise ConfigurationError(f"{where} is {given!r}; it is a dict, such as one of `art.dev`")
    acting = {}
    for name, value in (given or {}).items():
        key = keys.get(name)
        if key is None:
            raise ConfigurationError(f"{where}[{name!r}]: no such key{meant_option(name, keys)}")
        if value is None or _among(value, key.neutral):
            continue
        if key.effect == "refused":
            shown = HiddenKey(MASK) if name in SECRETS else value
            raise ConfigurationError(f"{where}[{name!r}] = {shown!r}: {key.text}")
        if key.effect == "acts":
            acting[name] = value
        elif told:
            _log.warning("%s[%r] has no effect here: %s", where, name, key.text)
    return acting


def meant_option(name: str, known: Mapping[str, Any]) -> str:
    """`; did you mean 'x'? Known: ...`, the whole list only where it is short."""
    guess = did_you_mean(name, known)
    hint = f"; {guess}" if guess else ""
    if len(known) > 40:
        return f"{hint or ';'} docs/options.md lists the {len(known)} known ones"
    return f"{hint or ';'} known: {', '.join(sorted(known))}"


def _among(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Whether a value is one of these; True and 1 are two values."""
    return any(type(value) is type(one) and value == one for one in neutral)


TRAINER_MEMORY = (
    "the trainer plans its memory itself; LocalBackend(server_options={'trainer': ...}) tells it more"
)
PRECISION = (
    "weights are computed in their own precision, or in the `dtype` of the server's trainer and "
    "engine options"
)
DEVICES = "engine and trainer choose devices by the server's own options, LocalBackend(server_options=...)"

SECTIONS = {
    **acts(
        init_args="How the base model is loaded, below.",
        engine_args="How it is served, below.",
        peft_args="The adapter's shape, below.",
        trainer_args="The optimizer, below.",
        tinker_args="What Tinker's service is told of a model, below.",
        tinker_native_args="The same keys as tinker_args.",
        chat_template="A Jinja template that writes the model's conversations instead of its own.",
        chat_template_path="A file on the client's machine that holds such a template.",
        chat_template_kwargs=(
            "What the chat template is told, such as `enable_thinking`; names that the model's format does "
            "not know are refused. A request's own `chat_template_kwargs` win."
        ),
        special_tokens_in_text=(
            "Whether a special token that a message spells is `'text'`, the default, or one: `'parse'`."
        ),
    ),
    **noted(DEVICES, "trainer_gpu_ids inference_gpu_ids"),
    **noted(
        "an adapter is served beside its base, which computes what merged weights do",
        "rollout_weights_mode",
        neutral=["lora"],
    ),
    **noted(
        "every architecture is checked: engine and trainer must agree at the start", "allow_unvalidated_arch"
    ),
    **noted(
        "engine and trainer are processes of their own always",
        "_decouple_vllm_and_unsloth use_decoupled_unsloth",
    ),
    **noted(
        "training takes the ids that were sampled and renders nothing again",
        "chat_template_tool_schema_format",
        neutral=["default"],
    ),
    **refused(
        "a message's content is given to the template as text. Leave it out.",
        "chat_template_content_format",
        neutral=["auto", "string"],
    ),
    **refused(
        "torchtune is not used. To train all weights use init_args={'full_finetuning': True}.",
        "torchtune_args",
        neutral=[{}],
    ),
}

INIT_ARGS = {
    **acts(
        max_seq_length=(
            "Prompt and completion have at most so many tokens, where the model itself allows more."
        ),
        full_finetuning="True: all weights are trained, and there is no adapter.",
        random_state="Seeds the adapter and the trainer, unless peft_args do.",
    ),
    **noted(
        "the base model is TrainableModel(base_model=...), and training goes on from its newest step",
        "model_name",
    ),
    **noted(PRECISION, "dtype load_in_4bit load_in_8bit load_in_16bit float8_kv_cache", neutral=[False]),
    **noted("log in to the hub with the variable HF_TOKEN, where the server runs", "token"),
    **noted(DEVICES, "device_map"),
    **noted("the tokenizer is taken as it is", "fix_tokenizer"),
    **noted(TRAINER_MEMORY, "use_gradient_checkpointing", neutral=[False]),
    **noted("names are exact always", "use_exact_model_name"),
    **noted(
        "sampling has an engine process of its own",
        "fast_inference gpu_memory_utilization disable_log_stats enable_prefix_caching use_async",
        neutral=[False],
    ),
    **noted("the engine takes adapters of any rank", "max_lora_rank"),
    **refused("positions are those of the model's configuration. Change its config.json.", "rope_scaling"),
    **refused(
        "code of a model's folder is never run. Use a model that transformers knows.",
        "trust_remote_code",
        neutral=[False],
    ),
    **refused(
        "the vocabulary is that of the base model. Resize it and save a model of your own.",
        "resize_model_vocab",
    ),
    **refused("download that revision and give its folder as base_model.", "revision", neutral=["main"]),
}

TINKER_ARGS = {
    **noted("the server finds the renderer of a base model by itself", "renderer_name"),
    **refused(
        "Tinker's service is no backend of this package. Use peft_args for the adapter's shape and seed.",
        "training_client_args",
        neutral=[{}],
    ),
}
"""`tinker_args` and `tinker_native_args`."""

_NEW_ADAPTER = (
    "it is not built: an adapter is low-rank matrices on linear layers of the decoder. Leave it out."
)

PEFT_ARGS = {
    **acts(
        r="The adapter's rank; 16 unless given.",
        lora_alpha="Its scale is alpha / r; alpha is 32 unless given.",
        lora_dropout="Dropout before the adapter while it is trained.",
        target_modules="Names of linear layers, or 'all-linear', the default.",
        use_rslora="The scale is alpha / sqrt(r).",
        random_state="Seeds the adapter's first weights and the trainer.",
        max_seq_length="As in init_args; the smallest one counts.",
    ),
    **refused("biases are not trained.", "bias", neutral=["none"]),
    **refused(_NEW_ADAPTER, "layers_to_transform layers_pattern modules_to_save", neutral=[[], ""]),
    **refused(
        "A is drawn as PEFT does by default, B is zero. Leave it out.", "init_lora_weights", neutral=[True]
    ),
    **refused(_NEW_ADAPTER, "loftq_config", neutral=[{}]),
    **noted(TRAINER_MEMORY, "use_gradient_checkpointing", neutral=[False]),
    **noted("checkpoints are written into the model's folder at once", "temporary_location"),
}


_OWN = "the server's engine has options of its own, LocalBackend(server_options={'engine': ...})"
_MEMORY = f"how memory is used does not change a reply; {_OWN}"
_SPEED = f"how fast it samples does not change a reply; {_OWN}"
_ADAPTERS = (
    "the builtin engine takes adapters of all ranks, and vLLM's limits are options of the server's engine"
)
_TEXT_ONLY = "messages are text here, so nothing of it is read"
_ENGINE_LOGS = "the engine's logs are those of the server, `<path>/server/logs`"
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
        _ENGINE_LOGS,
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
    "api_key": ForeignOption(effect="acts", text="Its key; a random one unless given.", neutral=("default",)),
    **noted(
        "the model's format says how calls and reasoning are read, always",
        "enable_auto_tool_choice tool_call_parser tool_parser_plugin enable_reasoning reasoning_parser",
    ),
    **noted(
        "replies carry the sample that they are; its ids are in the ledger", "return_tokens_as_token_ids"
    ),
    **noted("adapters are served by the names of their models", "lora_modules"),
    **noted(
        _ENGINE_LOGS,
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


_BATCH = "a step is one update on all groups; train(grad_accumulation_sequences=...) makes smaller ones"
_LOOP = "the program calls train, step by step, and evaluates when it likes"
_METRICS = "metrics are the program's: `model.log`, history.jsonl and Weights & Biases"
_SAVING = "each step is a checkpoint of its own; `model.delete_checkpoints` removes them"
_SAMPLING = "rollouts are sampled by the program's own requests, which say how"
_TRAIN = "say it in backend.train, or in model.train(_config=...)"

TRAINER_ARGS = {
    **acts(
        learning_rate="The rate of train(learning_rate=None).",
        adam_beta1="AdamW's first decay; 0.9 unless given.",
        adam_beta2="AdamW's second decay; 0.99 unless given.",
        adam_epsilon="AdamW's epsilon.",
        weight_decay="AdamW's decay of weights; 0 unless given.",
        max_grad_norm="The gradient's norm is cut at this; 1 unless given.",
        lr_scheduler_type="constant, linear or cosine, from step to step.",
        warmup_steps="Steps of a linear rise to the rate.",
        warmup_ratio="The same as a share of max_steps, which it needs.",
        max_steps="Steps of the whole run, where the rate falls to its end.",
        seed="Seeds the adapter and the trainer, unless peft_args or init_args do.",
    ),
    **noted(
        "the optimizer is AdamW, its moments in the precision of what is trained",
        "optim optim_args",
        neutral=["adamw_torch"],
    ),
    **noted(
        _BATCH,
        "per_device_train_batch_size per_gpu_train_batch_size gradient_accumulation_steps "
        "auto_find_batch_size num_generations generation_batch_size steps_per_generation num_train_epochs "
        "average_tokens_across_devices",
    ),
    **noted(
        _LOOP,
        "do_train do_eval do_predict eval_strategy prediction_loss_only per_device_eval_batch_size "
        "per_gpu_eval_batch_size eval_accumulation_steps eval_delay eval_steps eval_on_start "
        "eval_do_concat_batches eval_use_gather_object batch_eval_metrics include_inputs_for_metrics "
        "include_for_metrics past_index label_names remove_unused_columns group_by_length "
        "length_column_name data_seed shuffle_dataset dataloader_drop_last dataloader_num_workers "
        "dataloader_prefetch_factor dataloader_pin_memory dataloader_persistent_workers ignore_data_skip "
        "metric_for_best_model greater_is_better use_legacy_prediction_loop",
    ),
    **noted(
        _METRICS,
        "log_level log_level_replica log_on_each_node logging_dir logging_strategy logging_first_step "
        "logging_steps logging_nan_inf_filter report_to run_name project disable_tqdm skip_memory_metrics "
        "debug tpu_metrics_debug include_tokens_per_second include_num_input_tokens_seen log_completions "
        "num_completions_to_print wandb_log_unique_prompts",
    ),
    **noted(
        _SAVING,
        "output_dir overwrite_output_dir save_strategy save_steps save_total_limit save_safetensors "
        "save_on_each_node save_only_model restore_callback_states_from_checkpoint push_to_hub "
        "hub_model_id hub_strategy hub_token hub_private_repo hub_always_push hub_revision",
    ),
    **noted(PRECISION, "bf16 fp16 fp16_opt_level half_precision_backend bf16_full_eval fp16_full_eval tf32"),
    **noted(TRAINER_MEMORY, "gradient_checkpointing gradient_checkpointing_kwargs torch_empty_cache_steps"),
    **noted(
        DEVICES,
        "no_cuda use_cpu use_mps_device local_rank ddp_backend tpu_num_cores use_ipex jit_mode_eval fsdp "
        "fsdp_min_num_params fsdp_config fsdp_transformer_layer_cls_to_wrap accelerator_config "
        "parallelism_config deepspeed ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers "
        "ddp_timeout ds3_gather_for_generation ray_scope",
    ),
    **noted(
        "faster kernels are taken where they are installed, LocalBackend(server_options={'trainer': ...})",
        "torchdynamo torch_compile torch_compile_backend torch_compile_mode use_liger_kernel "
        "liger_kernel_config use_liger_loss full_determinism",
    ),
    **noted(
        _SAMPLING,
        "max_prompt_length max_completion_length temperature top_p top_k min_p generation_kwargs "
        "repetition_penalty use_transformers_paged cache_implementation use_vllm vllm_mode "
        "vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout "
        "vllm_guided_decoding_regex vllm_gpu_memory_utilization vllm_tensor_parallel_size",
    ),
    **refused("the optimizer is AdamW. Leave it out.", "adafactor", neutral=[False]),
    **refused("give adam_params of backend.train, or leave it out.", "lr_scheduler_kwargs", neutral=[{}]),
    **refused(
        "it is not built. Leave it out.",
        "optim_target_modules neftune_noise_alpha model_init_kwargs",
        neutral=[{}],
    ),
    **refused("it is not built. Leave it out.", "label_smoothing_factor", neutral=[0.0, 0]),
    **refused("the adapter's dropout is peft_args['lora_dropout'].", "disable_dropout", neutral=[False]),
    **refused(
        "a model goes on from its newest checkpoint by itself.",
        "resume_from_checkpoint load_best_model_at_end",
        neutral=[False],
    ),
    **refused(f"{_TRAIN}: kl_penalty_coef.", "beta", neutral=[0.0, 0]),
    **refused(
        f"{_TRAIN}: kl_ref_adapter_path or kl_penalty_reference_step.", "sync_ref_model", neutral=[False]
    ),
    **refused(f"{_TRAIN}: kl_penalty_reference_step.", "ref_model_mixup_alpha ref_model_sync_steps"),
    **refused(
        f"{_TRAIN}, with the same name.", "epsilon epsilon_high importance_sampling_level scale_rewards"
    ),
    **refused(f"{_TRAIN}: algorithm={{'updates': {{'epochs': ...}}}}.", "num_iterations", neutral=[1]),
    **refused(f"{_TRAIN}: loss_fn_config={{'delta': ...}}.", "delta"),
    **refused(f"{_TRAIN}: algorithm, whose table has the same names.", "loss_type"),
    **refused(f"{_TRAIN}: algorithm={{'truncated': 'drop'}}.", "mask_truncated_completions", neutral=[False]),
    **refused("the reward is the trajectory's; weigh its parts there.", "reward_weights"),
    **refused("it is not built. Leave it out.", "top_entropy_quantile", neutral=[1.0, 1]),
}
