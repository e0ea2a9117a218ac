"""Tasksets of verifiers 0.4 with several agents: each agent is a role, and has a model of its own.

    art policies --environment verifiers:NAME --policy solver=art/nano-games --policy critic=art/nano-games

An episode is verifiers' own: the taskset's environment plays its agents on a task. The completions of an
agent are those of an `art.rollout` of its model, and its trace's reward is the reward of the role.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from art.environments.adapters.environment import Scenario
from art.errors import ConfigurationError
from art_extensions.environments.verifiers_tasksets import TasksetEnvironment, key_set, sampling_of

if TYPE_CHECKING:
    from art.model import Model
    from art.trajectories import Trajectory


class TasksetAgents(TasksetEnvironment):
    """A taskset whose environment has several agents, as an environment with roles.

    The options are those of `TasksetEnvironment`, and hold for each agent. Without `harness`, each agent has
    the one that the taskset's environment gives it. The deadline is that of an episode.
    """

    def _check_agents(self, kind: type, roles: Sequence[str]) -> None:
        """Raises ConfigurationError for a taskset with a single agent."""
        if len(roles) == 1:
            raise ConfigurationError(
                f"environment {self.name!r} has one agent: `art train --environment {self.name}` trains it"
            )

    def _check_settings(self, name: str) -> None:
        """Finds the roles. Raises: ConfigurationError for options that verifiers refuses."""
        self.roles = tuple(self._seats(name))
        self._check_runtime(self._make_environment({role: {} for role in self.roles}))

    async def play(
        self,
        policies: Mapping[str, Model[Any, Any]],
        scenario: Scenario,
        *,
        seed: int | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
    ) -> Mapping[str, Trajectory]:
        """Plays a task; see `RolesEnvironment.play`. Each request has the same seed.

        Raises: ConfigurationError for a model without a server of ours, EnvironmentFailedError where the
        episode fails, or where an agent did not run once.
        """
        from art.client.rollout import rollout

        sampling, timeout = sampling_of(seed, temperature, max_tokens), {"rollout": self._deadline_s}
        scopes: dict[str, Any] = {}
        agents: dict[str, dict[str, Any]] = {}
        async with AsyncExitStack() as stack:
            for role, model in policies.items():
                if not model.trainable:
                    raise ConfigurationError(
                        f"environment {self.name!r}: the completions of {role!r} are kept by ART's server: "
                        "use a registered art.TrainableModel, frozen without a step if it is not trained"
                    )
                scope = await stack.enter_async_context(rollout(model))  # type: ignore[arg-type]
                key = stack.enter_context(key_set(scope))
                client = self._library.EvalClientConfig(base_url=scope.base_url, api_key_var=key)
                asked = {"model": scope.model_name, "client": client, "sampling": sampling}
                scopes[role], agents[role] = scope, {**asked, "timeout": timeout}
            task = self._tasks[str(scenario.data["task"])]
            episode = await self._run(self._episode(self._make_environment(agents), task))
        return {
            role: self._finish(scopes[role].trajectory, scenario, self._trace(episode, role))
            for role in scopes
        }

    async def _episode(self, environment: Any, task: Any) -> Any:
        """Plays a task with agents that have all they need: the run's own model is never asked."""
        from verifiers.v1.clients import ModelContext

        unused = ModelContext(model="none", client=self._library.EvalClientConfig())
        async with environment.serving():
            return await environment.run_episode(task, unused)

    def _trace(self, episode: Any, role: str) -> Any:
        traces = [one for one in episode.traces if one.agent.name == role and not episode.errors]
        return self._only_trace(traces, episode.errors, f"agent {role!r}")
