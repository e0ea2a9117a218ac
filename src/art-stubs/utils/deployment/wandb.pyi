# Written by tests/compat/make_stubs.py of art.compat.import_paths.
from art.deployment.deploy import deploy_wandb as deploy_wandb
from art.deployment.weights_and_biases import WandbDeploymentConfig as WandbDeploymentConfig

__all__ = ["WandbDeploymentConfig", "deploy_wandb"]

