"""An adapter at a provider: what is sent, what is refused, and that nobody waits for ever."""

from __future__ import annotations

import http.server
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import art
from art.errors import (
    CheckpointMissingError,
    ConfigurationError,
    DeploymentError,
    LoRADeploymentTimedOutError,
    UnsupportedBaseModelDeploymentError,
    UnsupportedLoRADeploymentProviderError,
)
from art.utils.deployment import (
    LoRADeploymentProvider,
    TogetherDeploymentConfig,
    WandbDeploymentConfig,
    deploy_model,
)
from art.utils.deployment.wandb import deploy_wandb
from waiting import DEADLINE_S, eventually

BASE = "Qwen/Qwen2.5-14B-Instruct"
KEY = "together-key"


class Together(http.server.ThreadingHTTPServer):
    """Answers as docs.together.ai describes; fetches the archive while the job is running."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Face)
        self.ends = "Complete"
        self.asked = 0
        self.body: dict = {}
        self.archive = b""
        self.keys: set[str | None] = set()
        threading.Thread(target=lambda: self.serve_forever(0.02), daemon=True).start()


class _Face(http.server.BaseHTTPRequestHandler):
    server: Together

    def do_POST(self) -> None:
        self.server.keys.add(self.headers["authorization"])
        self.server.body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path != "/v1/models":
            self.send_error(404)
            return
        self.server.archive = httpx.get(
            self.server.body["model_source"], trust_env=False, timeout=DEADLINE_S
        ).content
        name = f"me/{self.server.body['model_name']}"
        self._json({"data": {"job_id": "job-1", "model_name": name}, "message": "job created"})

    def do_GET(self) -> None:
        self.server.keys.add(self.headers["authorization"])
        assert self.path == "/v1/jobs/job-1"
        self.server.asked += 1
        status = self.server.ends if self.server.asked > 2 else "Running"
        updates = [{"message": "started"}, {"message": "the archive is empty"}]
        self._json({"job_id": "job-1", "status": status, "status_updates": updates})

    def _json(self, value: dict) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        return


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> Iterator[Together]:
    monkeypatch.setenv("TOGETHER_API_KEY", KEY)
    server = Together()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    yield
    server.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "games" / "models" / "agent" / "checkpoints" / "0007"
    folder.mkdir(parents=True)
    for name in ("adapter_model.safetensors", "adapter_config.json", "optimizer.safetensors", "job.json"):
        (folder / name).write_text(name)
    return folder


def model(base: str = BASE) -> art.TrainableModel:
    return art.TrainableModel(name="agent", project="games", base_model=base)


def settings(server: Together, **changes: object) -> TogetherDeploymentConfig:
    url = f"http://127.0.0.1:{server.server_port}/v1"
    return TogetherDeploymentConfig(s3_bucket="backups", base_url=url, poll_s=0.01, **changes)


@pytest.mark.slow
async def test_together_is_given_the_adapter_and_nothing_else(
    together: Together, s3: None, checkpoint: Path
) -> None:
    result = await deploy_model(model(), checkpoint, 7, "together", settings(together))
    assert result.inference_model_name == "me/games-agent-7" and together.asked == 3
    assert together.keys == {f"Bearer {KEY}"}
    assert together.body["model_type"] == "adapter" and together.body["base_model"] == BASE
    assert "zipped-steps/0007.zip" in together.body["model_source"]
    with zipfile.ZipFile(io.BytesIO(together.archive)) as archive:
        assert sorted(archive.namelist()) == ["adapter_config.json", "adapter_model.safetensors"]


@pytest.mark.slow
async def test_the_base_of_a_model_that_began_with_a_lora(
    together: Together, s3: None, checkpoint: Path, tmp_path: Path
) -> None:
    (checkpoint / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": BASE}))
    patient = settings(together, wait_for_completion=False)
    await deploy_model(model(str(tmp_path)), checkpoint, 7, "together", patient)
    assert together.body["base_model"] == BASE


@pytest.mark.slow
async def test_together_s_failure_is_an_error_with_its_reason(
    together: Together, s3: None, checkpoint: Path
) -> None:
    together.ends = "Failed"
    with pytest.raises(DeploymentError, match="the archive is empty"):
        await deploy_model(model(), checkpoint, 7, "together", settings(together))


@pytest.mark.slow
async def test_waiting_has_a_deadline_and_can_be_left_out(
    together: Together, s3: None, checkpoint: Path
) -> None:
    together.ends = "Running"
    with pytest.raises(LoRADeploymentTimedOutError, match=r"'Running' after 0\.1 s") as late:
        await deploy_model(model(), checkpoint, 7, "together", settings(together, wait_s=0.1))
    assert late.value.status_code == 504 and isinstance(late.value, TimeoutError)
    together.asked = 0
    patient = settings(together, wait_for_completion=False)
    assert (await deploy_model(model(), checkpoint, 7, "together", patient)).inference_model_name
    assert together.asked == 0


@pytest.mark.slow
async def test_the_older_name_gives_a_job(
    together: Together, s3: None, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOGETHER_BASE_URL", f"http://127.0.0.1:{together.server_port}/v1")
    backend = art.LocalBackend(path=tmp_path)
    job = await backend._experimental_deploy(
        LoRADeploymentProvider.TOGETHER,
        model(),
        s3_bucket="backups",
        pull_s3=False,
        wait_for_completion=False,
    )
    assert (job.job_id, job.model_name, job.failure_reason) == ("job-1", "me/games-agent-7", None)


async def test_what_no_provider_takes(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedLoRADeploymentProviderError, match="'heroku'; known: together, wandb"):
        await deploy_model(model(), checkpoint, 7, "heroku")
    with pytest.raises(
        UnsupportedBaseModelDeploymentError, match=r"'art/nano'; it does of: .*Qwen2\.5"
    ) as no:
        await deploy_model(model("art/nano"), checkpoint, 7, "together")
    assert no.value.status_code == 400
    with pytest.raises(ConfigurationError, match="needs config=TogetherDeploymentConfig"):
        await deploy_model(model(), checkpoint, 7, LoRADeploymentProvider.TOGETHER)
    monkeypatch.delenv("TOGETHER_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="TOGETHER_API_KEY"):
        await deploy_model(model(), checkpoint, 7, "together", TogetherDeploymentConfig())
    (checkpoint / "adapter_config.json").unlink()
    with pytest.raises(CheckpointMissingError, match="only adapters are deployed"):
        await deploy_model(model(), checkpoint, 7, "wandb", WandbDeploymentConfig())


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_wandb")
async def test_wandb_gets_an_artifact(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real client, offline: as far as that goes, the artifact is written into the run's own file."""
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "wandb"))
    monkeypatch.setenv("WANDB_SILENT", "true")
    (tmp_path / "wandb").mkdir()
    config = WandbDeploymentConfig(provenance=["sft", "rl"])
    result = await deploy_model(model(), checkpoint, 7, "wandb", config)
    assert result.inference_model_name == "wandb-artifact:///offline/games/agent:step7"
    assert deploy_wandb(model(), checkpoint, 7) == result.inference_model_name
    wandb.teardown()  # what its own process still holds is written
    written, again = (tmp_path / "wandb").rglob("*.wandb")
    eventually(lambda: b"step7" in written.read_bytes() and b"step7" in again.read_bytes())
    record = max(written.read_bytes(), again.read_bytes(), key=lambda record: b"provenance" in record)
    for word in (b"step7", b"wandb.base_model", b"lora", b"adapter_model.safetensors", b"provenance"):
        assert word in record, word


@pytest.mark.slow
async def test_wandb_without_awaiting(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs call it in the middle of a coroutine."""
    with pytest.raises(UnsupportedBaseModelDeploymentError, match="wandb serves no adapters of 'art/nano'"):
        deploy_wandb(model("art/nano"), checkpoint, 7, verbose=True)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="WANDB_API_KEY"):
        deploy_wandb(model(), checkpoint, 7)
    (checkpoint / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointMissingError, match="only adapters are deployed"):
        deploy_wandb(model(), checkpoint, 7)


async def test_wandb_needs_its_key(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from art_extensions.publish.deployment_providers import WeightsAndBiases

    with pytest.raises(ConfigurationError, match="takes a WandbDeploymentConfig"):
        WeightsAndBiases().configured(TogetherDeploymentConfig())
