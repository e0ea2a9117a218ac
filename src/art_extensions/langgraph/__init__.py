"""LangGraph agents as rollouts: a chat model that follows the rollout, and a rollout around a graph.

    from art_extensions.langgraph import init_chat_model, wrap_rollout

    graph = create_react_agent(init_chat_model(), tools)      # compiled once
    rollout = wrap_rollout(model, play)                       # `play` invokes the graph, returns a Trajectory
    group = await art.TrajectoryGroup(rollout(scenario) for _ in range(8))

Needs the extra `langgraph`; importing this package does not load it.
"""

from __future__ import annotations

from art_extensions.langgraph.chat_model_factory import init_chat_model
from art_extensions.langgraph.graph_rollout import wrap_rollout

__all__ = ["init_chat_model", "wrap_rollout"]
