"""Store each large file once: `link_equal_files.py ENVIRONMENT...` after an environment is made.

The environments of the tests hold the same libraries many times. A file of 64 KiB or more becomes a hard link
into `.venv-files`, named by its content. pip and npm replace files and never write into one, so environments
stay apart.
"""

import hashlib
import os
import sys
from pathlib import Path

SMALLEST = 1 << 16
STORE = Path(".venv-files")


def link_equal_files(environment: Path, store: Path) -> int:
    """Link the large files of `environment` into `store`; returns the bytes that were saved."""
    store.mkdir(exist_ok=True)
    saved = 0
    for folder, _, names in os.walk(environment):
        for path in (Path(folder, name) for name in names):
            state = path.lstat()
            if path.is_symlink() or state.st_size < SMALLEST or state.st_nlink > 1:
                continue
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            # A link carries its permissions: a program is no library.
            kept = store / f"{digest}-{state.st_mode:o}"
            beside = path.with_name(f"{path.name}.{os.getpid()}.link")
            try:
                os.link(path, kept)
            except FileExistsError:
                os.link(kept, beside)
                os.replace(beside, path)
                saved += state.st_size
    return saved


def main() -> None:
    """Link the environments that are named on the command line."""
    for name in sys.argv[1:]:
        saved = link_equal_files(Path(name), STORE)
        sys.stdout.write(f"{name}: {saved >> 20} MiB are there already\n")


if __name__ == "__main__":
    main()
