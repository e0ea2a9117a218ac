# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.environments.tasks import NAMES as NAMES
from art.environments.tasks import Task as Task
from art.environments.tasks import TaskDefaults as TaskDefaults
from art.environments.tasks import find as find

__all__ = ["NAMES", "Task", "TaskDefaults", "find"]

