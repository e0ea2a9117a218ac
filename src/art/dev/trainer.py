"""The trainer's settings: the fields of transformers' `TrainingArguments` and TRL's `GRPOConfig`."""

from __future__ import annotations

from typing import Any, TypedDict


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
