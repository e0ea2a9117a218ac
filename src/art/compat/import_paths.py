"""The import paths of older programs, and what each leads to.

    "art.testing": "art.environments.testing"           the same modules under another name, with all below
    "art.utils.retry": names("art.retrying:retry")      names, each from the module that it is in now
                       names("old=art.retrying:retry")  ... and that has another name there
    "art.megatron.train": names(instead="...")          any name of it raises NotBuiltError, with what to use
                       names(unbuilt={"name": "..."})   ... and no other name is there

`art.compat.finder` makes the modules; `tests/compat/make_stubs.py` writes `src/art-stubs` of this table, so
that type checkers and editors follow these paths, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Names(NamedTuple):
    """What a module of an older path holds."""

    places: Mapping[str, str]
    """Name -> "module:name" today."""
    unbuilt: Mapping[str, str]
    """Names without code behind them -> what to use instead."""
    instead: str | None
    """What to use instead of any other name; None: there is no other."""


def names(*places: str, unbuilt: Mapping[str, str] | None = None, instead: str | None = None) -> Names:
    """An entry of the table. A place is "module:name", or "older_name=module:name"."""
    found = {}
    for place in places:
        older, _, place_today = place.rpartition("=")
        found[older or place_today.partition(":")[2]] = place_today
    return Names(found, unbuilt or {}, instead)


def _same(instead: str, *unbuilt: str) -> Mapping[str, str]:
    return dict.fromkeys(unbuilt, instead)


_GPUS = (
    "`art.LocalBackend` trains on this machine's GPU, `art.RemoteBackend(url, api_key)` on another machine's"
)
_TINKER = "`art.LocalBackend` trains on this machine, `art.RemoteBackend(url, api_key)` on another"
_RENTED = (
    "start `art serve` on the machine that you rented and register with `art.RemoteBackend(url, api_key)`"
)
_OWN_PROCESSES = "the server trains and samples in processes of its own, see `server_options` of LocalBackend"
_LOSS = (
    "choose the loss by `loss_fn=` or `algorithm=` of `backend.train` (`art algorithms` lists them); "
    "`art.training.losses` has the trainer's own, which need torch"
)
_PACKING = "the trainer packs by itself and shares every common prefix; give `backend.train` the trajectories"
_TOKENS = (
    "the server keeps the sampled tokens and trains on exactly those; give `backend.train` the trajectories "
    "and groups"
)
_TABLE = "`await art.utils.benchmarking.load_trajectories(project)` gives the table"
_STORE = "`Store` of this module reads and writes any bucket that fsspec knows"
_DEPLOYED = "`await art.utils.deployment.deploy_model(...)` does it for a provider"
_S3 = {
    "archive_and_presign_step_url": _DEPLOYED,
    "build_s3_path": "`model_url(project, name, bucket=..., prefix=...)` of this module",
    "build_s3_zipped_step_path": _DEPLOYED,
    "ensure_bucket_exists": _STORE,
    "pull_model_from_s3": (
        "`await backend._experimental_pull_model_checkpoint(model, s3_bucket=...)` fetches a model's steps"
    ),
    "push_model_to_s3": (
        "`await backend._experimental_push_to_s3(model, s3_bucket=...)` sends a model's steps"
    ),
    "s3_sync": _STORE,
}

PATHS: Mapping[str, str | Names] = {
    "art.api_costs": names(
        "art.tracking.builder:CostExtractor",
        "art.tracking.price_tables:MODEL_TOKEN_PRICING",
        "art.tracking.price_tables:TokenPricing",
        "art.tracking.api_cost:track_api_cost",
    ),
    "art.auto_trajectory": names(
        "art.capture.auto:auto_trajectory", "art.capture.auto:capture_auto_trajectory"
    ),
    "art.costs": names(
        "art.tracking.training_costs:CostCalculator",
        "art.tracking.price_tables:MODEL_PRICING",
        "art.tracking.price_tables:ModelPricing",
        "art.tracking.training_costs:build_cost_calculator",
        "art.tracking.training_costs:compute_sample_costs",
        "art.tracking.training_costs:compute_train_cost",
        "art.tracking.training_costs:get_model_pricing",
        "art.tracking.training_costs:tokens_to_cost",
    ),
    "art.dev": names(
        "art.compat.dev:EngineArgs",
        "art.compat.dev:InitArgs",
        "art.compat.dev:InternalModelConfig",
        "art.compat.dev:OpenAIServerConfig",
        "art.compat.dev:PeftArgs",
        "art.compat.dev:ServerArgs",
        "art.compat.dev:TinkerArgs",
        "art.compat.dev:TinkerNativeArgs",
        "art.compat.dev:TinkerTrainingClientArgs",
        "art.compat.dev:TorchtuneArgs",
        "TrainConfig=art.backend:EarlierTrainOptions",
        "art.compat.dev:TrainSFTConfig",
        "art.compat.dev:TrainerArgs",
        "art.remote.model_config:get_model_config",
        "art.remote.model_config:get_openai_server_config",
        "art.remote.model_config:is_dedicated_mode",
        "art.remote.model_config:validate_dedicated_config",
    ),
    "art.dev.engine": names("art.compat.dev:EngineArgs"),
    "art.dev.get_model_config": names("art.remote.model_config:get_model_config"),
    "art.dev.model": names(
        "art.compat.dev:EngineArgs",
        "art.compat.dev:InitArgs",
        "art.compat.dev:InternalModelConfig",
        "art.compat.dev:PeftArgs",
        "art.compat.dev:TinkerArgs",
        "art.compat.dev:TinkerNativeArgs",
        "art.compat.dev:TinkerTrainingClientArgs",
        "art.compat.dev:TorchtuneArgs",
        "art.compat.dev:TrainerArgs",
        "art.remote.model_config:get_model_config",
    ),
    "art.dev.openai_server": names(
        "art.compat.dev:EngineArgs",
        "art.compat.dev:OpenAIServerConfig",
        "art.compat.dev:ServerArgs",
        "art.remote.model_config:get_openai_server_config",
    ),
    "art.dev.train": names("TrainConfig=art.backend:EarlierTrainOptions", "art.compat.dev:TrainSFTConfig"),
    "art.dev.trainer": names("art.compat.dev:TrainerArgs"),
    "art.dev.validate": names(
        "art.remote.model_config:is_dedicated_mode", "art.remote.model_config:validate_dedicated_config"
    ),
    "art.local.adapter_leases": names(
        instead="`async with backend.adapter_lease(model, step)` keeps a step for as long as it is used"
    ),
    "art.local.checkpoints": names(
        "art.tracking.trajectory_log.migration:migrate_checkpoints_to_new_structure",
        instead=(
            "`await model.delete_checkpoints()` removes steps, `await model.get_step()` knows the newest one"
        ),
    ),
    "art.local.service": names(instead=_OWN_PROCESSES),
    "art.local.state": names(instead=_OWN_PROCESSES),
    "art.local.train": names(instead=_OWN_PROCESSES),
    "art.local.vllm": names(instead=_OWN_PROCESSES),
    "art.loss": names(unbuilt=_same(_LOSS, "Loss", "loss_fn", "shift_tensor")),
    "art.megatron": names(unbuilt=_same(_GPUS, "MegatronBackend")),
    "art.megatron.backend": names(instead=_GPUS),
    "art.megatron.model_support": names(instead=_GPUS),
    "art.megatron.service": names(instead=_GPUS),
    "art.megatron.train": names(instead=_GPUS),
    "art.metrics": names(
        "art.tracking.builder:CostExtractor",
        "art.tracking.builder:MetricsBuilder",
        "art.tracking.api_cost:track_api_cost",
    ),
    "art.metrics_taxonomy": names(
        "METRIC_SECTIONS=art.tracking.names:SECTIONS",
        "METRIC_SPLITS=art.tracking.names:SPLITS",
        "TRAIN_GRADIENT_STEPS_KEY=art.tracking.names:GRADIENT_STEPS",
        "art.tracking.averages:TrajectoryBatchSummary",
        "average_metric_samples=art.tracking.names:average_metrics",
        "art.tracking.names:average_metrics",
        "art.tracking.averages:build_data_metrics_from_summary",
        "build_training_summary_metrics=art.tracking.averages:build_data_metrics_from_summary",
        "art.tracking.names:canonical_metrics",
        "art.tracking.names:canonical_name",
        "art.tracking.names:cumulative_name",
        "art.tracking.names:is_managed",
        "art.tracking.averages:summarize_trajectory_groups",
    ),
    "art.pipeline_trainer.checkpoint_retention": names(
        "art.pipeline_trainer.retention:CHECKPOINT_CREATED_AT_METRIC",
        "art.pipeline_trainer.retention:CHECKPOINT_EVAL_COMPLETED_METRIC",
        "art.pipeline_trainer.retention:CHECKPOINT_SAVED_METRIC",
        "art.pipeline_trainer.retention:CheckpointInfo",
        "art.pipeline_trainer.retention:CheckpointRetentionContext",
        "art.pipeline_trainer.retention:CheckpointRetentionStrategy",
        "art.pipeline_trainer.retention:keep_recent_and_top",
    ),
    "art.pipeline_trainer.state": names(
        instead="`model.read_state()` has the numbers of a run, and `StatusReporter` shows them while it "
        "goes on"
    ),
    "art.pipeline_trainer.types": names(
        "art.pipeline_trainer.rollout:EvalFn",
        "art.pipeline_trainer.rollout:RolloutFn",
        "art.pipeline_trainer.rollout:ScenarioT",
        "art.pipeline_trainer.rollout:SingleRolloutFn",
    ),
    "art.preprocessing": names(),
    "art.preprocessing.inputs": names(
        instead="give `backend.train` the trajectories; the trainer makes its batches"
    ),
    "art.preprocessing.pack": names(
        unbuilt=_same(_PACKING, "DiskPackedTensors", "PackedTensors", "packed_tensors_from_tokenized_results")
    ),
    "art.preprocessing.tokenize": names(
        unbuilt=_same(
            _TOKENS,
            "SFTBatch",
            "TokenizedResult",
            "tokenize_sft_batch",
            "tokenize_trajectory",
            "tokenize_trajectory_groups",
        )
    ),
    "art.serverless.client": names(
        instead="`art.ServerlessBackend(api_key=..., base_url=...)` speaks to an ART server; docs/server.md "
        "lists the routes for programs of your own"
    ),
    "art.skypilot": names(unbuilt=_same(_RENTED, "SkyPilotBackend", "stop_server")),
    "art.skypilot.backend": names(instead=_RENTED),
    "art.skypilot.stop_server": names(instead=_RENTED),
    "art.tinker": names(unbuilt=_same(_TINKER, "TinkerBackend")),
    "art.tinker.backend": names(instead=_TINKER),
    "art.tinker.prefix_cache": names(
        unbuilt=_same(
            "the server's engine keeps the keys and values of common prefixes by itself", "LRUTrieCache"
        )
    ),
    "art.tinker.renderers": names(
        unbuilt=_same(
            "the server finds the renderer of a base model by itself (`art audit-model` checks it)",
            "get_renderer_name",
        )
    ),
    "art.tinker.server": names(instead=_TINKER),
    "art.tinker.service": names(instead=_TINKER),
    "art.tinker_native": names(unbuilt=_same(_TINKER, "TinkerNativeBackend")),
    "art.tinker_native.backend": names(instead=_TINKER),
    "art.tinker_native.data": names(instead=_TINKER),
    "art.utils": names(
        "art.message_text:format_message",
        "art.folders:get_model_step",
        "art.datasets.iterate:iterate_dataset",
        "art.concurrency:limit_concurrency",
        "art.http_errors:log_http_errors",
        "art.tracking.provenance:record_provenance",
        "art.retrying:retry",
    ),
    "art.utils.benchmark_rollout": names("art.benchmarking.rollout:benchmark_rollout"),
    "art.utils.benchmarking": names(
        "art.benchmarking.model_key:BenchmarkModelKey",
        "art.benchmarking.model_key:filter_rename_model_split",
        "art.benchmarking.aggregates:load_aggregated_trajectories",
        "art.benchmarking.aggregates:load_latest_metrics",
        "art.benchmarking.load:load_trajectories",
        "art.benchmarking.constants:log_constant_metrics_wandb",
        "art.benchmarking.comparison_chart:percentage_comparison_bar_chart",
        "art.benchmarking.pull:pull_model_trajectories",
        "art.benchmarking.progress_chart:training_progress_chart",
    ),
    "art.utils.benchmarking.charts": names(
        "art.benchmarking.comparison_chart:percentage_comparison_bar_chart",
        "art.benchmarking.progress_chart:training_progress_chart",
    ),
    "art.utils.benchmarking.charts.percentage_comparison_bar_chart": names(
        "art.benchmarking.comparison_chart:percentage_comparison_bar_chart"
    ),
    "art.utils.benchmarking.charts.training_progress_chart": names(
        "art.benchmarking.progress_chart:training_progress_chart"
    ),
    "art.utils.benchmarking.filter_model_split": names(
        "art.benchmarking.model_key:filter_rename_model_split"
    ),
    "art.utils.benchmarking.load_aggregated_trajectories": names(
        "art.benchmarking.aggregates:load_aggregated_trajectories"
    ),
    "art.utils.benchmarking.load_latest_metrics": names("art.benchmarking.aggregates:load_latest_metrics"),
    "art.utils.benchmarking.load_trajectories": names("art.benchmarking.load:load_trajectories"),
    "art.utils.benchmarking.log_constant_metrics_wandb": names(
        "art.benchmarking.constants:log_constant_metrics_wandb"
    ),
    "art.utils.benchmarking.pull_model_trajectories": names("art.benchmarking.pull:pull_model_trajectories"),
    "art.utils.benchmarking.types": names("art.benchmarking.model_key:BenchmarkModelKey"),
    "art.utils.convert_moe_lora": names(instead="checkpoints are written as PEFT and vLLM read them"),
    "art.utils.deploy_model": names(
        "art.deployment.provider:LoRADeploymentJob",
        "art.deployment.provider:LoRADeploymentProvider",
        "art.deployment.deploy:deploy_model",
    ),
    "art.utils.deployment": names(
        "art.deployment.provider:DeploymentConfig",
        "art.deployment.provider:DeploymentResult",
        "art.deployment.provider:LoRADeploymentJob",
        "art.deployment.provider:LoRADeploymentProvider",
        "art.deployment.together:TogetherDeploymentConfig",
        "art.deployment.weights_and_biases:WandbDeploymentConfig",
        "art.deployment.deploy:deploy_model",
    ),
    "art.utils.deployment.common": names(
        "art.deployment.provider:DeploymentConfig",
        "art.deployment.provider:DeploymentResult",
        "art.deployment.deploy:deploy_model",
    ),
    "art.utils.deployment.legacy": names(
        "art.deployment.provider:LoRADeploymentJob", "art.deployment.provider:LoRADeploymentProvider"
    ),
    "art.utils.deployment.together": names("art.deployment.together:TogetherDeploymentConfig"),
    "art.utils.deployment.wandb": names(
        "art.deployment.weights_and_biases:WandbDeploymentConfig", "art.deployment.deploy:deploy_wandb"
    ),
    "art.utils.format_message": names("art.message_text:format_message"),
    "art.utils.get_model_step": names("art.folders:get_model_step", "art.folders:get_step_from_dir"),
    "art.utils.get_repo_root_path": names("art.folders:get_repo_root_path"),
    "art.utils.get_trajectory_messages": names("art.message_text:get_trajectory_messages"),
    "art.utils.group_aggregate": names(
        instead="read the logs with `art.utils.benchmarking.load_trajectories` and aggregate with polars"
    ),
    "art.utils.iterate_dataset": names(
        "art.datasets.iterate:DatasetBatch", "art.datasets.iterate:iterate_dataset"
    ),
    "art.utils.lifecycle": names(
        instead="`art.LocalBackend` ends its server by itself, and nothing outlives the program"
    ),
    "art.utils.limit_concurrency": names("art.concurrency:limit_concurrency"),
    "art.utils.litellm": names("art.litellm_choice:convert_litellm_choice_to_openai"),
    "art.utils.log_http_errors": names("art.http_errors:log_http_errors"),
    "art.utils.logging": names(
        "art.tracking.console:_C",
        "art.tracking.console:_ts",
        "art.tracking.console:dim",
        "art.tracking.console:err",
        "art.tracking.console:info",
        "art.tracking.console:ok",
        "art.tracking.console:step",
        "art.tracking.console:warn",
    ),
    "art.utils.model_config": names(
        instead="nothing needs them: what the assistant said is known by its tokens, not found by markers"
    ),
    "art.utils.network": names("art.process.listening:find_free_tcp_port"),
    "art.utils.old_benchmarking": names(
        "art.utils.old_benchmarking.display_image_grid:display_image_grid",
        "art.utils.old_benchmarking.generate_comparison_table:generate_comparison_table",
        "art.utils.old_benchmarking.generate_line_graphs:generate_line_graphs",
        "art.utils.old_benchmarking.load_benchmarked_models:load_benchmarked_models",
    ),
    "art.utils.old_benchmarking.calculate_step_metrics": names(
        "art.benchmarking.step_spread:calculate_step_std_dev"
    ),
    "art.utils.old_benchmarking.display_image_grid": names(
        unbuilt=_same(
            "save the charts with `figure.savefig(...)`, or lay them out with matplotlib",
            "display_image_grid",
        )
    ),
    "art.utils.old_benchmarking.generate_comparison_table": names(
        unbuilt=_same(
            "`await art.utils.benchmarking.load_latest_metrics(project)` has them",
            "generate_comparison_table",
        )
    ),
    "art.utils.old_benchmarking.generate_line_graphs": names(
        unbuilt=_same(
            "`art.utils.benchmarking.training_progress_chart(df, metric)` draws them", "generate_line_graphs"
        )
    ),
    "art.utils.old_benchmarking.load_benchmarked_models": names(
        unbuilt=_same(_TABLE, "load_benchmarked_models")
    ),
    "art.utils.old_benchmarking.types": names(
        unbuilt={
            "BenchmarkedModel": _TABLE,
            "BenchmarkedModelKey": (
                "`art.utils.benchmarking.BenchmarkModelKey` names a model of a table or a chart"
            ),
        }
    ),
    "art.utils.output_dirs": names(
        "art.folders:get_default_art_path",
        "art.folders:get_model_dir",
        "art.folders:get_models_dir",
        "art.folders:get_output_dir_from_model_properties",
        "art.folders:get_step_checkpoint_dir",
        "art.folders:get_trajectories_dir",
        "art.folders:get_trajectories_split_dir",
    ),
    "art.utils.record_provenance": names("art.tracking.provenance:record_provenance"),
    "art.utils.retry": names("art.retrying:retry"),
    "art.utils.s3": names(
        "art.errors:ForbiddenBucketCreationError",
        "S3SyncError=art.errors:StorageError",
        "art.storage.store:Store",
        "art.storage.pull:Wanted",
        "art.storage.arriving:commit_here",
        "art.storage.location:model_url",
        "art.storage.pull:pull_model",
        "art.storage.push:push_model",
        unbuilt=_S3,
    ),
    "art.utils.s3_checkpoint_utils": names(
        "art.storage.steps:complete_steps",
        "art.storage.copies:copy_checkpoint",
        "art.storage.copies:local_checkpoint",
        "art.storage.steps:local_steps",
        "art.storage.copies:newest_of",
    ),
    "art.utils.sft": names(
        "art.datasets.chunks:SFTChunk",
        "art.datasets.schedule:create_lr_schedule",
        "art.datasets.chunks:create_sft_dataset_iterator",
        "art.datasets.sft_file:get_file_row_count",
        "art.datasets.sft_file:iterate_file",
        "art.datasets.batch_size:resolve_sft_batch_size",
        "art.datasets.sft_file:train_sft_from_file",
    ),
    "art.utils.strip_logprobs": names("art.logprobs:strip_logprobs"),
    "art.utils.trajectory_logging": names(
        "art.tracking.trajectory_log.parquet:append_groups",
        "art.tracking.trajectory_log.json_lines:deserialize_trajectory_groups",
        "art.tracking.trajectory_log.step_log:read_trajectory_groups",
        "art.tracking.trajectory_log.step_log:read_trajectory_groups_parquet",
        "art.tracking.trajectory_log.json_lines:serialize_trajectory_groups",
        "art.tracking.trajectory_log.parquet:write_trajectory_groups_parquet",
    ),
    "art.utils.trajectory_migration": names(
        "art.tracking.trajectory_log.migration:MigrationResult",
        "art.tracking.trajectory_log.migration:auto_migrate_on_register",
        "art.tracking.trajectory_log.json_lines:deserialize_trajectory_groups",
        "art.tracking.trajectory_log.json_lines:dict_to_history",
        "art.tracking.trajectory_log.json_lines:dict_to_message_or_choice",
        "art.tracking.trajectory_log.json_lines:dict_to_trajectory",
        "art.tracking.trajectory_log.json_lines:dict_to_trajectory_group",
        "art.tracking.trajectory_log.json_lines:history_to_dict",
        "art.tracking.trajectory_log.json_lines:message_or_choice_to_dict",
        "art.tracking.trajectory_log.migration:migrate_all_models",
        "art.tracking.trajectory_log.migration:migrate_checkpoints_to_new_structure",
        "art.tracking.trajectory_log.migration:migrate_jsonl_to_parquet",
        "art.tracking.trajectory_log.migration:migrate_model_dir",
        "art.tracking.trajectory_log.migration:migrate_trajectories_dir",
        "art.tracking.trajectory_log.json_lines:serialize_trajectory_groups",
        "art.tracking.trajectory_log.json_lines:trajectory_group_to_dict",
        "art.tracking.trajectory_log.json_lines:trajectory_to_dict",
    ),
    "art.vllm": names(instead="vLLM runs as a program of its own; docs/vllm.md says how a server starts it"),
    "art.yield_trajectory": names(
        "art.capture.yielded:capture_yielded_trajectory", "art.capture.yielded:yield_trajectory"
    ),
}
