"""The first deployments' names; the code is in `art.deployment`."""

from __future__ import annotations

from art.deployment.provider import LoRADeploymentJob, LoRADeploymentProvider

__all__ = ["LoRADeploymentJob", "LoRADeploymentProvider"]
