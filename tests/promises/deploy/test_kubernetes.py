"""deploy/k8s as `kubectl kustomize` renders it: known fields, no secret, one open port, real commands."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
import ray
import yaml
from commands import serve_flaws
from install_kubectl import kubectl_command
from manifests import (
    MANIFEST,
    Container,
    Deployment,
    Manifest,
    NetworkPolicy,
    PersistentVolumeClaim,
    PodTemplate,
    RayCluster,
    Selector,
    Service,
    StatefulSet,
    pods_of,
)

K8S = Path(__file__).parents[3] / "deploy" / "k8s"
OVERLAYS = ["base", "overlays/gpu", "overlays/cluster"]
KUBECTL = kubectl_command()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        KUBECTL is None and not os.environ.get("ART_TEST_EVERYTHING"),
        reason="no kubectl with Kustomize 5; `python tests/promises/deploy/install_kubectl.py` gets it",
    ),
]


@cache
def rendered_text(overlay: str) -> str:
    return subprocess.run(
        [str(KUBECTL), "kustomize", str(K8S / overlay)],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    ).stdout


@cache
def rendered(overlay: str) -> list[Manifest]:
    return [MANIFEST.validate_python(one) for one in yaml.safe_load_all(rendered_text(overlay))]


def pods(overlay: str) -> list[PodTemplate]:
    return [pod for manifest in rendered(overlay) for pod in pods_of(manifest)]


def containers(overlay: str) -> list[Container]:
    return [container for pod in pods(overlay) for container in pod.spec.containers]


def matches(selector: Selector, pod: PodTemplate) -> bool:
    return selector.matchLabels.items() <= pod.metadata.labels.items()


def test_every_overlay_is_tested() -> None:
    found = {path.parent.relative_to(K8S).as_posix() for path in K8S.rglob("kustomization.yaml")}
    assert found == set(OVERLAYS)


def test_a_field_that_is_misspelt_is_refused() -> None:
    [deployment] = [one for one in yaml.safe_load_all(rendered_text("base")) if one["kind"] == "Deployment"]
    deployment["spec"]["template"]["spec"]["containers"][0]["readOnlyRootFileSystem"] = True
    with pytest.raises(ValueError, match="readOnlyRootFileSystem"):
        MANIFEST.validate_python(deployment)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_secret_has_a_value(overlay: str) -> None:
    secret = re.compile(r"KEY|TOKEN|PASSWORD|SECRET")
    variables = [variable for container in containers(overlay) for variable in container.env]
    named = [variable for variable in variables if secret.search(variable.name)]
    assert named and all(
        variable.value is None and variable.valueFrom is not None and variable.valueFrom.secretKeyRef
        for variable in named
    )
    assert not re.search(r"://[^/@\s]+:[^/@\s]+@", rendered_text(overlay)), "a password in an address"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_one_port_is_open_and_every_pod_is_closed_by_default(overlay: str) -> None:
    policies = [one.spec for one in rendered(overlay) if isinstance(one, NetworkPolicy)]
    for pod in pods(overlay):
        assert any(matches(policy.podSelector, pod) for policy in policies)
    rules = [(policy, rule) for policy in policies for rule in policy.ingress]
    opened = [(policy, rule) for policy, rule in rules if not rule.from_]
    [(policy, rule)] = opened
    assert rule.ports is not None and [port.port for port in rule.ports] == [8000]
    serving = [pod for pod in pods(overlay) if matches(policy.podSelector, pod)]
    assert {port.containerPort for pod in serving for one in pod.spec.containers for port in one.ports} == {
        8000
    }
    for _, inner in rules:
        for peer in inner.from_ or ():
            assert peer.podSelector.matchLabels == {"app.kubernetes.io/part-of": "art"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_claims_and_ports_find_what_they_name(overlay: str) -> None:
    claims = {one.metadata.name for one in rendered(overlay) if isinstance(one, PersistentVolumeClaim)}
    for manifest in rendered(overlay):
        if isinstance(manifest, Deployment | StatefulSet):
            assert matches(manifest.spec.selector, manifest.spec.template)
        if isinstance(manifest, Service):
            selector = Selector(matchLabels=manifest.spec.selector)
            chosen = [pod for pod in pods(overlay) if matches(selector, pod)]
            assert len(chosen) == 1, f"{manifest.metadata.name} leads to {len(chosen)} kinds of pods"
            ports = {port.name for one in chosen[0].spec.containers for port in one.ports}
            assert {port.targetPort for port in manifest.spec.ports} <= ports
    for pod in pods(overlay):
        volumes = {volume.name for volume in pod.spec.volumes}
        used = {
            volume.persistentVolumeClaim.claimName
            for volume in pod.spec.volumes
            if volume.persistentVolumeClaim is not None
        }
        assert used <= claims
        for container in pod.spec.containers:
            templates = {"data"} if container.name == "postgres" else set()
            assert {mount.name for mount in container.volumeMounts} <= volumes | templates


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_serves_is_probed_and_its_commands_exist(overlay: str) -> None:
    for container in containers(overlay):
        if container.name.startswith("ray-"):
            continue  # KubeRay sets their command and probes
        assert container.startupProbe and container.readinessProbe and container.livenessProbe
        assert re.fullmatch(r"[\w./-]+:[\w.-]+", container.image) and not container.image.endswith(":latest")
        if container.name != "postgres":
            assert not serve_flaws([*container.command, *container.args])


def test_several_servers_share_their_data_and_one_of_them_places_workers() -> None:
    overlay = rendered("overlays/cluster")
    [cluster] = [one for one in overlay if isinstance(one, RayCluster)]
    assert cluster.spec.authOptions.mode == "token" and cluster.spec.rayVersion == ray.__version__
    [claim] = [one for one in overlay if isinstance(one, PersistentVolumeClaim)]
    assert claim.spec.accessModes == ["ReadWriteMany"]
    controller, gateway = (
        next(one for one in containers("overlays/cluster") if one.name == name)
        for name in ("server", "gateway")
    )
    tokens = [variable for variable in controller.env if variable.name == "RAY_AUTH_TOKEN"]
    assert tokens[0].valueFrom is not None and tokens[0].valueFrom.secretKeyRef is not None
    assert tokens[0].valueFrom.secretKeyRef.name == cluster.metadata.name  # KubeRay names it so
    assert f"{cluster.metadata.name}-head-svc:6379" in controller.args[0]
    assert "RAY_AUTH_TOKEN" not in {variable.name for variable in gateway.env}
    [service] = [one for one in overlay if isinstance(one, Service) and one.metadata.name == "art"]
    [serving] = [
        pod for pod in pods("overlays/cluster") if matches(Selector(matchLabels=service.spec.selector), pod)
    ]
    assert serving.spec.containers[0].name == "gateway"
