# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.publish.deployment import DeploymentConfig as DeploymentConfig
from art_extensions.publish.deployment import DeploymentResult as DeploymentResult
from art_extensions.publish.deployment import deploy_model as deploy_model

__all__ = ["DeploymentConfig", "DeploymentResult", "deploy_model"]

