# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.client.publishing import Exported as Exported
from art.client.publishing import export_model as export_model

__all__ = ["Exported", "export_model"]

