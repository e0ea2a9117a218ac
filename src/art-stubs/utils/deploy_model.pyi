# Written by tests/compat/make_stubs.py of art.compat.import_paths.
from art.deployment.deploy import deploy_model as deploy_model
from art.deployment.provider import LoRADeploymentJob as LoRADeploymentJob
from art.deployment.provider import LoRADeploymentProvider as LoRADeploymentProvider

__all__ = ["LoRADeploymentJob", "LoRADeploymentProvider", "deploy_model"]

