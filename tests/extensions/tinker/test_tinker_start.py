"""What a program finds as soon as `art tinker` has printed its variables."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from tinker_service import serving

BASE = "art/nano-words"


@pytest.mark.slow
def test_the_base_models_of_the_start_are_there_when_the_variables_are_printed(tmp_path: Path) -> None:
    with serving(tmp_path, "--base-model", BASE) as service:
        address = f"{service.variables['TINKER_BASE_URL']}/api/v1/get_server_capabilities"
        reply = httpx.get(address, headers={"x-api-key": service.variables["TINKER_API_KEY"]})
    (model,) = reply.raise_for_status().json()["supported_models"]
    assert model["model_name"] == BASE and model["max_context_length"] > 100
