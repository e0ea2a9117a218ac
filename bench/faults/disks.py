"""A disk of its own for a run, which can be full or become read-only: an ext4 file system in a file."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

SIZE_MB = 96


class SmallDisk:
    """Mounted at `folder` until `close`. Needs root and loop devices: OSError without."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "disk"
        self._image = home / "disk.img"
        self._filler = self.folder / "filler"

    def open(self) -> None:
        self.folder.mkdir()
        with self._image.open("wb") as image:
            image.truncate(SIZE_MB * 2**20)
        _do("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image))
        self._mount()

    def fill(self) -> None:
        """Leave no block free."""
        with contextlib.suppress(OSError), self._filler.open("wb", buffering=0) as filler:
            for size in (2**20, 4096):
                with contextlib.suppress(OSError):
                    while True:
                        filler.write(b"x" * size)

    def make_read_only(self) -> None:
        """Let the kernel find an error on the disk, upon which it allows no more writes.

        All that was written until now is on it: a disk that also loses that is a power cut, not this.
        """
        _do("sync", "-f", str(self.folder))
        device = Path(_do("findmnt", "-n", "-o", "SOURCE", str(self.folder)).strip()).name
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1")

    def heal(self) -> None:
        """Make room and writes possible again. No process may have a file of it open."""
        with contextlib.suppress(OSError):
            self._filler.unlink(missing_ok=True)
        _do("umount", str(self.folder))
        subprocess.run(["e2fsck", "-fy", str(self._image)], capture_output=True, check=False, timeout=60)
        self._mount()

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], capture_output=True, check=False, timeout=60)

    def _mount(self) -> None:
        _do("mount", "-o", "loop,errors=remount-ro", str(self._image), str(self.folder))


def _do(*command: str) -> str:
    """Raises OSError with what the command says."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
