"""`art models`, the registered models of a folder or a server; `art resume`, their unfinished jobs."""
