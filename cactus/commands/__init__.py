"""The commands of `python -m cactus`: one module each, with `add_arguments` and `run`."""
