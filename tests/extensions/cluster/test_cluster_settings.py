"""Addresses, amounts and bundles of a cluster, without one."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from art.errors import ConfigurationError, WorkerDiedError
from art.server.cluster_settings import ClusterSettings
from art.server.settings import EngineSettings, ServerSettings, parse_settings
from art.wire.engine import to_body, to_error
from art_extensions.cluster.messages import HostOrder, PlaceOrder, PlacerLine, PlacerOrder
from art_extensions.cluster.plan import (
    NodeRow,
    WorkerBundle,
    choose_bundle,
    nodes_with_room,
    place_member,
    role_of,
    why_no_room,
)

CPU_NODE = NodeRow(id="a", address="10.0.0.1", alive=True, totals={"CPU": 8, "memory": 1e9})
GPU_NODE = NodeRow(id="b", address="10.0.0.2", alive=True, totals={"CPU": 32, "GPU": 8})
DEAD_NODE = NodeRow(id="c", address="10.0.0.3", alive=False, totals={"CPU": 32, "GPU": 8})


@pytest.mark.parametrize(
    ("given", "means"),
    [
        ("auto", "auto"),
        ("head:6379", "head:6379"),
        ("[fd00::1]:6379", "[fd00::1]:6379"),
        ("ray://head", "head:6379"),
        ("ray://head:6380", "head:6380"),
    ],
)
def test_an_address_and_its_spellings(given: str, means: str) -> None:
    assert ClusterSettings(address=given).address == means


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("ray://head:10001", r"Ray Client, a proxy that is not used here.*head:6379"),
        ("head", "HOST:6379"),
        ("http://head:8265", "no address of a Ray cluster"),
        ("", "no address"),
    ],
)
def test_what_is_no_address_says_what_one_is(given: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        ClusterSettings(address=given)


@pytest.mark.parametrize("bucket", ["s3://copies/shelf/", "gs://copies", "file:///mnt/shared/shelf"])
def test_a_bucket_is_a_url_of_fsspec(bucket: str) -> None:
    assert ClusterSettings(address="auto", bucket=bucket).bucket == bucket.rstrip("/")


@pytest.mark.parametrize("bucket", ["copies", "https://host/copies", "ftp://me:word@host/copies", "s3://"])
def test_what_is_no_bucket_says_what_one_is(bucket: str) -> None:
    with pytest.raises(ValidationError, match=r"no address of a bucket: give one such as s3://bucket/shelf"):
        ClusterSettings(address="auto", bucket=bucket)


def test_the_settings_are_a_servers_and_unknown_ones_are_refused_by_name() -> None:
    line = '{"cluster": {"address": "auto", "engine": {"gpus": 2, "resources": {"fast": 1}}, "lease": 30}}'
    found = parse_settings(line).cluster
    assert found is not None and found.engine.gpus == 2 and found.lease == 30
    assert ServerSettings().cluster is None and EngineSettings(replicas=1000).replicas == 1000
    with pytest.raises(ConfigurationError, match="leese"):
        parse_settings('{"cluster": {"address": "auto", "leese": 30}}')


def test_a_worker_takes_a_gpu_where_there_are_some() -> None:
    settings = ClusterSettings(address="auto")
    assert choose_bundle("engine-a", settings, [CPU_NODE]).needs == {"CPU": 1}
    assert choose_bundle("engine-a", settings, [CPU_NODE, GPU_NODE]).needs == {"CPU": 1, "GPU": 1}
    assert choose_bundle("trainer-a", settings, [GPU_NODE]).needs == {"CPU": 1, "GPU": 1}
    none = ClusterSettings.model_validate({"address": "auto", "engine": {"gpus": 0}})
    assert choose_bundle("engine-a", none, [GPU_NODE]).needs == {"CPU": 1}


def test_engines_are_spread_and_a_trainer_is_not() -> None:
    settings = ClusterSettings(address="auto")
    assert role_of("engine-a-3") == "engine" and role_of("trainer-a-rank1") == "trainer"
    assert choose_bundle("engine-a", settings, []).spread
    assert not choose_bundle("trainer-a", settings, []).spread


def test_a_replica_of_several_gpus_is_one_unit_of_one_node() -> None:
    settings = ClusterSettings(address="auto")
    bundle = choose_bundle("engine-a", settings, [GPU_NODE], parallel=4)
    assert bundle.gpus == 4 and nodes_with_room(bundle, [CPU_NODE, GPU_NODE, DEAD_NODE]) == [GPU_NODE]
    odd = ClusterSettings.model_validate({"address": "auto", "engine": {"gpus": 2}})
    with pytest.raises(ConfigurationError, match=r"4 GPUs together, but cluster\.engine\.gpus is 2"):
        choose_bundle("engine-a", odd, [GPU_NODE], parallel=4)


def test_a_gangs_parts_have_nodes_of_their_own_which_hold_all_their_members() -> None:
    one = WorkerBundle(cpus=1, gpus=2)
    first = place_member(one, [CPU_NODE, GPU_NODE], part=0, size=4, placed={})
    assert nodes_with_room(first, [CPU_NODE, GPU_NODE]) == [GPU_NODE]
    assert place_member(one, [GPU_NODE], part=0, size=4, placed={0: "b"}).only_on == "b"
    other = place_member(one, [CPU_NODE, GPU_NODE], part=1, size=4, placed={0: "b"})
    assert other.only_on is None and nodes_with_room(other, [CPU_NODE, GPU_NODE]) == []
    assert "b" in place_member(one, [GPU_NODE], part=0, size=5, placed={}).never_on, "10 GPUs, and it has 8"


def test_a_drained_node_gets_nothing_and_a_suspected_one_rather_not() -> None:
    settings = ClusterSettings(address="auto")
    bundle = choose_bundle("engine-a", settings, [CPU_NODE, GPU_NODE], drained=["b"], suspected=["a", "b"])
    assert bundle.never_on == ["b"] and bundle.rather_not_on == ["a"]
    assert nodes_with_room(bundle.model_copy(update={"gpus": 0.0}), [CPU_NODE, GPU_NODE]) == [CPU_NODE]


def test_no_room_says_what_is_needed_and_what_there_is() -> None:
    small = WorkerBundle(cpus=1, gpus=1, resources={"fast": 1})
    words = why_no_room("engine-a", small, [CPU_NODE, DEAD_NODE], 5)
    assert "needs 1 CPU, 1 GPU, 1 fast" in words and "10.0.0.1 has 8 CPU" in words and "10.0.0.3" not in words
    busy = why_no_room("engine-a", WorkerBundle(cpus=1, gpus=0), [CPU_NODE], 5)
    assert "within 5 s" in busy and "10.0.0.1" in busy and "Add a node" in busy


def test_the_placers_lines_survive_the_way_and_show_no_key() -> None:
    host = HostOrder(nonce="n", key="a-secret", version="1", lease=60, shelf=None, shelf_bytes=1)
    place = PlaceOrder(name="art/x/engine", bundle=WorkerBundle(cpus=1, gpus=0), host=host, deadline=5)
    order = PlacerOrder(id=7, place=place)
    assert PlacerOrder.model_validate_json(order.model_dump_json(exclude_none=True)) == order
    assert "a-secret" not in repr(order)
    told = PlacerLine(id=7, error=to_body(WorkerDiedError("it died")))
    back = PlacerLine.model_validate_json(told.model_dump_json(exclude_none=True))
    assert back.error is not None and isinstance(to_error(back.error), WorkerDiedError)
