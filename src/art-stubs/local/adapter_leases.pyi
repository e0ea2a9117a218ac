# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from typing import Any

from art_extensions.compat.adapter_leases import InferenceTarget as InferenceTarget
from art_extensions.compat.adapter_leases import in_flight_lora_name as in_flight_lora_name
from art_extensions.compat.adapter_leases import pin_inference_step as pin_inference_step
from art_extensions.compat.adapter_leases import pin_inference_target as pin_inference_target
from art_extensions.compat.adapter_leases import pinned_inference_name as pinned_inference_name
from art_extensions.compat.adapter_leases import pinned_inference_step as pinned_inference_step

__all__ = ["InferenceTarget", "in_flight_lora_name", "pin_inference_step", "pin_inference_target", "pinned_inference_name", "pinned_inference_step"]

def __getattr__(name: str) -> Any: ...
