"""What every provider is told and answers; the code is in `art.deployment`."""

from __future__ import annotations

from art.deployment.deploy import deploy_model
from art.deployment.provider import DeploymentConfig, DeploymentResult

__all__ = ["DeploymentConfig", "DeploymentResult", "deploy_model"]
