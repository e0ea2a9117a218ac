"""Together as a provider; the code is in `art.deployment`."""

from __future__ import annotations

from art.deployment.together import TogetherDeploymentConfig

__all__ = ["TogetherDeploymentConfig"]
