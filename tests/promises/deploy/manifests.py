"""The part of Kubernetes' and KubeRay's objects that deploy/ uses; any other field is refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Metadata(Part):
    name: str
    labels: dict[str, str] = {}


class PodMetadata(Part):
    labels: dict[str, str]


class Selector(Part):
    matchLabels: dict[str, str] = Field(min_length=1)


class KeyReference(Part):
    name: str
    key: str


class FieldReference(Part):
    fieldPath: Literal["status.podIP"]


class ValueSource(Part):
    secretKeyRef: KeyReference | None = None
    fieldRef: FieldReference | None = None


class Variable(Part):
    name: str
    value: str | None = None
    valueFrom: ValueSource | None = None


class ContainerPort(Part):
    name: str
    containerPort: int


class HttpGet(Part):
    path: Literal["/health"]
    port: str


class Exec(Part):
    command: list[str]


class Probe(Part):
    httpGet: HttpGet | None = None
    exec: Exec | None = None
    periodSeconds: int
    timeoutSeconds: int | None = None
    failureThreshold: int | None = None


Quantity = dict[Literal["cpu", "memory", "storage", "nvidia.com/gpu"], str | int]


class Resources(Part):
    requests: Quantity
    limits: Quantity


class Capabilities(Part):
    drop: list[Literal["ALL"]] = Field(min_length=1)


class ContainerSecurity(Part):
    allowPrivilegeEscalation: Literal[False]
    readOnlyRootFilesystem: Literal[True]
    capabilities: Capabilities


class Mount(Part):
    name: str
    mountPath: str


class Container(Part):
    name: str
    image: str
    command: list[str] = []
    args: list[str] = []
    env: list[Variable] = []
    ports: list[ContainerPort] = []
    startupProbe: Probe | None = None
    readinessProbe: Probe | None = None
    livenessProbe: Probe | None = None
    resources: Resources
    securityContext: ContainerSecurity
    volumeMounts: list[Mount] = []


class Claim(Part):
    claimName: str


class Volume(Part):
    name: str
    persistentVolumeClaim: Claim | None = None
    emptyDir: dict[str, Any] | None = None


class Profile(Part):
    type: Literal["RuntimeDefault"]


class PodSecurity(Part):
    runAsNonRoot: Literal[True]
    runAsUser: int = Field(gt=0)
    runAsGroup: int = Field(gt=0)
    fsGroup: int
    seccompProfile: Profile


class Pod(Part):
    serviceAccountName: Literal["art"]
    automountServiceAccountToken: Literal[False]
    securityContext: PodSecurity
    terminationGracePeriodSeconds: int | None = None
    containers: list[Container] = Field(min_length=1)
    volumes: list[Volume] = []


class PodTemplate(Part):
    metadata: PodMetadata
    spec: Pod


class Strategy(Part):
    type: Literal["Recreate"]


class DeploymentSpec(Part):
    replicas: int
    strategy: Strategy | None = None
    selector: Selector
    template: PodTemplate


class StorageRequest(Part):
    requests: Quantity


class ClaimSpec(Part):
    accessModes: list[Literal["ReadWriteOnce", "ReadWriteMany"]]
    resources: StorageRequest


class ClaimTemplate(Part):
    metadata: Metadata
    spec: ClaimSpec


class StatefulSetSpec(Part):
    serviceName: str
    replicas: int
    selector: Selector
    template: PodTemplate
    volumeClaimTemplates: list[ClaimTemplate]


class ServicePort(Part):
    name: str
    port: int
    targetPort: str


class ServiceSpec(Part):
    type: Literal["ClusterIP"]
    clusterIP: Literal["None"] | None = None
    selector: dict[str, str] = Field(min_length=1)
    ports: list[ServicePort]


class Peer(Part):
    podSelector: Selector


class PolicyPort(Part):
    protocol: Literal["TCP"]
    port: int


class IngressRule(Part):
    from_: list[Peer] | None = Field(None, alias="from")
    ports: list[PolicyPort] | None = None


class PolicySpec(Part):
    podSelector: Selector
    policyTypes: list[Literal["Ingress"]]
    ingress: list[IngressRule]


class AuthOptions(Part):
    mode: Literal["token"]


class HeadGroup(Part):
    serviceType: Literal["ClusterIP"]
    rayStartParams: dict[str, str]
    template: PodTemplate


class WorkerGroup(Part):
    groupName: str
    replicas: int
    minReplicas: int
    maxReplicas: int
    rayStartParams: dict[str, str]
    template: PodTemplate


class RayClusterSpec(Part):
    rayVersion: str
    authOptions: AuthOptions
    headGroupSpec: HeadGroup
    workerGroupSpecs: list[WorkerGroup]


class ServiceAccount(Part):
    apiVersion: Literal["v1"]
    kind: Literal["ServiceAccount"]
    metadata: Metadata
    automountServiceAccountToken: Literal[False]


class Deployment(Part):
    apiVersion: Literal["apps/v1"]
    kind: Literal["Deployment"]
    metadata: Metadata
    spec: DeploymentSpec


class StatefulSet(Part):
    apiVersion: Literal["apps/v1"]
    kind: Literal["StatefulSet"]
    metadata: Metadata
    spec: StatefulSetSpec


class Service(Part):
    apiVersion: Literal["v1"]
    kind: Literal["Service"]
    metadata: Metadata
    spec: ServiceSpec


class PersistentVolumeClaim(Part):
    apiVersion: Literal["v1"]
    kind: Literal["PersistentVolumeClaim"]
    metadata: Metadata
    spec: ClaimSpec


class NetworkPolicy(Part):
    apiVersion: Literal["networking.k8s.io/v1"]
    kind: Literal["NetworkPolicy"]
    metadata: Metadata
    spec: PolicySpec


class RayCluster(Part):
    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayCluster"]
    metadata: Metadata
    spec: RayClusterSpec


Manifest = Annotated[
    ServiceAccount | Deployment | StatefulSet | Service | PersistentVolumeClaim | NetworkPolicy | RayCluster,
    Field(discriminator="kind"),
]
"""One object of a rendered overlay. A Secret is none of them: no file of deploy/ holds one."""

MANIFEST: TypeAdapter[Manifest] = TypeAdapter(Manifest)


def pods_of(manifest: Manifest) -> list[PodTemplate]:
    """The pods that an object makes."""
    match manifest:
        case Deployment() | StatefulSet():
            return [manifest.spec.template]
        case RayCluster():
            groups = manifest.spec.workerGroupSpecs
            return [manifest.spec.headGroupSpec.template, *(group.template for group in groups)]
    return []
