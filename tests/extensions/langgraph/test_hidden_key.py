"""The endpoint of a graph does not show its key."""

from __future__ import annotations

from test_keys_stay_hidden import KEY, URL, shown

from art_extensions.langgraph.graph_rollout import ChatEndpoint


def test_the_endpoint_of_a_graph_does_not_show_its_key() -> None:
    for way, text in shown(ChatEndpoint(base_url=URL, api_key=KEY, model="m")).items():
        assert KEY not in text, (way, text)
