# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.compat.provenance import record_provenance as record_provenance

__all__ = ["record_provenance"]

