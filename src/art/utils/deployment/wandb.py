"""W&B as a provider; the code is in `art.deployment`."""

from __future__ import annotations

from art.deployment.deploy import deploy_wandb
from art.deployment.weights_and_biases import WandbDeploymentConfig

__all__ = ["WandbDeploymentConfig", "deploy_wandb"]
