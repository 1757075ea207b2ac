"""Does a test notice? Small changes of meaning, one at a time, in a copy of the repository.

    python scripts/dev/mutants.py [--only TEXT] [--first N] [--last N]

`mutants.txt` beside this file is the table. For each change its tests are run until one fails;
those that none has failed for survive, and are printed at the end. A change of a kernel is compiled
anew, with all others, which takes minutes: this is no part of CI.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
TABLE: Final = Path(__file__).with_suffix(".txt")
COPIED: Final = ("torchtune_smt", "tests", "conf", "docs", "scripts", "train.py", "pyproject.toml")


@dataclass(frozen=True)
class Mutant:
    """A change of a file of the package, and the tests that must notice it."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}: {self.old} => {self.new}"

    def text(self, root: Path) -> str:
        """Return the changed file; raise ValueError where what is changed is not there once."""
        whole = (root / "torchtune_smt" / self.file).read_text("utf-8")
        if whole.count(self.old) != 1:
            raise ValueError(f"{self}: occurs {whole.count(self.old)} times")
        return whole.replace(self.old, self.new)


def mutants() -> Iterator[Mutant]:
    """Yield what the table says."""
    file, tests = "", ()
    for line in TABLE.read_text("utf-8").splitlines():
        if line.startswith("== "):
            file, _, names = line.removeprefix("== ").partition(" : ")
            tests = tuple(names.split())
        elif line and not line.startswith("# "):
            old, _, new = line.partition(" => ")
            yield Mutant(file, old, new, tests)


def killed(mutant: Mutant, copy: Path) -> bool:
    """Return whether a test fails with a change, which is taken back."""
    path = copy / "torchtune_smt" / mutant.file
    whole = path.read_text("utf-8")
    path.write_text(mutant.text(copy), "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(copy), "CI": "1"}
    try:
        done = subprocess.run(
            [*command, *(f"tests/{name}" for name in mutant.tests)],
            cwd=copy,
            env=environment,
            capture_output=True,
            # One that hangs is noticed, too.
            timeout=3600,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_text(whole, "utf-8")
    return done.returncode != 0


def main() -> int:
    """Try the changes; return 1 if one survives."""
    parser = argparse.ArgumentParser(description="Changes that a test must notice.")
    parser.add_argument("--only", default="", help="those whose line has this text")
    parser.add_argument("--first", type=int, default=0, help="number of the first (0)")
    parser.add_argument("--last", type=int, help="number of the last")
    options = parser.parse_args()
    chosen = [mutant for mutant in mutants() if options.only in str(mutant)]
    chosen = chosen[options.first : None if options.last is None else options.last + 1]
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        copy.mkdir()
        if (ROOT.parent / "shared").is_dir():
            (Path(folder) / "shared").symlink_to(ROOT.parent / "shared")
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copy / name)
            else:
                shutil.copy(ROOT / name, copy / name)
        for number, mutant in enumerate(chosen, start=options.first):
            noticed = killed(mutant, copy)
            print(f"{number} {'killed' if noticed else 'SURVIVES'} {mutant}", flush=True)
            survivors += [] if noticed else [mutant]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} are noticed")
    for mutant in survivors:
        print(f"survives: {mutant}")
    return int(bool(survivors))


if __name__ == "__main__":
    sys.exit(main())
