"""Images that environments of the real libraries show, looked at on the wire to the model."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import art
from art.environments.adapters.registry import find_environment
from art.errors import EnvironmentFailedError
from art_extensions.environments import observed_images
from art_extensions.environments.observed_images import image_address
from art_extensions.testing import LlmServer
from library_programs import needs, told_by
from openenv_server import openenv_server

LIBRARIES, VERIFIERS, OPENENV = ".venv-environments", ".venv-verifiers", ".venv-openenv"
RED = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLv"
    "AAAAAElFTkSuQmCC"
)
SHOWN = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": RED}}]
PIXELS = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
Bodies = dict[str, list[Mapping[str, Any]]]


def played(place: str, cases: Mapping[str, Sequence[Any]]) -> tuple[dict[str, Any], Bodies]:
    """Returns what the rollouts of these cases gave, and the requests of each to the model."""
    bodies: Bodies = {case: [] for case in cases}

    def answer(body: Mapping[str, Any]) -> str:
        bodies[body["model"]].append(body)
        return "a door"

    with LlmServer(answer) as server:
        return told_by(place, "image_rollouts.py", server.base_url, server.key, json.dumps(cases)), bodies


def pixels_of(address: str) -> np.ndarray:
    from PIL import Image

    kind, _, data = address.partition(";base64,")
    assert kind == "data:image/png"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def images_of(message: Mapping[str, Any]) -> list[str]:
    return [one["image_url"]["url"] for one in message["content"] if one["type"] == "image_url"]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], Bodies]]:
    rows = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    lines = [
        {"prompt": [{"role": "user", "content": SHOWN}], "reward_spec": {"ground_truth": str(number)}}
        for number in range(2)
    ]
    rows.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    tasks = Path(__file__).parent / "programs" / "inspect_tasks.py"
    world = "gymnasium:pictured_world:Picture-v0"
    yield played(
        LIBRARIES,
        {
            "gymnasium": [world, {}],
            "worded": [world, {"worded": True}],
            "skyrl": ["skyrl-gym:gsm8k", {"data": str(rows)}],
            "inspect": [f"inspect:{tasks}@look", {"image": RED}],
        },
    )


@needs(LIBRARIES)
@pytest.mark.slow
def test_gymnasium_s_arrays_of_pixels_are_images_of_the_request(told: tuple[dict[str, Any], Bodies]) -> None:
    found, bodies = told
    assert found["gymnasium"]["reward"] == found["worded"]["reward"] == 2.0
    first, second = bodies["gymnasium"]
    (address,) = images_of(first["messages"][0])
    assert (pixels_of(address) == PIXELS).all()
    (later,) = images_of(second["messages"][2])
    assert (pixels_of(later) == PIXELS + 100).all() and second["messages"][0] == first["messages"][0]
    assert len(found["gymnasium"]["show"]) < 500, "it says that there is an image"
    words = [body["messages"][-1]["content"][0] for body in bodies["worded"]]
    assert words == [{"type": "text", "text": f"Turn {turn}"} for turn in range(2)]
    assert len(images_of(bodies["worded"][0]["messages"][0])) == 1


@needs(LIBRARIES)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["skyrl", "inspect"])
def test_images_in_the_messages_of_a_library_are_those_of_the_request(
    told: tuple[dict[str, Any], Bodies], name: str
) -> None:
    found, bodies = told
    (body,) = bodies[name][:1]
    (asked,) = (one for one in body["messages"] if one["role"] == "user")
    assert images_of(asked) == [RED] and asked["content"][0]["text"] == "What is this?"
    assert images_of(found[name]["messages"][0]) == [RED]


@needs(VERIFIERS)
@pytest.mark.slow
def test_images_in_rows_of_verifiers_are_those_of_the_request() -> None:
    found, bodies = played(VERIFIERS, {"verifiers": ["verifiers:pictured_hub", {"image": RED}]})
    (body,) = bodies["verifiers"]
    assert images_of(body["messages"][0]) == [RED] and found["verifiers"]["reward"] == 1.0


@needs(OPENENV)
@pytest.mark.slow
def test_a_field_of_openenv_is_an_image() -> None:
    with openenv_server() as worlds:
        name = f"openenv:{worlds}/pictured"
        found, bodies = played(
            OPENENV,
            {
                "field": [name, {"image": "pixels"}],
                "plain": [name, {}],
                "wrong": [name, {"image": "hint"}],
            },
        )
    first, second = bodies["field"][:2]
    assert first["messages"][0]["content"][0]["text"] == "Guess a number from 0 to 9."
    for turn, body in enumerate((first, second)):
        (address,) = images_of(body["messages"][-1])
        assert pixels_of(address).tolist() == [[[255, 0, 0], [0, 0, turn]]] * 2
    assert "pixels: [[[255, 0, 0]" in bodies["plain"][0]["messages"][0]["content"]
    assert "EnvironmentFailedError" in found["wrong"] and "is no image: a text of 27" in found["wrong"]


class Picture:
    """A world of a user that shows a picture."""

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        return PIXELS, {}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return PIXELS, 1.0, True, False, {}


@pytest.mark.slow
async def test_a_model_that_sees_no_images_costs_the_rollouts_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    environment = find_environment("gymnasium:test_observed_images:Picture")
    model = art.TrainableModel(name="blind", project="images", base_model="art/nano-games")
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        (scenario, *_) = environment.scenarios("train")
        (group,) = await art.gather_trajectory_groups(
            [art.TrajectoryGroup(environment.rollout(model, scenario) for _ in range(2))],
            pbar_desc=None,
            max_exceptions=2,
        )
    assert len(group.exceptions) == 2 and not group.trajectories
    for one in group.exceptions:
        assert "BadRequestError" in one.type
        assert "messages hold an image, and this model takes text only" in one.message


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (PIXELS.astype(np.float32), r"an array \(2, 3, 3\) of float32"),
        (np.zeros((2, 3, 2), np.uint8), r"an array \(2, 3, 2\) of uint8"),
        (np.zeros((0, 3, 3), np.uint8), r"an array \(0, 3, 3\)"),
        (np.zeros(4, np.uint8), r"an array \(4,\)"),
        ([[[0, 1, 300]]], "list"),
        ([[[0, 1, 2]], [[0, 1, 2]] * 2], "list"),
        ([[[0, 1, 2], "red"]], "list"),
        ([], "list"),
        (None, "NoneType"),
        ("a door", "a text of 6 characters, 'a door'"),
        ("file:///etc/passwd", "a text of 18 characters"),
    ],
)
def test_what_is_no_image_fails_its_rollout(value: Any, words: str) -> None:
    with pytest.raises(EnvironmentFailedError, match=f"'e': the observation is no image: {words}.*Give"):
        image_address("e", value)


def test_images_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed_images, "MOST_BYTES", 100)
    assert image_address("e", PIXELS)
    for value in (np.zeros((6, 6, 3), np.uint8), "iVBORw0K" * 20):
        with pytest.raises(EnvironmentFailedError, match="no image"):
            image_address("e", value)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1), (2, 3, 3), (2, 3, 4)])
def test_pixels_are_those_of_the_png(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    for given in (pixels, pixels.tolist()):
        assert (
            pixels_of(image_address("e", given)) == pixels.reshape(shape if shape[-1] != 1 else (2, 3))
        ).all()
    assert image_address("e", "/9j/abc") == "data:image/jpeg;base64,/9j/abc"
    assert image_address("e", "https://e.org/a.png") == "https://e.org/a.png"
