"""`art WORD...` as a module with these words, in a process that dies with its parent."""

from __future__ import annotations

from art.process.environment import die_with_parent


def main() -> None:
    """Runs the command line."""
    die_with_parent()
    from art.cli import app

    app()


if __name__ == "__main__":
    main()
