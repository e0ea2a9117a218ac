# Written by tests/compat/make_stubs.py of art.compat.import_paths.
from art.deployment.together import TogetherDeploymentConfig as TogetherDeploymentConfig

__all__ = ["TogetherDeploymentConfig"]

