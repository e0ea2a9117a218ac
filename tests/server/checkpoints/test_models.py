"""Models are remembered, refuse to become something else, and have names that are no paths."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.engine.base_models import resolve_base
from art.errors import CheckpointError, ConfigurationError, NotFoundError, RequestError
from art.server.checkpoints.registered_models import RegisteredModels
from art.server.data_folder import DataLayout, check_name
from art.wire.models import RegisterRequest
from art.wire.training import LoraSpec


def request(**changes: object) -> RegisterRequest:
    return RegisterRequest(**{"project": "games", "name": "player", "base_model": "org/base", **changes})


def test_a_registration_survives_a_restart(tmp_path: Path) -> None:
    made = RegisteredModels(DataLayout(tmp_path)).register(request(seed=7), "org/base")
    again = RegisteredModels(DataLayout(tmp_path))
    assert again.list_models() == [made] and again.get("games", "player").seed == 7
    assert again.register(request(seed=7), "org/base") == made


@pytest.mark.parametrize(
    ("base", "lora", "param"),
    [("org/other", LoraSpec(), "base_model"), ("org/base", LoraSpec(r=4), "lora")],
)
def test_a_name_keeps_its_base_and_its_adapter(tmp_path: Path, base: str, lora: LoraSpec, param: str) -> None:
    models = RegisteredModels(DataLayout(tmp_path))
    models.register(request(), "org/base")
    with pytest.raises(RequestError, match=f"games/player was registered with {param}") as refused:
        models.register(request(lora=lora), base)
    assert refused.value.status == 409 and refused.value.param == param


def test_targets_that_are_not_chosen_again_stay(tmp_path: Path) -> None:
    models = RegisteredModels(DataLayout(tmp_path))
    made = models.register(request(lora=LoraSpec(targets=["q_proj"])), "org/base")
    assert models.register(request(), "org/base") == made
    with pytest.raises(RequestError, match="lora"):
        models.register(request(lora=LoraSpec(r=4)), "org/base")
    with pytest.raises(RequestError, match="lora"):
        models.register(request(lora=LoraSpec(targets=["v_proj"])), "org/base")


def test_an_unknown_model_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="games/player is not registered"):
        RegisteredModels(DataLayout(tmp_path)).get("games", "player")


def test_a_damaged_registration_is_named(tmp_path: Path) -> None:
    layout = DataLayout(tmp_path)
    RegisteredModels(layout).register(request(), "org/base")
    layout.registration_file("games", "player").write_text("{}")
    with pytest.raises(CheckpointError, match=r"registration\.json cannot be read"):
        RegisteredModels(layout)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a\\b", ".hidden", "a\n", "a b", "é", "x" * 101, "-a"]
)
def test_a_name_that_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match="is not a name") as refused:
        RegisteredModels(DataLayout(tmp_path)).register(request(name=name), "org/base")
    assert refused.value.status == 400
    assert list(tmp_path.iterdir()) == []


def test_the_servers_own_folder_is_no_project() -> None:
    with pytest.raises(RequestError, match="choose another name"):
        check_name("project", "server")


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_accepted_name_leaves_the_data_folder(project: str, name: str) -> None:
    root = Path("/data")
    try:
        folder = DataLayout(root).model_dir(project, name)
    except RequestError:
        return
    assert folder.resolve() == folder and folder.parents[2] == root


def test_one_base_model_has_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()
    assert resolve_base("base") == resolve_base("./base") == resolve_base(str(tmp_path / "base"))
    assert resolve_base("art/nano") == resolve_base("art/nano-games") != resolve_base("art/nano-tools")
    with pytest.raises(ConfigurationError, match="art/nano-games"):
        resolve_base("art/unknown")


def test_a_base_model_in_fewer_bits_is_another_one_of_the_same_weights() -> None:
    plain, small = resolve_base("art/nano"), resolve_base("art/nano#4bit")
    assert small.source == plain.source and (small.name, small.bits) == (f"{plain.name}#4bit", 4)
    assert small.aliases == ("art/nano#4bit",) and small.label != plain.label and plain.bits == 16
    assert resolve_base("Qwen/Qwen3-8B#8bit").source == "Qwen/Qwen3-8B"


def test_the_newest_registration_says_how_a_model_is_served(tmp_path: Path) -> None:
    models = RegisteredModels(DataLayout(tmp_path))
    made = models.register(
        request(max_context=64, chat_template_kwargs={"enable_thinking": False}), "org/base"
    )
    assert made.max_context == 64 and made.chat_template_kwargs == {"enable_thinking": False}
    again = models.register(request(max_context=32), "org/base")
    assert (again.max_context, again.chat_template_kwargs, again.lora) == (32, {}, made.lora)
    assert RegisteredModels(DataLayout(tmp_path)).list_models() == [again]
