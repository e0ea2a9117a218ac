"""LangGraph agents as rollouts: the names, without code behind them yet."""

from __future__ import annotations

from typing import Any

from art.unbuilt import Unbuilt

INSTEAD = (
    "give LangGraph's chat model `model.inference_base_url`, `model.inference_api_key` and "
    "`model.get_inference_name()`, run the graph inside `art.capture_auto_trajectory`, and the calls "
    "become a trajectory"
)

wrap_rollout: Any = Unbuilt("art.langgraph.wrap_rollout", INSTEAD)
init_chat_model: Any = Unbuilt("art.langgraph.init_chat_model", INSTEAD)

__all__ = ["init_chat_model", "wrap_rollout"]
