"""How the scripts beside this file find the commands."""

import sys

try:
    from torchtune_smt.cli import main
except ModuleNotFoundError as error:
    sys.exit(
        f"error: the module {error.name} is missing; is the environment active that the package is "
        "installed in (source .venv/bin/activate)?"
    )

__all__ = ["main"]
