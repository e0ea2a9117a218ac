"""Makes the nano models that ship with the package: `python -m nano.build --model nano-games`."""
