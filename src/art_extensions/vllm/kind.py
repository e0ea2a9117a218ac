"""The engine `vllm` of the registry (`art.engine.registry.EngineKind`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from art.engine.protocol import ServerOrder
from art.engine.registry import EngineKind
from art.errors import extra_needed
from art_extensions.vllm.options import VllmOptions
from art_extensions.vllm.runtime import TESTED

if TYPE_CHECKING:
    from art_extensions.vllm.start import VllmServer


async def _start_server(order: ServerOrder) -> VllmServer:
    """Raises: what `start_vllm` raises."""
    with extra_needed("vllm", "the vLLM engine"):
        from art_extensions.vllm.start import start_vllm
    return await start_vllm(order)


def _gpus_together(options: VllmOptions) -> int:
    given = {name.replace("-", "_"): value for name, value in options.engine_args.items()}
    parts = [given.get(name, 1) for name in ("tensor_parallel_size", "pipeline_parallel_size")]
    return int(parts[0]) * int(parts[1])


VLLM = EngineKind(
    module="art_extensions.vllm.worker",
    start_server=_start_server,
    no_bits=f"vLLM {TESTED} has no bitsandbytes quantization",
    options=VllmOptions,
    gpus_together=_gpus_together,
    masked_by=lambda options: "vllm" if options.own_masks else "vllm-guidance",
)
