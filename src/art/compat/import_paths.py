"""The import paths of older programs, and what each leads to.

    "art.local.backend": "art.client.backends.local_backend"  the same module by another name, with all below
    "art.utils.retry": names("art.retrying:retry")      names, each from the module that it is in now
                       names("art.retrying:old=retry")  ... and that has another name there
    "art.megatron.train": names(instead="...")          any name of it raises NotBuiltError, with what to use
                       names(unbuilt={"name": "..."})   ... and no other name is there

`art.compat.finder` makes the modules; `tests/promises/compat/make_stubs.py` writes `src/art-stubs` of this
table, so that type checkers and editors follow these paths, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_RANKS = "several processes train together with `server_options={'trainer': {'ranks': N}}` of LocalBackend"
_METRICS = "`art.Model(report_metrics=[...])` chooses trackers, which get every metric by its own name"
NEWER_NAMES: Mapping[str, str] = {
    "MegatronRuntimeConfig": _RANKS,
    "MegatronTopologyConfig": _RANKS,
    "get_megatron_runtime_config": _RANKS,
    "init_megatron_runtime_config": _RANKS,
    "MetricDefinition": _METRICS,
    "PIPELINE_RL_METRIC_DEFINITIONS": _METRICS,
    "PIPELINE_RL_DASHBOARD_DEFAULT_METRICS": _METRICS,
    "PIPELINE_RL_SCORE_METRICS": _METRICS,
}
"""Names that `art` has in later releases of the library, and has not here -> what to use instead."""
NEWER_PLACES: Mapping[str, str] = {
    "LocalServingUnavailableError": "art.errors:LocalServingUnavailableError",
    "get_tokenizer": "art_extensions.token_views.base_tokenizers:get_tokenizer",
}
"""Further names of `art` in later releases -> "module:name"."""
NO_INFERENCE = (
    "there is no package art_inference: vLLM runs unpatched, as a program of its own. docs/guides/vllm.md "
    "says how a server starts one or attaches to one"
)


class Names(NamedTuple):
    """The names in a module of an older path."""

    places: Mapping[str, str]
    """Name -> "module:name" today."""
    unbuilt: Mapping[str, str]
    """Names without code behind them -> what to use instead."""
    instead: str | None
    """What to use instead of any other name; None: there is no other."""


def names(*places: str, unbuilt: Mapping[str, str] | None = None, instead: str | None = None) -> Names:
    """An entry of the table. A place is "module:name other_name ..."; a name may be "older_name=name"."""
    found = {}
    for place in places:
        module, _, listed = place.partition(":")
        for name in listed.split():
            older, _, today = name.rpartition("=")
            found[older or today] = f"{module}:{today}"
    return Names(found, unbuilt or {}, instead)


def _same_answer(instead: str, *unbuilt: str) -> Mapping[str, str]:
    return dict.fromkeys(unbuilt, instead)


_GPUS = (
    "`art.LocalBackend` trains on this machine's GPU, `art.RemoteBackend(url, api_key)` on another machine's"
)
_TINKER = "`art.LocalBackend` trains on this machine, `art.RemoteBackend(url, api_key)` on another"
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

_LOGGED = "art_extensions.compat.benchmarking"
_BUCKET_LOGS = "art_extensions.buckets.bucket_trajectories"
_MCP = "art_extensions.scenarios.mcp"

PATHS: Mapping[str, str | Names] = {
    "art.adapter_leases": "art_extensions.compat.adapter_leases",
    "art.pipeline_tuner": "art_extensions.pipeline_tuner",
    "art.algorithms": names(
        "art.batch.algorithms.combine:check_algorithm resolve", "art.batch.algorithms.table:DEFAULT Row TABLE"
    ),
    "art.api_costs": names(
        "art.tracking.call_costs:track_api_cost",
        "art.tracking.metrics_builder:CostExtractor",
        "art.tracking.prices:MODEL_TOKEN_PRICING TokenPricing",
    ),
    "art.auto_trajectory": names("art.client.capture:auto_trajectory capture_auto_trajectory"),
    "art.autorl": names(
        "art_extensions.scenarios.autorl.autorl_run:AutoRLReport AutoRLSettings rollout",
        "art_extensions.scenarios.autorl.preparation:Inputs generate_inputs write_rubric write_system_prompt",
        "art_extensions.scenarios.autorl.verbs:prepare train",
        "art.runs.comparison:Comparison Estimate compare",
    ),
    "art.autorl.rollout": "art_extensions.scenarios.autorl.autorl_run",
    "art.capture": names(
        "art.client.capture:auto_trajectory capture_auto_trajectory capture_yielded_trajectory "
        "yield_trajectory",
        "art.rollout_tasks:current_rollout in_rollout rollout_scope",
    ),
    "art.client.jobs": "art.client.requests.jobs",
    "art.client.local_server": "art.client.backends.local_server",
    "art.client.publish": names(),
    "art.client.publish.export": names("art.client.publishing:Exported export_model"),
    "art.client.recording": names(),
    "art.client.recording.capture": "art.client.capture",
    "art.client.request_logs": "art_extensions.logs.request_logs",
    "art.client.storage.bucket_pull": "art_extensions.buckets.bucket_pull",
    "art.client.storage.bucket_push": "art_extensions.buckets.bucket_push",
    "art.concurrency": "art_extensions.compat.call_decorators",
    "art.environments.adapters.reasoning_gym": "art_extensions.environments.reasoning_gym",
    "art.environments.mcp": _MCP,
    "art.environments.mcp.servers": "art_extensions.testing.mcp_servers",
    "art.environments.testing": "art_extensions.testing",
    "art.environments.adapters.verifiers": "art_extensions.environments.verifiers",
    "art.costs": names(
        "art.tracking.prices:CostCalculator",
        "art_extensions.compat.training_costs:MODEL_PRICING ModelPricing build_cost_calculator "
        "compute_sample_costs compute_train_cost get_model_pricing tokens_to_cost",
    ),
    "art.datasets": "art_extensions.sft_data.datasets",
    "art.dev": names(
        "art.backend:TrainConfig=EarlierTrainOptions",
        "art.client.options.dedicated_gpus:is_dedicated_mode validate_dedicated_config",
        "art_extensions.compat.dev_config:get_model_config get_openai_server_config",
        "art.compat.dev:EngineArgs InitArgs InternalModelConfig OpenAIServerConfig PeftArgs ServerArgs "
        "TinkerArgs TinkerNativeArgs TinkerTrainingClientArgs TorchtuneArgs TrainSFTConfig TrainerArgs",
    ),
    "art.dev.engine": names("art.compat.dev:EngineArgs"),
    "art.dev.get_model_config": names("art_extensions.compat.dev_config:get_model_config"),
    "art.dev.model": names(
        "art_extensions.compat.dev_config:get_model_config",
        "art.compat.dev:EngineArgs InitArgs InternalModelConfig PeftArgs TinkerArgs TinkerNativeArgs "
        "TinkerTrainingClientArgs TorchtuneArgs TrainerArgs",
    ),
    "art.dev.openai_server": names(
        "art_extensions.compat.dev_config:get_openai_server_config",
        "art.compat.dev:EngineArgs OpenAIServerConfig ServerArgs",
    ),
    "art.dev.train": names("art.backend:TrainConfig=EarlierTrainOptions", "art.compat.dev:TrainSFTConfig"),
    "art.dev.trainer": names("art.compat.dev:TrainerArgs"),
    "art.dev.validate": names(
        "art.client.options.dedicated_gpus:is_dedicated_mode validate_dedicated_config"
    ),
    "art.guided_completion": "art_extensions.compat.guided_completion",
    "art.langgraph": names(
        "art_extensions.langgraph.chat_model_factory:init_chat_model",
        "art_extensions.langgraph.graph_rollout:wrap_rollout",
    ),
    "art.langgraph.llm_wrapper": names(
        "art_extensions.langgraph.chat_model:LoggingLLM",
        "art_extensions.langgraph.chat_model_factory:add_thread create_messages_from_logs init_chat_model",
        "art_extensions.langgraph.graph_rollout:CURRENT_CONFIG wrap_rollout",
    ),
    "art.langgraph.message_utils": "art_extensions.langgraph.graph_rollout",
    "art.llm": names(
        "art.rewards.llm.budget:Budget",
        "art.rewards.llm.cache:AnswerCache",
        "art.rewards.llm.channel:Channel Pace",
        "art.rewards.llm.names:base_of resolve_llm",
        "art.rewards.llm.request:Llm Reply Request Usage",
    ),
    "art.local": names("art.client.backends.local_backend:LocalBackend"),
    "art.local.adapter_leases": names(
        "art_extensions.compat.adapter_leases:InferenceTarget in_flight_lora_name pin_inference_step "
        "pin_inference_target pinned_inference_name pinned_inference_step",
        instead="`async with backend.adapter_lease(model, step)` keeps a step for as long as it is used",
    ),
    "art.local.backend": "art.client.backends.local_backend",
    "art.local.checkpoints": names(
        "art_extensions.compat.trajectory_migration:migrate_checkpoints_to_new_structure",
        instead=(
            "`await model.delete_checkpoints()` removes steps, `await model.get_step()` knows the newest one"
        ),
    ),
    "art.local.service": names(instead=_OWN_PROCESSES),
    "art.local.state": names(instead=_OWN_PROCESSES),
    "art.local.supervisor": "art.client.backends.local_server",
    "art.local.train": names(instead=_OWN_PROCESSES),
    "art.local.vllm": names(instead=_OWN_PROCESSES),
    "art.loss": names(unbuilt=_same_answer(_LOSS, "Loss", "loss_fn", "shift_tensor")),
    "art.mcp": names(
        f"{_MCP}.cassette:Cassette",
        "art_extensions.scenarios.mcp_rl.checked_scenarios:ScenarioSet measure_difficulty",
        "art_extensions.scenarios.mcp_rl.generate_scenarios:generate_scenarios",
        f"{_MCP}.rollout:rollout",
        f"{_MCP}.server_address:HttpServer InProcessServer Server StdioServer parse_server",
        f"{_MCP}.session:Session connect",
        f"{_MCP}.types:GeneratedScenario GeneratedScenarioCollection MCPPrompt MCPResource "
        "MCPResourceTemplate MCPTool PlannedCall PlannedScenario ToolResult complete_task_tool",
        "art_extensions.scenarios.mcp_rl.mcp_run:McpReport",
        "art_extensions.scenarios.mcp_rl.settings:TrainSettings",
        "art_extensions.scenarios.mcp_rl.training:train",
    ),
    "art.mcp.default_tools": f"{_MCP}.types",
    "art.mcp.generate_scenarios": "art_extensions.scenarios.mcp_rl.generate_scenarios",
    "art.mcp.rollout": f"{_MCP}.rollout",
    "art.mcp.servers": "art_extensions.testing.mcp_servers",
    "art.mcp.servers.library": "art_extensions.testing.mcp_servers.library",
    "art.mcp.servers.weather": "art_extensions.testing.mcp_servers.weather",
    "art.mcp.servers.weather.answers": "art_extensions.testing.mcp_servers.weather.answers",
    "art.mcp.servers.weather.server": "art_extensions.testing.mcp_servers.weather",
    "art.mcp.servers.weather.tasks": "art_extensions.testing.mcp_servers.weather.tasks",
    "art.mcp.servers.weather.truth": "art_extensions.testing.mcp_servers.weather.tasks",
    "art.mcp.types": f"{_MCP}.types",
    "art.megatron": names(unbuilt=_same_answer(_GPUS, "MegatronBackend"), instead=_GPUS),
    "art.megatron.backend": names(instead=_GPUS),
    "art.megatron.model_support": names(instead=_GPUS),
    "art.megatron.service": names(instead=_GPUS),
    "art.megatron.train": names(instead=_GPUS),
    "art.messages": "art.openai",
    "art.metrics": names(
        "art.tracking.call_costs:track_api_cost", "art.tracking.metrics_builder:CostExtractor MetricsBuilder"
    ),
    "art.metrics_taxonomy": names(
        "art.tracking.averages:TrajectoryBatchSummary build_data_metrics_from_summary "
        "build_training_summary_metrics=build_data_metrics_from_summary summarize_trajectory_groups",
        "art.tracking.names:METRIC_SECTIONS=SECTIONS METRIC_SPLITS=SPLITS "
        "TRAIN_GRADIENT_STEPS_KEY=GRADIENT_STEPS average_metric_samples=average_metrics average_metrics "
        "canonical_metrics canonical_name cumulative_name is_managed",
    ),
    "art.pipeline_trainer": names(
        "art_extensions.pipeline.rollout_workers:EvalFn RolloutFn ScenarioT SingleRolloutFn "
        "make_group_rollout_fn",
        "art_extensions.pipeline.settings:CHECKPOINT_CREATED_AT_METRIC CHECKPOINT_EVAL_COMPLETED_METRIC "
        "CHECKPOINT_EVAL_FAILED_METRIC CHECKPOINT_SAVED_METRIC CheckpointInfo CheckpointRetentionContext "
        "CheckpointRetentionStrategy PipelineRuntimeConfig keep_recent_and_top",
        "art_extensions.pipeline.status:Status StatusReporter",
        "art_extensions.pipeline.trainer:PipelineTrainer",
    ),
    "art.pipeline_trainer.checkpoint_retention": names(
        "art_extensions.pipeline.settings:CHECKPOINT_CREATED_AT_METRIC CHECKPOINT_EVAL_COMPLETED_METRIC "
        "CHECKPOINT_SAVED_METRIC CheckpointInfo CheckpointRetentionContext CheckpointRetentionStrategy "
        "keep_recent_and_top"
    ),
    "art.pipeline_trainer.state": names(
        instead=(
            "`model.read_state()` has the numbers of a run, and `StatusReporter` shows them while it goes on"
        )
    ),
    "art.pipeline_trainer.status": "art_extensions.pipeline.status",
    "art.pipeline_trainer.trainer": "art_extensions.pipeline.trainer",
    "art.pipeline_trainer.types": names(
        "art_extensions.pipeline.rollout_workers:EvalFn RolloutFn ScenarioT SingleRolloutFn"
    ),
    "art.preprocessing": names(),
    "art.preprocessing.inputs": names(
        instead="give `backend.train` the trajectories; the trainer makes its batches"
    ),
    "art.preprocessing.pack": names(
        unbuilt=_same_answer(
            _PACKING, "DiskPackedTensors", "PackedTensors", "packed_tensors_from_tokenized_results"
        )
    ),
    "art.preprocessing.policy_spans": names(
        instead="one step samples the whole of a reply; `choice.step` says which"
    ),
    "art.preprocessing.tokenize": names(
        unbuilt=_same_answer(
            _TOKENS,
            "SFTBatch",
            "TokenizedResult",
            "tokenize_sft_batch",
            "tokenize_trajectory",
            "tokenize_trajectory_groups",
        )
    ),
    "art.remote": names("art.client.backends.remote_backend:RemoteBackend"),
    "art.remote.backend": "art.client.backends.remote_backend",
    "art.remote.jobs": "art.client.requests.jobs",
    "art.rewards.checks": names(
        "art_extensions.judge_checks.alarms:Alarm",
        "art_extensions.judge_checks.calibration:Calibration CalibrationGroup calibrate",
        "art_extensions.judge_checks.watch:JudgeChecks JudgeWatch",
    ),
    "art.rewards.judge_agreement": "art_extensions.judge_checks.agreement",
    "art.rewards.judge_watch": "art_extensions.judge_checks.watch",
    "art.rewards.matches": "art_extensions.sandbox.matches",
    "art.rewards.rubric": "art_extensions.rubric.rubric",
    "art.rewards.sandbox": "art_extensions.sandbox.limits",
    "art.rewards.verifier": "art_extensions.sandbox.verifier",
    "art.rewards.pairwise": "art_extensions.tournament.pairwise",
    "art.rewards.verifiers": names(
        "art_extensions.sandbox.matches:ExactMatch JsonSchemaMatch MathMatch RegexMatch",
        "art_extensions.sandbox.limits:Limits",
        "art_extensions.sandbox.verifier:Verifier last_answer",
        "art_extensions.sandbox.code:CodeTests ProgramCases",
    ),
    "art.rewards.verifiers.code": "art_extensions.sandbox.code",
    "art.rewards.verifiers.limited_process": "art_extensions.sandbox.limited_process",
    "art.rewards.verifiers.matches": "art_extensions.sandbox.matches",
    "art.rewards.verifiers.verifier": "art_extensions.sandbox.verifier",
    "art.runs.evaluation": "art_extensions.evaluation.checkpoint_scores",
    "art.runs.pipeline": "art_extensions.pipeline",
    "art.runtime_diagnostics": names(
        instead="`art doctor` checks this machine, and `art explain` says what is wrong with a run"
    ),
    "art.serverless": names("art.client.backends.serverless_backend:ServerlessBackend"),
    "art.serverless.backend": "art.client.backends.serverless_backend",
    "art.serverless.client": names(
        instead=(
            "`art.ServerlessBackend(api_key=..., base_url=...)` speaks to an ART server; "
            "docs/reference/server.md lists the routes for programs of your own"
        )
    ),
    "art.serving_capabilities": names(
        instead="a server asks its engine what it can by itself; `art doctor` says what this machine serves"
    ),
    "art.skypilot": names("art_extensions.launch.backend:SkyPilotBackend stop_server"),
    "art.skypilot.backend": names("art_extensions.launch.backend:SkyPilotBackend"),
    "art.skypilot.stop_server": names("art_extensions.launch.backend:stop_server"),
    "art.tasks": names("art.environments.tasks:NAMES Task TaskDefaults find"),
    "art.tasks.mail": names(
        "art.environments.tasks.mail:DEFAULTS DESCRIPTION ID_LETTERS Inbox Mail NAME NAMES PARAMETERS "
        "PROJECTS PROJECTS_USED ROLES SCORE SCORE_LABEL SEARCH_LIMIT SYSTEM_PROMPT Scenario=MailScenario "
        "TITLE TOOLS TURN_LIMIT environment parse_call read rollout scenario search show"
    ),
    "art.tasks.tic_tac_toe": names(
        "art.environments.tasks.tic_tac_toe:CELLS DEFAULTS DESCRIPTION EMPTY Game=TicTacToe LINES NAME "
        "REWARDS SCORE SCORE_LABEL SYSTEM_PROMPT Scenario=TicTacToeScenario TITLE draw_board environment "
        "free_cells outcome parse_move place rollout scenario show winner"
    ),
    "art.tasks.yes_no_maybe": names(
        "art.environments.tasks.yes_no_maybe:DEFAULTS DESCRIPTION NAME Question=YesNoMaybe REWARDS SCORE "
        "SCORE_LABEL Scenario=YesNoMaybeScenario TITLE VERBS environment judge phrasings rollout "
        "scenario show worth"
    ),
    "art.tau_bench": names(
        instead="`art.train_environment` trains on environments by name, see docs/guides/environments.md"
    ),
    "art.testing": names(
        "art_extensions.testing.answers:Mischief ScriptedGenerator Served either",
        "art_extensions.testing.llm_server:LlmServer",
        "art_extensions.testing.truthful_judge:KnownQualities TruthfulJudge fingerprint mail tic_tac_toe",
    ),
    "art.testing.__main__": "art_extensions.testing.__main__",
    "art.tracking.explain": "art_extensions.ui.explain",
    "art.tracking.trajectory_migration": "art_extensions.compat.trajectory_migration",
    "art.tinker": names(unbuilt=_same_answer(_TINKER, "TinkerBackend")),
    "art.tinker.backend": names(instead=_TINKER),
    "art.tinker.prefix_cache": names(
        unbuilt=_same_answer(
            "the server's engine keeps the keys and values of common prefixes by itself", "LRUTrieCache"
        )
    ),
    "art.tinker.renderers": names(
        unbuilt=_same_answer(
            "the server finds the renderer of a base model by itself (`art audit-model` checks it)",
            "get_renderer_name",
        )
    ),
    "art.tinker.server": names(instead=_TINKER),
    "art.tinker.service": names(instead=_TINKER),
    "art.tinker_native": names(unbuilt=_same_answer(_TINKER, "TinkerNativeBackend")),
    "art.tinker_native.backend": names(instead=_TINKER),
    "art.tinker_native.data": names(instead=_TINKER),
    "art.distributed": names(
        instead=f"{_RANKS}; `art serve --cluster ADDRESS` places workers on the machines of a Ray cluster"
    ),
    "art.engine.vllm": "art_extensions.vllm",
    "art.trainer_rank": names(instead=_RANKS),
    "art.ui": "art_extensions.ui",
    "art.utils": names(
        "art_extensions.sft_data.datasets:iterate_dataset",
        "art.retrying:retry",
        "art_extensions.compat.call_decorators:limit_concurrency log_http_errors",
        "art.tracking.folders:get_model_step",
        "art_extensions.compat.provenance:record_provenance",
        "art.trajectories:format_message",
    ),
    "art.utils.benchmark_rollout": names(f"{_LOGGED}:benchmark_rollout"),
    "art.utils.benchmarking": names(
        "art_extensions.compat.benchmark_charts:percentage_comparison_bar_chart training_progress_chart",
        f"{_LOGGED}:BenchmarkModelKey filter_rename_model_split load_aggregated_trajectories "
        "load_latest_metrics load_trajectories log_constant_metrics_wandb",
        f"{_BUCKET_LOGS}:pull_model_trajectories",
    ),
    "art.utils.benchmarking.charts": names(
        "art_extensions.compat.benchmark_charts:percentage_comparison_bar_chart training_progress_chart"
    ),
    "art.utils.benchmarking.charts.percentage_comparison_bar_chart": names(
        "art_extensions.compat.benchmark_charts:percentage_comparison_bar_chart"
    ),
    "art.utils.benchmarking.charts.training_progress_chart": names(
        "art_extensions.compat.benchmark_charts:training_progress_chart"
    ),
    "art.utils.benchmarking.filter_model_split": names(f"{_LOGGED}:filter_rename_model_split"),
    "art.utils.benchmarking.load_aggregated_trajectories": names(f"{_LOGGED}:load_aggregated_trajectories"),
    "art.utils.benchmarking.load_latest_metrics": names(f"{_LOGGED}:load_latest_metrics"),
    "art.utils.benchmarking.load_trajectories": names(
        f"{_LOGGED}:load_trajectories", f"{_BUCKET_LOGS}:pull_model_trajectories"
    ),
    "art.utils.benchmarking.log_constant_metrics_wandb": names(f"{_LOGGED}:log_constant_metrics_wandb"),
    "art.utils.benchmarking.pull_model_trajectories": names(f"{_BUCKET_LOGS}:pull_model_trajectories"),
    "art.utils.benchmarking.types": names(f"{_LOGGED}:BenchmarkModelKey"),
    "art.utils.convert_moe_lora": names(instead="checkpoints are written as PEFT and vLLM read them"),
    "art.utils.deploy_model": names(
        "art.client.publishing:LoRADeploymentJob",
        "art_extensions.publish.deployment:LoRADeploymentProvider deploy_model",
    ),
    "art.utils.deployment": names(
        "art.client.publishing:LoRADeploymentJob",
        "art_extensions.publish.deployment:DeploymentConfig DeploymentResult LoRADeploymentProvider "
        "deploy_model",
        "art_extensions.publish.deployment_providers:TogetherDeploymentConfig WandbDeploymentConfig",
    ),
    "art.utils.deployment.common": names(
        "art_extensions.publish.deployment:DeploymentConfig DeploymentResult deploy_model"
    ),
    "art.utils.deployment.legacy": names(
        "art.client.publishing:LoRADeploymentJob", "art_extensions.publish.deployment:LoRADeploymentProvider"
    ),
    "art.utils.deployment.together": names(
        "art_extensions.publish.deployment_providers:TogetherDeploymentConfig"
    ),
    "art.utils.deployment.wandb": names(
        "art_extensions.publish.deployment:deploy_wandb",
        "art_extensions.publish.deployment_providers:WandbDeploymentConfig",
    ),
    "art.utils.format_message": names("art.trajectories:format_message"),
    "art.utils.get_model_step": names("art.tracking.folders:get_model_step get_step_from_dir"),
    "art.utils.get_repo_root_path": names("art.tracking.folders:get_repo_root_path"),
    "art.utils.get_trajectory_messages": names("art.trajectories:get_trajectory_messages"),
    "art.utils.group_aggregate": names(
        instead=("read the logs with `art.utils.benchmarking.load_trajectories` and aggregate with polars")
    ),
    "art.utils.iterate_dataset": names("art_extensions.sft_data.datasets:DatasetBatch iterate_dataset"),
    "art.utils.lifecycle": names(
        instead="`art.LocalBackend` ends its server by itself, and nothing outlives the program"
    ),
    "art.utils.limit_concurrency": names("art_extensions.compat.call_decorators:limit_concurrency"),
    "art.utils.litellm": names("art_extensions.compat.litellm_choices:convert_litellm_choice_to_openai"),
    "art.utils.log_http_errors": names("art_extensions.compat.call_decorators:log_http_errors"),
    "art.utils.logging": names("art_extensions.compat.coloured_lines:_C _ts dim err info ok step warn"),
    "art.utils.model_config": names(
        instead=("nothing needs them: what the assistant said is known by its tokens, not found by markers")
    ),
    "art.utils.network": names("art.process.resources:find_free_tcp_port"),
    "art.utils.old_benchmarking": names(
        "art.utils.old_benchmarking.display_image_grid:display_image_grid",
        "art.utils.old_benchmarking.generate_comparison_table:generate_comparison_table",
        "art.utils.old_benchmarking.generate_line_graphs:generate_line_graphs",
        "art.utils.old_benchmarking.load_benchmarked_models:load_benchmarked_models",
    ),
    "art.utils.old_benchmarking.calculate_step_metrics": names(f"{_LOGGED}:calculate_step_std_dev"),
    "art.utils.old_benchmarking.display_image_grid": names(
        unbuilt=_same_answer(
            "save the charts with `figure.savefig(...)`, or lay them out with matplotlib",
            "display_image_grid",
        )
    ),
    "art.utils.old_benchmarking.generate_comparison_table": names(
        unbuilt=_same_answer(
            "`await art.utils.benchmarking.load_latest_metrics(project)` has them",
            "generate_comparison_table",
        )
    ),
    "art.utils.old_benchmarking.generate_line_graphs": names(
        unbuilt=_same_answer(
            "`art.utils.benchmarking.training_progress_chart(df, metric)` draws them", "generate_line_graphs"
        )
    ),
    "art.utils.old_benchmarking.load_benchmarked_models": names(
        unbuilt=_same_answer(_TABLE, "load_benchmarked_models")
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
        "art.tracking.folders:get_default_art_path get_model_dir get_models_dir "
        "get_output_dir_from_model_properties get_step_checkpoint_dir get_trajectories_dir "
        "get_trajectories_split_dir"
    ),
    "art.utils.record_provenance": names("art_extensions.compat.provenance:record_provenance"),
    "art.utils.retry": names("art.retrying:retry"),
    "art.utils.s3": names(
        "art.client.storage.bucket_store:Wanted",
        "art_extensions.buckets.bucket_pull:commit_here pull_model",
        "art_extensions.buckets.bucket_push:push_model",
        "art_extensions.buckets.store:Store model_url",
        "art.errors:ForbiddenBucketCreationError S3SyncError=StorageError",
        unbuilt=_S3,
    ),
    "art.utils.s3_checkpoint_utils": names(
        "art_extensions.buckets.bucket_pull:copy_checkpoint local_checkpoint newest_of",
        "art_extensions.buckets.bucket_push:complete_steps local_steps",
        "art_extensions.buckets.bucket_layout:migrate_s3_checkpoints_to_new_structure",
    ),
    "art.utils.sft": names(
        "art.client.options.learning_rates:create_lr_schedule",
        "art.client.sft.sft_request:resolve_sft_batch_size",
        "art_extensions.sft_data.datasets:SFTChunk create_sft_dataset_iterator get_file_row_count "
        "iterate_file train_sft_from_file",
    ),
    "art.utils.strip_logprobs": names("art_extensions.compat.stripped_logprobs:strip_logprobs"),
    "art.utils.trajectory_logging": names(
        "art.tracking.trajectory_lines:deserialize_trajectory_groups serialize_trajectory_groups",
        "art.tracking.trajectory_log:append_groups read_trajectory_groups read_trajectory_groups_parquet "
        "write_trajectory_groups_parquet",
    ),
    "art.utils.trajectory_migration": names(
        "art.tracking.trajectory_lines:deserialize_trajectory_groups dict_to_history "
        "dict_to_message_or_choice dict_to_trajectory dict_to_trajectory_group history_to_dict "
        "message_or_choice_to_dict serialize_trajectory_groups trajectory_group_to_dict "
        "trajectory_to_dict",
        "art_extensions.compat.trajectory_migration:MigrationResult auto_migrate_on_register "
        "migrate_all_models migrate_checkpoints_to_new_structure migrate_jsonl_to_parquet migrate_model_dir "
        "migrate_trajectories_dir",
    ),
    "art.vllm": names(
        instead="vLLM runs as a program of its own; docs/guides/vllm.md says how a server starts it"
    ),
    "art.yield_trajectory": names("art.client.capture:capture_yielded_trajectory yield_trajectory"),
}
