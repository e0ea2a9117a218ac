"""Checks of the methods of RestClient."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import tinker
from method_calls import BASE, RANK, Clients, both, checks, same
from tinker import types


@checks("RestClient.get_server_capabilities")
def capabilities(clients: Clients) -> str:
    names = [one.model_name for one in clients.rest.get_server_capabilities().result().supported_models]
    assert BASE in names, names
    return "the base models that are loaded, with their context"


@checks("RestClient.get_training_run", "RestClient.get_training_run_async")
def training_run(clients: Clients) -> str:
    for found in both(clients.rest, "get_training_run", clients.training.model_id):
        same([found.training_run_id, found.base_model], [clients.training.model_id, BASE])
        same([found.is_lora, found.lora_rank, found.corrupted], [True, RANK, False])
    return "with its newest checkpoints"


@checks("RestClient.get_training_run_by_tinker_path", "RestClient.get_training_run_by_tinker_path_async")
def run_by_path(clients: Clients) -> str:
    path = clients.saved("by-path")
    for found in both(clients.rest, "get_training_run_by_tinker_path", path):
        same(found.training_run_id, clients.training.model_id)
        same(found.last_checkpoint.tinker_path, path)
    return "the run"


@checks("RestClient.get_weights_info_by_tinker_path")
def weights_info(clients: Clients) -> str:
    found = clients.rest.get_weights_info_by_tinker_path(clients.saved("info")).result()
    same([found.base_model, found.is_lora, found.lora_rank], [BASE, True, RANK])
    return "base model and rank"


@checks("RestClient.list_training_runs", "RestClient.list_training_runs_async")
def runs(clients: Clients) -> str:
    found, again = both(clients.rest, "list_training_runs", limit=100)
    names = [one.training_run_id for one in found.training_runs]
    same([one.training_run_id for one in again.training_runs], names)
    same(len(names), found.cursor.total_count)
    page = clients.rest.list_training_runs(limit=2, offset=1).result()
    same([one.training_run_id for one in page.training_runs], names[1:3])
    same([page.cursor.offset, page.cursor.limit, page.cursor.total_count], [1, 2, len(names)])
    inside = clients.rest.list_training_runs(limit=100, project_id="methods").result().training_runs
    assert clients.training.model_id in [one.training_run_id for one in inside]
    same(clients.rest.list_training_runs(project_id="another").result().training_runs, [])
    return "newest first, with limit, offset and project"


@checks("RestClient.list_checkpoints", "RestClient.list_checkpoints_async")
def checkpoints(clients: Clients) -> str:
    path = clients.saved("listed")
    for found in both(clients.rest, "list_checkpoints", clients.training.model_id):
        (one,) = [one for one in found.checkpoints if one.tinker_path == path]
        same([one.checkpoint_id, one.checkpoint_type, one.public], ["weights/listed", "training", False])
        same(one.expires_at, None)
    return "of a run"


@checks("RestClient.list_user_checkpoints", "RestClient.list_user_checkpoints_async")
def user_checkpoints(clients: Clients) -> str:
    newest = clients.saved("newest")
    found, again = both(clients.rest, "list_user_checkpoints", limit=3)
    same([one.tinker_path for one in found.checkpoints], [one.tinker_path for one in again.checkpoints])
    same([found.checkpoints[0].tinker_path, len(found.checkpoints)], [newest, 3])
    second = clients.rest.list_user_checkpoints(limit=1, offset=1).result()
    same(second.checkpoints[0].tinker_path, found.checkpoints[1].tinker_path)
    return "of all runs, newest first, with limit and offset"


@checks(
    "RestClient.delete_checkpoint",
    "RestClient.delete_checkpoint_async",
    "RestClient.delete_checkpoint_from_tinker_path",
    "RestClient.delete_checkpoint_from_tinker_path_async",
)
def delete(clients: Clients) -> str:
    run_id, rest = clients.training.model_id, clients.rest
    for at in range(4):
        path = clients.saved(f"deleted-{at}")
        if at == 0:
            rest.delete_checkpoint(run_id, "weights/deleted-0").result()
        elif at == 1:
            asyncio.run(rest.delete_checkpoint_async(run_id, "weights/deleted-1"))
        elif at == 2:
            rest.delete_checkpoint_from_tinker_path(path).result()
        else:
            asyncio.run(rest.delete_checkpoint_from_tinker_path_async(path))
        try:
            clients.service.create_training_client_from_state(path).result()
        except tinker.TinkerError as error:
            assert path in str(error), error
        else:
            raise AssertionError(f"{path} is still there")
    return "what is deleted cannot be loaded"


@checks(
    "RestClient.publish_checkpoint_from_tinker_path",
    "RestClient.publish_checkpoint_from_tinker_path_async",
    "RestClient.unpublish_checkpoint_from_tinker_path",
    "RestClient.unpublish_checkpoint_from_tinker_path_async",
)
def publish(clients: Clients) -> str:
    path = clients.saved("published")

    def public() -> bool:
        listed = clients.rest.list_checkpoints(clients.training.model_id).result().checkpoints
        (found,) = [one for one in listed if one.tinker_path == path]
        return bool(found.public)

    for _ in range(2):
        clients.rest.publish_checkpoint_from_tinker_path(path).result()
        same(public(), True)
        asyncio.run(clients.rest.unpublish_checkpoint_from_tinker_path_async(path))
        same(public(), False)
        asyncio.run(clients.rest.publish_checkpoint_from_tinker_path_async(path))
        same(public(), True)
        clients.rest.unpublish_checkpoint_from_tinker_path(path).result()
        same(public(), False)
    return "other keys see their base model and rank; they cannot load them (see below)"


@checks(
    "RestClient.set_checkpoint_ttl_from_tinker_path",
    "RestClient.set_checkpoint_ttl_from_tinker_path_async",
)
def ttl(clients: Clients) -> str:
    path = clients.saved("to-live")

    def expires() -> datetime | None:
        listed = clients.rest.list_checkpoints(clients.training.model_id).result().checkpoints
        (found,) = [one for one in listed if one.tinker_path == path]
        return found.expires_at

    both(clients.rest, "set_checkpoint_ttl_from_tinker_path", path, 3600)
    until = expires()
    assert until is not None
    assert 3500 < (until - datetime.now(UTC)).total_seconds() < 3700
    clients.rest.set_checkpoint_ttl_from_tinker_path(path, None).result()
    same(expires(), None)
    return "sets and removes it"


@checks("RestClient.copy_weights", "RestClient.copy_weights_async")
def copy(clients: Clients) -> str:
    path = clients.training.save_weights_for_sampler("copied").result().path
    pair = both(clients.rest, "copy_weights", path, "another project")
    assert len({path, *pair}) == 3
    for copied in pair:
        assert copied.endswith("/sampler_weights/copied"), copied
        sampler = clients.service.create_sampling_client(model_path=copied).result()
        same(clients.answers(sampler, temperature=0.0), clients.answers(clients.sampler, temperature=0.0))
        run = clients.rest.get_training_run_by_tinker_path(copied).result()
        same(run.last_sampler_checkpoint.tinker_path, copied)
    found = clients.rest.list_training_runs(project_id="another project").result()
    same(len(found.training_runs), 2)
    return "the copy has a run and a project of its own; its bytes are the source's"


@checks("RestClient.get_session", "RestClient.get_session_async")
def session(clients: Clients) -> str:
    for found in both(clients.rest, "get_session", clients.session_id):
        assert clients.training.model_id in found.training_run_ids
        assert clients.sampler._sampling_session_id in found.sampler_ids
        same([found.display_name, found.user_metadata], ["Every Method", {"purpose": "methods"}])
    return "its runs, samplers, name and metadata"


@checks("RestClient.list_sessions", "RestClient.list_sessions_async")
def sessions(clients: Clients) -> str:
    found, again = both(clients.rest, "list_sessions", limit=100)
    same(found.sessions, again.sessions)
    assert clients.session_id in found.sessions
    same(clients.rest.list_sessions(limit=1, offset=1).result().sessions, found.sessions[1:2])
    return "newest first, with limit and offset"


@checks("RestClient.search_sessions")
def search(clients: Clients) -> str:
    def found(**options: Any) -> list[str]:
        asked = types.SessionSearchRequest(**options)
        return [one.session_id for one in clients.rest.search_sessions(asked).result().sessions]

    assert clients.session_id in found(display_name="METHOD every")
    same(found(display_name="every nothing"), [])
    same(found(session_id=clients.session_id), [clients.session_id])
    assert clients.session_id in found(user_metadata={"purpose": "methods"})
    same(found(user_metadata={"purpose": "others"}), [])
    assert clients.session_id in found(statuses=[{"type": "active"}], project_ids=["methods"])
    assert clients.session_id not in found(statuses=[{"type": "client_finished"}])
    everything, pages, cursor = found(limit=200), [], None
    while cursor is not None or not pages:
        page = clients.rest.search_sessions(types.SessionSearchRequest(limit=2, cursor=cursor)).result()
        pages += [one.session_id for one in page.sessions]
        cursor = page.next_cursor
    same(pages, everything)
    return "by id, name, metadata, status and project, page by page"


@checks("RestClient.assign_session_project", "RestClient.assign_session_project_async")
def project(clients: Clients) -> str:
    service = tinker.ServiceClient()
    session_id = service.create_sampling_client(base_model=BASE).result().holder.get_session_id()
    for name in ("first", "second"):
        if name == "first":
            clients.rest.assign_session_project(session_id, name).result()
        else:
            asyncio.run(clients.rest.assign_session_project_async(session_id, name))
        asked = types.SessionSearchRequest(project_ids=[name])
        (found,) = clients.rest.search_sessions(asked).result().sessions
        same([found.session_id, found.project_id], [session_id, name])
    service.close("success").result()
    return "a project is a name to search by; it gives no rights"


@checks("RestClient.get_sampler", "RestClient.get_sampler_async")
def sampler(clients: Clients) -> str:
    for found in both(clients.rest, "get_sampler", clients.sampler._sampling_session_id):
        same([found.base_model, found.model_path], [clients.folder, None])
    path = clients.training.save_weights_for_sampler("known").result().path
    made = clients.service.create_sampling_client(model_path=path).result()
    same(clients.rest.get_sampler(made._sampling_session_id).result().model_path, path)
    return "base model and path"


@checks("RestClient.whoami")
def whoami(clients: Clients) -> str:
    try:
        return str(clients.rest.whoami().result())
    except RuntimeError as error:
        raise tinker.TinkerError(str(error)) from error


@checks("RestClient.export_session_trace")
def trace(clients: Clients) -> str:
    return str(clients.rest.export_session_trace(clients.session_id).result())


@checks("RestClient.export_session_trace_async")
def trace_async(clients: Clients) -> str:
    return str(asyncio.run(clients.rest.export_session_trace_async(clients.session_id)))


@checks("RestClient.get_audit_log")
def audit(clients: Clients) -> str:
    return str(clients.rest.get_audit_log().result())


@checks("RestClient.get_audit_log_async")
def audit_async(clients: Clients) -> str:
    return str(asyncio.run(clients.rest.get_audit_log_async()))


@checks("RestClient.get_billing_usage")
def billing(clients: Clients) -> str:
    return str(clients.rest.get_billing_usage("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z").result())


@checks("RestClient.get_billing_usage_async")
def billing_async(clients: Clients) -> str:
    asked = clients.rest.get_billing_usage_async("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")
    return str(asyncio.run(asked))


@checks("RestClient.get_current_checkpoint_storage_usage")
def storage(clients: Clients) -> str:
    return str(clients.rest.get_current_checkpoint_storage_usage().result())


@checks("RestClient.get_current_checkpoint_storage_usage_async")
def storage_async(clients: Clients) -> str:
    return str(asyncio.run(clients.rest.get_current_checkpoint_storage_usage_async()))
