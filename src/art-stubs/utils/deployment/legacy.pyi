# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.client.publishing import LoRADeploymentJob as LoRADeploymentJob
from art_extensions.publish.deployment import LoRADeploymentProvider as LoRADeploymentProvider

__all__ = ["LoRADeploymentJob", "LoRADeploymentProvider"]

