# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.publish.deployment import deploy_wandb as deploy_wandb
from art_extensions.publish.deployment_providers import WandbDeploymentConfig as WandbDeploymentConfig

__all__ = ["WandbDeploymentConfig", "deploy_wandb"]

