# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.client.capture import auto_trajectory as auto_trajectory
from art.client.capture import capture_auto_trajectory as capture_auto_trajectory
from art.client.capture import capture_yielded_trajectory as capture_yielded_trajectory
from art.client.capture import yield_trajectory as yield_trajectory
from art.rollout_tasks import current_rollout as current_rollout
from art.rollout_tasks import in_rollout as in_rollout
from art.rollout_tasks import rollout_scope as rollout_scope

__all__ = ["auto_trajectory", "capture_auto_trajectory", "capture_yielded_trajectory", "current_rollout", "in_rollout", "rollout_scope", "yield_trajectory"]

