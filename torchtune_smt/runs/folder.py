"""Who may write to a run's folder: one run at a time, and no second one over the first."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.leftovers import remove

CHECKPOINT: Final = "checkpoint.pt"
# Of the features, beside it; of no use without it.
NAMES: Final = "checkpoint.names"
STEPS: Final = "checkpoint.steps"
WEIGHTS: Final = "weights.txt.gz"
LISTS: Final = "lists"
LOG: Final = "train.log"
METRICS: Final = "metrics.jsonl"
COMPOUNDS: Final = "compounds.tsv.gz"
GROUPS: Final = "groups.tsv.gz"
REPORT: Final = "report.html"
RECORDS: Final = ".hydra"
# The overrides of a finished run that is being made longer; what it has is of those beside them.
LONGER: Final = f"{RECORDS}/longer.yaml"
# What else a run has written when it has come as far as its first checkpoint, or to its end.
_OTHERS: Final = (
    *("*.translations.txt", GROUPS, REPORT, COMPOUNDS, "config.yaml"),
    *("moses.ini", "moses.sparse.txt"),
)

# What a run has written, or removed, before that.
_FIRST: Final = (
    *(LOG, METRICS, NAMES, "tensorboard"),
    *(f"{LISTS}/iteration-*", f"{LISTS}/*/iteration-*"),
)

# All that a run writes or removes.
_OWN: Final = (WEIGHTS, CHECKPOINT, STEPS, RECORDS, *_OTHERS, *_FIRST)


def is_of_runs(name: str) -> bool:
    """Return whether something of a name in a run's folder is what runs write or remove."""
    return any(fnmatchcase(name, own.partition("/")[0]) for own in _OWN)


def is_of_sweeps(name: str) -> bool:
    """Return whether something of a name in a sweep's folder is what sweeps write."""
    return name.isdecimal() or name in ("multirun.yaml", REPORT)


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, of which is asked whether the run may write to it.

    option: the one that chooses another folder.
    """

    path: Path
    option: str = "hydra.run.dir"

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep other runs out of a folder, where the file system has locks.

        Raises InputError: another run is at work there.
        """
        handle = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    "another run is at work in this folder; wait for its end, or choose another "
                    f"{self.option}",
                    path=self.path,
                ) from None
            except OSError:
                pass
            yield
        finally:
            os.close(handle)

    def check_name(self) -> None:
        """Raise InputError if a folder cannot be that of a run: its files name it in UTF-8."""
        try:
            str(self.path).encode("utf-8")
        except UnicodeEncodeError:
            raise InputError(
                f"this name is not valid UTF-8; choose another {self.option}, or rename the folder "
                "at fault",
                path=self.path,
            ) from None

    def check_unused(self, how_to_go_on: str) -> None:
        """Raise InputError if a folder holds a run: its files would mix with those of a new one."""
        if is_finished(self.path):
            found, cure = "a finished run", f"choose another {self.option}"
        elif (self.path / CHECKPOINT).exists():
            found, cure = "a run that was stopped", how_to_go_on
        else:
            return
        raise InputError(f"holds {found}; {cure}, or empty it with overwrite=true", path=self.path)

    def check_foreign(self, kept: Collection[Path] = ()) -> None:
        """Raise InputError if a folder without a run has files that one would write over.

        kept: files that the run leaves alone, wherever they are; so in `check_not_read`.
        """
        begun = (WEIGHTS, CHECKPOINT, f"{RECORDS}/overrides.yaml")
        if any((self.path / one).exists() for one in begun):
            return
        for pattern in (*_OTHERS, *_FIRST):
            for path in sorted(self.path.glob(pattern)):
                # An empty one may be what the shell has just made for the output of this command.
                empty_file = path.is_file() and path.stat().st_size == 0
                if not empty_file and not any(path.samefile(one) for one in kept):
                    raise InputError(
                        "is of no run, and one in this folder would write over it; move it away, "
                        f"or choose another {self.option}",
                        path=path,
                    )

    def check_model_apart(self, model: Path) -> None:
        """Raise InputError if a model that is built would have the run's folder for its own."""
        if os.path.realpath(self.path) == os.path.realpath(model):
            raise InputError(
                "is model.folder and the folder of the run, and each needs its own; choose another "
                f"{self.option}",
                path=model,
            )

    def check_not_read(self, read: Iterable[tuple[str, Path]], kept: Collection[Path] = ()) -> None:
        """Raise InputError if a run would remove a file that it reads, or write over it.

        read: the files, each with the option that names it.
        """
        names = {_identity(path): name for name, path in read if path.is_file()}
        for path in kept:
            names.pop(_identity(path), None)
        for pattern in _OWN if names else ():
            for found in sorted(self.path.glob(pattern)):
                for path in [found, *found.rglob("*")]:
                    if path.is_file() and _identity(path) in names:
                        raise InputError(
                            f"is a file that is read ({names[_identity(path)]}), and a run in this "
                            f"folder would remove it, or write over it; move it away, or choose "
                            f"another {self.option}",
                            path=path,
                        )


def is_finished(folder: Path) -> bool:
    """Return whether the run in a folder has ended, and is not being made longer since."""
    return (folder / WEIGHTS).exists() and not (folder / LONGER).exists()


def _identity(path: Path) -> tuple[int, int]:
    """Return what tells a file from others, whatever names and links lead to it."""
    status = path.stat()
    return status.st_dev, status.st_ino


def empty(folder: Path, kept: Collection[Path] = ()) -> None:
    """Remove what a run has written, but for its records and what the next one reads at its end.

    Where there is no run, files of such names are the user's.
    """
    if not (folder / WEIGHTS).exists() and not (folder / CHECKPOINT).exists():
        return
    # It needs numpy, without which help is printed at once.
    from torchtune_smt.core.textio import writing

    for pattern in (WEIGHTS, CHECKPOINT, NAMES, LONGER, *_OTHERS):
        for path in folder.glob(pattern):
            if not any(path.samefile(one) for one in kept):
                with writing(path):
                    path.unlink()
    remove(folder / STEPS)
    remove_lists(folder)


def remove_lists(folder: Path) -> None:
    """Remove the lists of a run, and nothing else that may lie among them."""
    lists = folder / LISTS
    for pattern in ("iteration-*", ".iteration-*"):
        for path in [*lists.glob(pattern), *lists.glob(f"*/{pattern}")]:
            remove(path)
    for path in [*lists.glob("*/"), lists]:
        with suppress(OSError):
            path.rmdir()
