"""A key is never shown: no `repr`, no notebook's cell, no dump that is printed, no file, no error has it."""

from __future__ import annotations

import copy
import json
import logging
import pprint
from typing import Any

import pytest
from pydantic import BaseModel

import art
from art import rewards
from art.client.requests.registration import ServerConfig, server_config
from art.client.rollout import rollout
from art.errors import ARTError
from art.rewards import Ruler
from art.rewards.llm import resolve_llm
from art.rewards.llm.own_model import OwnModelLlm
from art.rewards.llm.params import read_params
from art.tracking.model_files import write_model_file
from art.wire.nested import HiddenKey, without_keys
from art.wire.rollouts import RolloutScope
from art_extensions.testing import LlmServer

KEY = "sk-secret-123-of-a-user"
URL = "http://127.0.0.1:9/v1"


def prompted(**fields: Any) -> art.Model:
    return art.Model(
        name="gpt",
        project="p",
        inference_api_key=KEY,
        inference_base_url=URL,
        inference_model_name="gpt-4.1",
        report_metrics=[],
        **fields,
    )


def trainable() -> art.TrainableModel:
    """As `register` leaves it."""
    config = {"init_args": {"token": KEY}, "engine_args": {"hf_token": KEY}}
    model = art.TrainableModel(name="agent", project="p", base_model="art/nano", _internal_config=config)
    model.inference_api_key, model.inference_base_url = KEY, URL
    model._openai_client_config = {"server_args": {"api_key": KEY}}
    model._backend = art.RemoteBackend(URL, KEY)
    return model


class Own(art.Model):
    """A program's own kind of model."""

    temperature: float = 1.0


def scope() -> RolloutScope:
    return RolloutScope(rollout_id="r", path="/r/r", api_key=KEY, model="m", expires_at=0.0)


def open_rollout() -> rollout:
    opened = rollout(trainable())
    opened._scope = scope()
    return opened


def own(model: art.Model) -> art.Model:
    return Own(**{**model.model_dump(), "temperature": 0.5})


HOLDERS: dict[str, Any] = {
    "Model": prompted,
    "a model of a program's own": lambda: own(prompted()),
    "a copy": lambda: prompted().model_copy(deep=True),
    "TrainableModel": trainable,
    "its client": lambda: prompted().openai_client(),
    "litellm's keywords": lambda: prompted().litellm_completion_params(),
    "RemoteBackend": lambda: art.RemoteBackend(URL, KEY),
    "its connection": lambda: art.RemoteBackend(URL, KEY)._connection,
    "ServerlessBackend": lambda: art.ServerlessBackend(api_key=KEY, base_url="http://127.0.0.1:9"),
    "LocalBackend's server": lambda: server_config({"server_args": {"api_key": KEY}}),
    "ServerConfig": lambda: ServerConfig(api_key=KEY),
    "rollout": open_rollout,
    "rollout.env()": lambda: open_rollout().env(),
    "rollout.api_key": lambda: open_rollout().api_key,
    "its reply": scope,
    "a judge": lambda: resolve_llm("openai/gpt-4.1", base_url=URL, api_key=KEY),
    "a judge's options": lambda: read_params({"api_key": KEY, "extra_headers": {"x-key": KEY}}),
    "a model that judges": lambda: OwnModelLlm(prompted(), read_params(None)),
    "Ruler": lambda: Ruler("openai/gpt-4.1", base_url=URL, api_key=KEY),
    "Rubric": lambda: rewards.Rubric(
        [rewards.Criterion("polite", "It is polite.")],
        judge_model="openai/gpt-4.1",
        base_url=URL,
        api_key=KEY,
    ),
    "Pairwise": lambda: rewards.Pairwise("openai/gpt-4.1", base_url=URL, api_key=KEY),
}
OF_EXTENSIONS = {"Rubric", "Pairwise"}


def shown(value: Any) -> dict[str, str]:
    """Every way in which a value is shown without being asked for: at a prompt, in a notebook, in a log."""
    record = logging.LogRecord("x", logging.INFO, "x.py", 1, "%r of %s", ([value], {"it": value}), None)
    ways = {
        "repr": repr(value),
        "in a list": repr([value]),
        "pprint": pprint.pformat(value),
        "log": record.getMessage(),
    }
    if not isinstance(value, str):
        ways |= {"str": str(value), "format": f"{value}"}
    for name in ("_repr_html_", "_repr_pretty_", "_repr_mimebundle_", "__rich_repr__", "__pretty__"):
        if (way := getattr(value, name, None)) is not None:
            told = way(lambda part: part) if name == "__pretty__" else way()
            ways[name] = repr(told if isinstance(told, str) else list(told))
    return ways


@pytest.mark.parametrize(
    "holder",
    [pytest.param(one, marks=[pytest.mark.extension] * (one in OF_EXTENSIONS)) for one in HOLDERS],
)
def test_nothing_that_holds_a_key_shows_it(holder: str) -> None:
    value = HOLDERS[holder]()
    for way, text in shown(value).items():
        assert KEY not in text, (way, text)


def test_the_watch_sees_a_key_that_is_shown() -> None:
    class Holder(BaseModel):
        key: str = KEY

    assert all(KEY in text for text in shown(Holder()).values()) and KEY in shown({"a": KEY})["repr"]


def test_a_key_stays_a_plain_string_for_programs() -> None:
    model = prompted()
    assert type(model.inference_api_key) is str and model.inference_api_key == KEY
    assert "inference_api_key='***'" in repr(model) and "***" not in repr(art.Model(name="a", project="p"))
    assert model.openai_client().api_key == KEY
    assert model.litellm_completion_params()["api_key"] == KEY
    assert art.Model(**model.model_dump()) == model == copy.deepcopy(model)
    assert model.model_dump(include={"inference_api_key"}) == {"inference_api_key": KEY}
    opened = open_rollout()
    assert opened.api_key == KEY and f"Bearer {opened.api_key}" == f"Bearer {KEY}"
    assert json.dumps(opened.env()["OPENAI_API_KEY"]) == f'"{KEY}"'


def test_dumps_are_printed_and_saved_without_it() -> None:
    class Program(BaseModel):
        model: art.Model

    for model in (prompted(), trainable()):
        inner = Program(model=model)
        assert KEY not in model.model_dump_json() + json.dumps(model.model_dump(mode="json"))
        assert KEY not in str(inner.model_dump()) + inner.model_dump_json() + repr(inner)
        assert KEY not in str(model.model_dump()) + str(model.safe_model_dump())
    assert trainable().model_dump()["_internal_config"] == trainable()._internal_config


async def test_files_of_a_model_are_without_it(tmp_path: Any) -> None:
    for model in (prompted(base_path=str(tmp_path)), trainable()):
        model.base_path = str(tmp_path)
        write_model_file(model)
        model.merge_state({"model": model.model_dump(), "mine": [1]})
        await model.log(metrics={"acc": 1.0}, step=0)
        assert model.read_state()["mine"] == [1] and model.read_state()["model"]["name"] == model.name
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"model.json", "state.json", "history.jsonl"} <= {path.name for path in files}
    assert not [path for path in files if KEY in path.read_text()]


def test_the_config_of_a_wandb_run_is_without_it() -> None:
    model = prompted()
    model.update_wandb_config({"model": model.model_dump(), "judge": {"api_key": KEY, "top_k": 3}})
    config = str(model._run_log.config.values)
    assert KEY not in config and "'top_k': 3" in config


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: art.Model(name="a", project="p", inference_api_key=[KEY]),
        lambda: art.Model(name=1, project="p", inference_api_key=KEY),
        lambda: Ruler("openai/gpt-4.1", base_url=URL, api_kye=KEY),
        lambda: resolve_llm("openai/gpt-4.1", base_url=URL, params={"api_kye": KEY}),
        lambda: resolve_llm("openai/gpt-4.1", base_url=URL, api_key=KEY, params={"api_key": KEY + "2"}),
        lambda: server_config({"server_args": {"api_kye": KEY}}),
        lambda: server_config({"server_args": {"api_key": KEY + " "}}),
        lambda: server_config({"server_args": {"api_key": KEY, "port": "x"}}),
        lambda: art.ServerlessBackend(api_key=KEY, base_url="https://api.training.wandb.ai/v1"),
    ],
)
def test_errors_do_not_show_it(wrong: Any) -> None:
    with pytest.raises((ARTError, ValueError)) as caught:
        wrong()
    assert KEY not in str(caught.value) + repr(caught.value)


async def test_a_refused_key_is_not_in_the_error_of_the_call(caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    with LlmServer(lambda body: "hi") as server:
        model = prompted()
        model.inference_base_url = server.base_url
        with pytest.raises(Exception, match="401") as caught:
            await model.openai_client().chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}]
            )
    assert KEY not in repr(caught.value) + str(caught.value) + caplog.text


def test_what_is_written_has_no_keys() -> None:
    assert without_keys({"a": [HiddenKey(KEY)], "token": 7}) == {"a": [None], "token": 7}
