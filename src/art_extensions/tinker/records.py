"""The JSON requests of Tinker's API, field by field as its SDK sends them.

A field that is not here is refused: what a client says acts, or is an error.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat


class Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    type: str | None = None
    """The request's own name, which its route says too."""


class CreateSession(Asked):
    tags: list[str] = Field(default_factory=list)
    user_metadata: dict[str, Any] | None = None
    sdk_version: str = ""
    project_id: str | None = None
    display_name: str | None = None


class SessionAsked(Asked):
    session_id: str


class LoraAsked(Asked):
    rank: Annotated[int, Field(ge=1, le=1024)]
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class OptimizerAsked(Asked):
    model_config = ConfigDict(extra="ignore")

    type: str = "adamw"
    """Another one is refused, whatever else it says."""


class CreateModel(Asked):
    session_id: str
    model_seq_id: int
    base_model: str
    user_metadata: dict[str, Any] | None = None
    lora_config: LoraAsked | None = None
    optimizer_config: OptimizerAsked = OptimizerAsked()


class ModelAsked(Asked):
    model_id: str


class RunAsked(ModelAsked):
    seq_id: int | None = None


class AdamAsked(Asked):
    """AdamW, as `torch.optim.AdamW` has it. A `grad_clip_norm` of 0 clips nothing. Clients up to release 0.16
    leave out what has the value that stands here.
    """

    learning_rate: Annotated[FiniteFloat, Field(ge=0)]
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    eps: Annotated[FiniteFloat, Field(gt=0)] = 1e-12
    weight_decay: Annotated[FiniteFloat, Field(ge=0)] = 0.0
    grad_clip_norm: Annotated[FiniteFloat, Field(ge=0)] = 0.0


class OptimStep(RunAsked):
    adam_params: dict[str, Any] | None = None
    """Read as `AdamAsked` when it is its turn: a wrong value is an error of that future."""
    optimizer_params: dict[str, Any] | None = None
    """Those of another optimizer."""


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]


class SaveWeights(RunAsked):
    path: str | None = None
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: dict[str, str] | None = None


class SaveForSampler(RunAsked):
    path: str | None = None
    sampling_session_seq_id: int | None = None
    kind: str = "snapshot"
    ttl_seconds: int | None = None
    user_metadata: dict[str, str] | None = None


class SaveExternal(RunAsked):
    path: str
    ttl_seconds: int | None = None
    age_encryption_recipients: list[str] | None = None


class CopyWeights(Asked):
    source_path: str
    session_id: str | None = None
    model_seq_id: int | None = None
    destination_project_id: str | None = None
    ttl_seconds: int | None = None
    weights_access_token: str | None = Field(default=None, repr=False)


class LoadWeights(Asked):
    path: str
    optimizer: bool = False
    model_id: str | None = None
    seq_id: int | None = None
    session_id: str | None = None
    model_seq_id: int | None = None
    base_model: str | None = None
    user_metadata: dict[str, Any] | None = None
    optimizer_config: OptimizerAsked | None = None
    weights_access_token: str | None = Field(default=None, repr=False)


class CreateSampler(Asked):
    session_id: str
    sampling_session_seq_id: int
    base_model: str | None = None
    model_path: str | None = None


class SamplerAsked(Asked):
    sampling_session_id: str


class SamplingAsked(Asked):
    max_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str] | list[int] | None = None
    temperature: FiniteFloat = 1.0
    top_k: int = -1
    top_p: FiniteFloat = 1.0


class PromptAsked(Asked):
    chunks: list[dict[str, Any]]


class TensorAsked(Asked):
    """A tensor of ids: dense, or sparse in rows (CSR)."""

    data: list[int]
    dtype: Literal["int64"]
    shape: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]]
    sparse_crow_indices: list[int] | None = None
    sparse_col_indices: list[int] | None = None


class SampleAsked(Asked):
    prompt: PromptAsked
    num_samples: Annotated[int, Field(ge=1)] = 1
    sampling_params: SamplingAsked = SamplingAsked()
    base_model: str | None = None
    model_path: str | None = None
    sampling_session_id: str | None = None
    seq_id: int | None = None
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: Annotated[int, Field(ge=0)] = 0
    topk_sample_logprobs: Annotated[int, Field(ge=0)] = 0
    target_prompt_logprobs: TensorAsked | None = None
    prompt_alt_tokens_k: Annotated[int, Field(ge=0)] = 0
    prompt_logprobs_last_n: Annotated[int, Field(ge=1)] | None = None
    record_stability_info: bool | None = None


class RetrieveFuture(Asked):
    request_id: str
    allow_metadata_only: bool = False


class SamplerTarget(Asked):
    """One client of a sampler."""

    sampling_session_id: str
    cloned_sampler_id: Annotated[int, Field(ge=0)] = 0


class RetrieveFutures(Asked):
    target: SamplerTarget
    prev_cursor: Annotated[int, Field(ge=0)] = 0
    timeout: Annotated[FiniteFloat, Field(ge=0)] | None = None
    """Seconds; the client waits for what is usual here where it names none."""
    retrieved_request_ids: list[str] = Field(default_factory=list)


class RequestAsked(Asked):
    request_id: str


class PathAsked(Asked):
    tinker_path: str


class TtlAsked(Asked):
    ttl_seconds: int | None = None


class ProjectAsked(Asked):
    project_id: Annotated[str, Field(min_length=1, max_length=200)]


class FinishAsked(Asked):
    reason: dict[str, Any] = Field(default_factory=lambda: {"type": "success"})
    detail: str | None = None
