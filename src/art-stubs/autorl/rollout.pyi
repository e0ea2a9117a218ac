# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.runs.autorl.autorl_run import *
