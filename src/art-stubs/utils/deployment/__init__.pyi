# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.client.publishing import LoRADeploymentJob as LoRADeploymentJob
from art_extensions.publish.deployment import DeploymentConfig as DeploymentConfig
from art_extensions.publish.deployment import DeploymentResult as DeploymentResult
from art_extensions.publish.deployment import LoRADeploymentProvider as LoRADeploymentProvider
from art_extensions.publish.deployment import deploy_model as deploy_model
from art_extensions.publish.deployment_providers import TogetherDeploymentConfig as TogetherDeploymentConfig
from art_extensions.publish.deployment_providers import WandbDeploymentConfig as WandbDeploymentConfig

__all__ = ["DeploymentConfig", "DeploymentResult", "LoRADeploymentJob", "LoRADeploymentProvider", "TogetherDeploymentConfig", "WandbDeploymentConfig", "deploy_model"]

