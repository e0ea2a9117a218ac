"""`python -m art`: the command `art`, where its script is not on the PATH."""

from art.cli import app

if __name__ == "__main__":
    app(prog_name="art")
