# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.publish.deployment_providers import TogetherDeploymentConfig as TogetherDeploymentConfig

__all__ = ["TogetherDeploymentConfig"]

