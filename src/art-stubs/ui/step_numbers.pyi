# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.ui.step_numbers import *
