# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.client.deployment import DeploymentConfig as DeploymentConfig
from art.client.deployment import DeploymentResult as DeploymentResult
from art.client.deployment import LoRADeploymentJob as LoRADeploymentJob
from art.client.deployment import LoRADeploymentProvider as LoRADeploymentProvider
from art.client.deployment import deploy_model as deploy_model
from art.client.deployment_providers import TogetherDeploymentConfig as TogetherDeploymentConfig
from art.client.deployment_providers import WandbDeploymentConfig as WandbDeploymentConfig

__all__ = ["DeploymentConfig", "DeploymentResult", "LoRADeploymentJob", "LoRADeploymentProvider", "TogetherDeploymentConfig", "WandbDeploymentConfig", "deploy_model"]

