# Written by tests/compat/make_stubs.py of art.compat.import_paths.
from art.deployment.deploy import deploy_model as deploy_model
from art.deployment.provider import DeploymentConfig as DeploymentConfig
from art.deployment.provider import DeploymentResult as DeploymentResult

__all__ = ["DeploymentConfig", "DeploymentResult", "deploy_model"]

