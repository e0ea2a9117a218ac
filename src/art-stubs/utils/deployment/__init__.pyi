# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.client.publish.deployment import DeploymentConfig as DeploymentConfig
from art.client.publish.deployment import DeploymentResult as DeploymentResult
from art.client.publish.deployment import LoRADeploymentJob as LoRADeploymentJob
from art.client.publish.deployment import LoRADeploymentProvider as LoRADeploymentProvider
from art.client.publish.deployment import deploy_model as deploy_model
from art.client.publish.deployment_providers import TogetherDeploymentConfig as TogetherDeploymentConfig
from art.client.publish.deployment_providers import WandbDeploymentConfig as WandbDeploymentConfig

__all__ = ["DeploymentConfig", "DeploymentResult", "LoRADeploymentJob", "LoRADeploymentProvider", "TogetherDeploymentConfig", "WandbDeploymentConfig", "deploy_model"]

