"""ART teaches a language model to act by letting it act.

    model = art.TrainableModel(name="agent", project="games", base_model="art/nano")
    await model.register(art.LocalBackend())
    groups = [art.TrajectoryGroup(rollout(model) for _ in range(8)) for _ in range(4)]
    groups = await art.gather_trajectory_groups(groups)
    await model.train(groups, config=art.TrainConfig(learning_rate=3e-4))

Importing this package loads nothing: each name below is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from art.compat import finder as _finder

if TYPE_CHECKING:
    from art import dev as dev
    from art.backend import Backend as Backend
    from art.batches import overlapped as overlapped
    from art.batches import trajectory_group_batches as trajectory_group_batches
    from art.client.backends.local_backend import LocalBackend as LocalBackend
    from art.client.backends.remote_backend import RemoteBackend as RemoteBackend
    from art.client.backends.serverless_backend import ServerlessBackend as ServerlessBackend
    from art.client.capture import auto_trajectory as auto_trajectory
    from art.client.capture import capture_auto_trajectory as capture_auto_trajectory
    from art.client.capture import capture_yielded_trajectory as capture_yielded_trajectory
    from art.client.capture import current_trajectory as current_trajectory
    from art.client.capture import trajectory as trajectory
    from art.client.capture import yield_trajectory as yield_trajectory
    from art.client.publishing import export_model as export_model
    from art.client.rollout import rollout as rollout
    from art.gather import gather_trajectories as gather_trajectories
    from art.gather import gather_trajectory_groups as gather_trajectory_groups
    from art.gather import trajectory_group as trajectory_group
    from art.model import Model as Model
    from art.model import TrainableModel as TrainableModel
    from art.openai import Messages as Messages
    from art.openai import MessagesAndChoices as MessagesAndChoices
    from art.openai import Tools as Tools
    from art.pipeline_trainer import PipelineRuntimeConfig as PipelineRuntimeConfig
    from art.pipeline_tuner import PipelineAutotuneConfig as PipelineAutotuneConfig
    from art.process.interrupt import run as run
    from art.recording.scope import no_capture as no_capture
    from art.retrying import retry as retry
    from art.runs.environment_run import train_environment as train_environment
    from art.trajectories import History as History
    from art.trajectories import Trajectory as Trajectory
    from art.trajectories import TrajectoryGroup as TrajectoryGroup
    from art.trajectories import tensorize as tensorize
    from art.trajectories import tokenize as tokenize
    from art.types import LocalTrainResult as LocalTrainResult
    from art.types import LoRAConfig as LoRAConfig
    from art.types import ServerlessTrainResult as ServerlessTrainResult
    from art.types import TrainConfig as TrainConfig
    from art.types import TrainResult as TrainResult
    from art.types import TrainSFTConfig as TrainSFTConfig
    from art.types import Unscored as Unscored
    from art.wire.algorithm import Algorithm as Algorithm

_finder.install()

_HOME = {
    "Algorithm": "art.wire.algorithm",
    "Backend": "art.backend",
    "History": "art.trajectories",
    "LoRAConfig": "art.types",
    "LocalBackend": "art.client.backends.local_backend",
    "LocalTrainResult": "art.types",
    "Messages": "art.openai",
    "MessagesAndChoices": "art.openai",
    "Model": "art.model",
    "PipelineAutotuneConfig": "art.pipeline_tuner",  # of an extension, so not in `__all__`
    "PipelineRuntimeConfig": "art.pipeline_trainer",
    "RemoteBackend": "art.client.backends.remote_backend",
    "ServerlessBackend": "art.client.backends.serverless_backend",
    "ServerlessTrainResult": "art.types",
    "Tools": "art.openai",
    "TrainConfig": "art.types",
    "TrainResult": "art.types",
    "TrainSFTConfig": "art.types",
    "TrainableModel": "art.model",
    "Trajectory": "art.trajectories",
    "TrajectoryGroup": "art.trajectories",
    "Unscored": "art.types",
    "auto_trajectory": "art.client.capture",
    "capture_auto_trajectory": "art.client.capture",
    "capture_yielded_trajectory": "art.client.capture",
    "current_trajectory": "art.client.capture",
    "export_model": "art.client.publishing",
    "gather_trajectories": "art.gather",
    "gather_trajectory_groups": "art.gather",
    "no_capture": "art.recording.scope",
    "overlapped": "art.batches",
    "retry": "art.retrying",
    "rollout": "art.client.rollout",
    "run": "art.process.interrupt",
    "tensorize": "art.trajectories",
    "tokenize": "art.trajectories",
    "train_environment": "art.runs.environment_run",
    "trajectory": "art.client.capture",
    "trajectory_group": "art.gather",
    "trajectory_group_batches": "art.batches",
    "yield_trajectory": "art.client.capture",
}
_ROOMS = frozenset(
    {
        "adapter_leases",
        "algorithms",
        "api_costs",
        "autorl",
        "backend",
        "batches",
        "capture",
        "costs",
        "datasets",
        "dev",
        "errors",
        "gather",
        "guided_completion",
        "langgraph",
        "llm",
        "local",
        "loss",
        "mcp",
        "megatron",
        "messages",
        "metrics",
        "metrics_taxonomy",
        "model",
        "openai",
        "pipeline_trainer",
        "pipeline_tuner",
        "preprocessing",
        "remote",
        "rewards",
        "serverless",
        "skypilot",
        "tasks",
        "tinker",
        "tinker_native",
        "tracking",
        "trajectories",
        "types",
        "utils",
    }
)

__all__ = [
    "Algorithm",
    "Backend",
    "History",
    "LoRAConfig",
    "LocalBackend",
    "LocalTrainResult",
    "Messages",
    "MessagesAndChoices",
    "Model",
    "RemoteBackend",
    "ServerlessBackend",
    "ServerlessTrainResult",
    "Tools",
    "TrainConfig",
    "TrainResult",
    "TrainSFTConfig",
    "TrainableModel",
    "Trajectory",
    "TrajectoryGroup",
    "Unscored",
    "auto_trajectory",
    "capture_auto_trajectory",
    "capture_yielded_trajectory",
    "current_trajectory",
    "dev",
    "export_model",
    "gather_trajectories",
    "gather_trajectory_groups",
    "no_capture",
    "overlapped",
    "retry",
    "rollout",
    "run",
    "tensorize",
    "tokenize",
    "train_environment",
    "trajectory",
    "trajectory_group",
    "trajectory_group_batches",
    "yield_trajectory",
]
if _finder.is_there(_HOME["PipelineRuntimeConfig"]):
    __all__ += ["PipelineRuntimeConfig"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("agent-reinforcement-trainer")
    if name in _ROOMS:
        return import_module(f"art.{name}")
    if (newer := _finder.newer_name(name)) is not None:
        return newer
    if name not in _HOME:
        raise AttributeError(f"module 'art' has no attribute {name!r}; it has {', '.join(sorted(_HOME))}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # the next access costs nothing
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS, "__version__", *(name for name in globals() if name.startswith("__"))})
