"""One server in this process with the operator and some tenants, who all use the same names."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from scripted_engine import Script, ScriptedEngine

from art.engine.protocol import GenerateRequest
from art.rendering.library import LibraryRenderer
from art.server.app import App
from art.server.catalog import Catalog
from art.server.checkpoints.checkpoints import JobNote
from art.server.control import Control
from art.server.ledger.ledger import Ledger
from art.server.ledger.stitching import Stitcher
from art.server.routes.control_routes import control_routes
from art.server.settings import LimitSettings
from art.server.tenancy import internal_name
from art.server.tenants import TENANTS_FILE, TenantKeys, Tenants
from art.server.workers.supervisor import WorkerOptions
from art.wire.algorithm import Algorithm
from art.wire.jobs import BalanceSheet, TrainJobRequest, TrainResultInfo
from art.wire.models import RegisterRequest
from art.wire.training import LoraSpec, OptimizerSpec

OPERATOR = "the-operators-own-key"


def secret_of(who: str) -> str:
    """A word that only this one's engine adapter, prompts and files hold."""
    return f"{who}swordofpower"


@dataclass(kw_only=True)
class World:
    """The server's insides, and a client for each who may ask."""

    app: App
    control: Control
    ledger: Ledger
    catalog: Catalog
    tenants: Tenants
    engine: ScriptedEngine
    clients: dict[str, httpx.AsyncClient]

    def client(self, key: str) -> httpx.AsyncClient:
        """Somebody with this key."""
        transport = httpx.ASGITransport(self.app)
        return httpx.AsyncClient(
            transport=transport, base_url="http://art", headers={"authorization": f"Bearer {key}"}
        )


@contextlib.asynccontextmanager
async def run_world(
    folder: Path,
    renderer: LibraryRenderer,
    who: Sequence[str] = ("alice", "bob"),
    limits: LimitSettings | None = None,
) -> AsyncIterator[World]:
    """`operator` and each of `who` own `games/player` at step 3, a checkpoint and a finished job `j`."""

    def answer(request: GenerateRequest) -> Script:
        owner = (request.adapter or "").partition("~")[0] if "~" in (request.adapter or "") else "operator"
        text = secret_of(owner) if request.adapter else "base"
        return Script(ids=renderer.encode(f"{text}<|im_end|>"))

    engine, catalog, ledger = ScriptedEngine(answer), Catalog(), Ledger(folder / "server" / "ledger.sqlite")
    catalog.add_base("tiny", engine, renderer, max_context=4096)
    catalog.add_base("idle", engine, renderer, max_context=4096)
    stitcher = Stitcher(ledger, max_tokens=1_000_000, ledger_is_empty=True)
    options = WorkerOptions(engine_options={}, trainer_options={})
    control = Control(data_dir=folder, catalog=catalog, ledger=ledger, options=options)
    tenants = Tenants(folder / "server" / TENANTS_FILE)
    keys = {"operator": OPERATOR, **{name: tenants.create(name) for name in who}}
    for name in keys:
        await _give_model(control, engine, None if name == "operator" else name)
    app = App(
        key=OPERATOR,
        catalog=catalog,
        ledger=ledger,
        stitcher=stitcher,
        limits=limits or LimitSettings(),
        tenants=TenantKeys(tenants.path),
        control_routes=control_routes(control),
        control_health=lambda: {"workers": {}},
        control_counts=control.counts,
    )
    world = World(
        app=app,
        control=control,
        ledger=ledger,
        catalog=catalog,
        tenants=tenants,
        engine=engine,
        clients={},
    )
    async with contextlib.AsyncExitStack() as rooms:
        for name, key in keys.items():
            world.clients[name] = await rooms.enter_async_context(world.client(key))
        rooms.push_async_callback(ledger.close)
        rooms.push_async_callback(control.close)
        yield world


async def _give_model(control: Control, engine: ScriptedEngine, tenant: str | None) -> None:
    project, secret = internal_name(tenant, "games"), secret_of(tenant or "operator")
    request = RegisterRequest(project=project, name="player", base_model="tiny", lora=LoraSpec())
    checkpoints = control.models.checkpoints(control.models.register(request, "tiny"))
    saving = checkpoints.fresh_folder(3)
    saving.mkdir()
    (saving / "adapter_model.safetensors").write_bytes(secret.encode())
    (saving / "manifest.json").write_text(json.dumps({"files": {}}))
    result = TrainResultInfo(
        step=3, metrics={}, sheet=BalanceSheet(), checkpoint_path=str(checkpoints.path(3))
    )
    checkpoints.commit(3, JobNote(job_id=internal_name(tenant, "j"), result=result))
    adapter = f"{project}/player@3"
    engine.adapters.add(adapter)
    control.catalog.publish(project, "player", "tiny", 3, adapter)
    job = TrainJobRequest(
        job_id=internal_name(tenant, "j"),
        groups=[],
        algorithm=Algorithm(),
        optimizer=OptimizerSpec(learning_rate=1.0),
    )
    store = control.jobs.store
    await store.submit(project, "player", job)
    await store.finish(job.job_id, result)
