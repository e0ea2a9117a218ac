"""Every key of a model's low-level configuration and what it does here, as data: `art.remote.internal_config`
reads it.
"""
