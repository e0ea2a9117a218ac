# Written by tests/compat/make_stubs.py of art.compat.import_paths.
from art.deployment.deploy import deploy_model as deploy_model
from art.deployment.provider import DeploymentConfig as DeploymentConfig
from art.deployment.provider import DeploymentResult as DeploymentResult
from art.deployment.provider import LoRADeploymentJob as LoRADeploymentJob
from art.deployment.provider import LoRADeploymentProvider as LoRADeploymentProvider
from art.deployment.together import TogetherDeploymentConfig as TogetherDeploymentConfig
from art.deployment.weights_and_biases import WandbDeploymentConfig as WandbDeploymentConfig

__all__ = ["DeploymentConfig", "DeploymentResult", "LoRADeploymentJob", "LoRADeploymentProvider", "TogetherDeploymentConfig", "WandbDeploymentConfig", "deploy_model"]

