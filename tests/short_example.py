"""The first lines of the bundled example in the place of all.

Hundreds of tests tune on it, and most of their time would go into sentences that say no more than
the first ones. tests/conftest.py shortens it for the commands within its process, and where a
command in another one uses their model, it imports this, or runs it: it is torchtune-smt then.
"""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

from torchtune_smt.core import resources
from torchtune_smt.data import dataset

WHOLE = resources.example_folder()
_FOLDER = "SHORT_EXAMPLE"


def _written() -> str:
    """Write the first lines to a folder, which is there as long as this process."""
    short = Path(tempfile.mkdtemp(prefix="example-"))
    atexit.register(shutil.rmtree, short, ignore_errors=True)
    for path in WHOLE.glob("*.*"):
        lines = path.read_text("utf-8").splitlines(keepends=True)
        (short / path.name).write_text("".join(lines[: 300 if path.stem == "train" else 30]))
    return str(short)


def _short_folder() -> Path:
    return Path(os.environ[_FOLDER])


if _FOLDER not in os.environ:
    os.environ[_FOLDER] = _written()
resources.example_folder = dataset.example_folder = _short_folder

if __name__ == "__main__":
    from torchtune_smt.cli import main

    sys.exit(main(sys.argv[1:]))
