"""ART teaches a language model to act by letting it act.

    model = art.TrainableModel(name="agent", project="games", base_model="art/nano")
    await model.register(art.LocalBackend())
    groups = [art.TrajectoryGroup(rollout(model) for _ in range(8)) for _ in range(4)]
    groups = await art.gather_trajectory_groups(groups)
    await model.train(groups, config=art.TrainConfig(learning_rate=1e-4))

Importing this package loads nothing: each name below is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from art.compat import finder as _finder

if TYPE_CHECKING:
    from art import dev as dev
    from art.backend import Backend as Backend
    from art.batches import trajectory_group_batches as trajectory_group_batches
    from art.capture.auto import auto_trajectory as auto_trajectory
    from art.capture.auto import capture_auto_trajectory as capture_auto_trajectory
    from art.capture.yielded import capture_yielded_trajectory as capture_yielded_trajectory
    from art.capture.yielded import yield_trajectory as yield_trajectory
    from art.gather import gather_trajectories as gather_trajectories
    from art.gather import gather_trajectory_groups as gather_trajectory_groups
    from art.local.backend import LocalBackend as LocalBackend
    from art.messages import Messages as Messages
    from art.messages import MessagesAndChoices as MessagesAndChoices
    from art.messages import Tools as Tools
    from art.model import Model as Model
    from art.model import TrainableModel as TrainableModel
    from art.overlap import overlapped as overlapped
    from art.remote.backend import RemoteBackend as RemoteBackend
    from art.remote.rollout_scope import rollout as rollout
    from art.retrying import retry as retry
    from art.serverless.backend import ServerlessBackend as ServerlessBackend
    from art.trajectories import History as History
    from art.trajectories import Trajectory as Trajectory
    from art.trajectories import TrajectoryGroup as TrajectoryGroup
    from art.types import LocalTrainResult as LocalTrainResult
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
    "LocalBackend": "art.local.backend",
    "LocalTrainResult": "art.types",
    "Messages": "art.messages",
    "MessagesAndChoices": "art.messages",
    "Model": "art.model",
    "RemoteBackend": "art.remote.backend",
    "ServerlessBackend": "art.serverless.backend",
    "ServerlessTrainResult": "art.types",
    "Tools": "art.messages",
    "TrainConfig": "art.types",
    "TrainResult": "art.types",
    "TrainSFTConfig": "art.types",
    "TrainableModel": "art.model",
    "Trajectory": "art.trajectories",
    "TrajectoryGroup": "art.trajectories",
    "Unscored": "art.types",
    "auto_trajectory": "art.capture.auto",
    "capture_auto_trajectory": "art.capture.auto",
    "capture_yielded_trajectory": "art.capture.yielded",
    "gather_trajectories": "art.gather",
    "gather_trajectory_groups": "art.gather",
    "overlapped": "art.overlap",
    "retry": "art.retrying",
    "rollout": "art.remote.rollout_scope",
    "trajectory_group_batches": "art.batches",
    "yield_trajectory": "art.capture.yielded",
}
_ROOMS = frozenset(
    {
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
    "dev",
    "gather_trajectories",
    "gather_trajectory_groups",
    "overlapped",
    "retry",
    "rollout",
    "trajectory_group_batches",
    "yield_trajectory",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("agent-reinforcement-trainer")
    if name in _ROOMS:
        return import_module(f"art.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'art' has no attribute {name!r}; it has {', '.join(sorted(_HOME))}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # the next access costs nothing
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS, "__version__", *(name for name in globals() if name.startswith("__"))})
