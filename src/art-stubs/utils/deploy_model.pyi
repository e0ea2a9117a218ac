# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.client.publish.deployment import LoRADeploymentJob as LoRADeploymentJob
from art.client.publish.deployment import LoRADeploymentProvider as LoRADeploymentProvider
from art.client.publish.deployment import deploy_model as deploy_model

__all__ = ["LoRADeploymentJob", "LoRADeploymentProvider", "deploy_model"]

