"""An older path of `art.utils.deployment`."""

from __future__ import annotations

from art.deployment.deploy import deploy_model
from art.deployment.provider import LoRADeploymentJob, LoRADeploymentProvider

__all__ = ["LoRADeploymentJob", "LoRADeploymentProvider", "deploy_model"]
