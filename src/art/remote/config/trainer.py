"""`trainer_args`: the fields of transformers' `TrainingArguments` and TRL's `GRPOConfig`."""

from __future__ import annotations

from art.remote.config.keys import acts, noted, refused
from art.remote.config.model import DEVICES, PRECISION, TRAINER_MEMORY

_BATCH = "a step is one update on all groups; train(grad_accumulation_sequences=...) makes smaller ones"
_LOOP = "the program calls train, step by step, and evaluates when it likes"
_LOGS = "metrics are the program's: `model.log`, history.jsonl and Weights & Biases"
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
        _LOGS,
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
