"""`deploy_model` and what it takes; the code is in `art.deployment`."""

from __future__ import annotations

from art.deployment.deploy import deploy_model
from art.deployment.provider import (
    DeploymentConfig,
    DeploymentResult,
    LoRADeploymentJob,
    LoRADeploymentProvider,
)
from art.deployment.together import TogetherDeploymentConfig
from art.deployment.weights_and_biases import WandbDeploymentConfig

__all__ = [
    "DeploymentConfig",
    "DeploymentResult",
    "LoRADeploymentJob",
    "LoRADeploymentProvider",
    "TogetherDeploymentConfig",
    "WandbDeploymentConfig",
    "deploy_model",
]
