"""Checkpoints: everything that a killed run needs to go on as if nothing had happened.

A checkpoint has all weights, and is written anew each time. Beside it lie two files that are only
appended to. Names, which may be millions, are most of what a run has to save, and those that are
there stay as they are: a checkpoint says how much of ``.names`` is its own. What lies behind that
was written by a process that died before its next checkpoint; nobody reads it, and the next names
take its place. ``.steps`` has the steps since the checkpoint, with the weights of a mini-batch
alone; those behind an earlier one say so, and nobody reads them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from torchtune_smt.core.archive import Archive, Mark, well_formed
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.leftovers import remove
from torchtune_smt.core.state import Packed, packed, unpacked
from torchtune_smt.core.textio import AnyPath
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights
from torchtune_smt.runs.rounds import Callback, Rounds
from torchtune_smt.tuners.base import Report, Tuner

_CURE: Final = "start the run anew"
ARCHIVE: Final = Archive("checkpoint", 7, _CURE)
NAMES: Final = Archive("file of names", 1, _CURE)
STEPS: Final = Archive(
    "file of steps", 1, "remove it, and the run takes the steps since its checkpoint again"
)

Files = Mapping[str, Mapping[str, str]]
"""Checksums of the files that a run has read, by their paths; those by the option naming them."""


def save_checkpoint(
    path: AnyPath,
    weights: Weights,
    state: Rounds | Tuner,
    fingerprint: dict[str, str],
    names: NameFile | None = None,
    files: Files | None = None,
) -> str:
    """Write a checkpoint, whole or not at all, and the names that are new to a file beside it.

    Weights are written as they are, updates that were put off still being put off: bringing them
    up to date here would round them at other moments than an undisturbed run does.

    state: what changes them.
    fingerprint, files: see `load_checkpoint`.
    names: of the run's earlier checkpoints; without it all names are written.

    Returns str: its checksum.

    Raises InputError: a file cannot be written, as on a full disk; the last checkpoint is still
        there. Or the tuner, of a user's class, has something in its state that cannot be saved.
    """
    # First of all: the checkpoint says that they are there.
    names = names or NameFile(path)
    recorded = names.append(weights.features)
    content = {
        "fingerprint": fingerprint,
        "files": {option: dict(some) for option, some in (files or {}).items()},
        "n_dense": weights.n_dense,
        "weights": weights.parameter,
        "state": state.state_dict(),
    }
    tree, arrays = _packed(content, state, recorded[0])
    return ARCHIVE.write(path, {"names": recorded, "run": tree}, arrays)


def _packed(content: Any, state: Rounds | Tuner, longest: int = 0) -> Packed:
    """Return what `packed` does; where it cannot, the error names the tuner."""
    try:
        return packed(content, longest)
    except TypeError as error:
        tuner = type(state if isinstance(state, Tuner) else state.tuner).__name__
        raise InputError(
            f"what state_dict of {tuner} returns cannot be saved ({error}): it may have numbers, "
            "strings, tensors and None, and dicts and lists of these"
        ) from None


def load_checkpoint(
    path: AnyPath,
    weights: Weights,
    state: Rounds | Tuner,
    fingerprint: dict[str, str],
    files: Files | None = None,
) -> NameFile:
    """Restore weights, and a run that changes them, from a checkpoint; return its names' file.

    Steps that a run took after it are taken again; see `StepFile`. Nothing of a file is executed.

    weights: fresh, with the dense features of the run's decoder, and the sparse ones that the run
        began with.
    state: with the settings of the run; an optimizer is one of the weights' parameter.
    fingerprint: what this run depends on: what differs from the checkpoint's is an error that names
        it, the first of these.
    files: what this run has read: their content must be that of the checkpoint's, as far as it has
        files of the same option.

    Raises InputError: a file is missing, damaged, or of another run.
    """
    if not Path(path).exists():
        raise InputError(
            "there is no checkpoint; the run had not come so far, start it anew", path=path
        )
    stored = ARCHIVE.read(path)
    names = NameFile(path)
    with ARCHIVE.checking(path):
        features = names.read(stored.content["names"])
        content = unpacked(stored.content["run"], stored.arrays)
        recorded, read, values = (content[name] for name in ("fingerprint", "files", "weights"))
        n_dense = content["n_dense"]
    for name in [*fingerprint, *sorted(recorded.keys() - fingerprint.keys())]:
        old, new = recorded.get(name), fingerprint.get(name)
        if old != new:
            raise InputError(
                f"is of a run with {name} = {old}, and now it is {new}; resume with the same",
                path=path,
            )
    for option, some in (files or {}).items():
        # They may lie elsewhere: those of a set that has a name are looked for in several folders.
        pairs = zip_longest(read.get(option, some).items(), some.items(), fillvalue=("", ""))
        for file in (new[0] or old[0] for old, new in pairs if old[1] != new[1]):
            raise InputError(
                f"is not as it was when the run began, and is one of the files of {option}; put "
                f"back what there was, or {_CURE}",
                path=file,
            )
    if features.names(range(n_dense)) != weights.features.names(range(weights.n_dense)):
        raise InputError("is of a model with other dense features", path=path)
    spans = features.spans(np.arange(len(features)))
    # Weights have their places: names that fresh ones have, from `init.file`, must be the first.
    known = weights.features.lookup_spans(*spans)[: len(weights.features)]
    if not np.array_equal(known, np.arange(len(weights.features))):
        raise InputError(
            "is of a run that began with other sparse features: init.file has changed; put it back "
            f"as it was, or {_CURE}",
            path=path,
        )
    weights.features.intern_spans(*spans)
    weights.grow()
    try:
        with well_formed():
            state.load_state_dict(content["state"])
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"does not fit the run: {error}; {_CURE}", path=path) from None
    with torch.no_grad():
        # Features met after the weights were last read have a name already and no weight yet.
        weights.parameter[: values.numel()] = values.to(weights.parameter.device)
    if isinstance(state, Rounds):
        StepFile(path).redo(stored.checksum, weights, state)
    return names


class NameFile:
    """The names of a run's features, in the order of their ids.

    checkpoint: the file lies beside it. Nothing is read or written before `append` or `read`.
    """

    def __init__(self, checkpoint: AnyPath) -> None:
        self.path = Path(checkpoint).with_suffix(".names")
        # What is in the file and belongs to the run.
        self._count = 0
        self._mark = Mark()

    def append(self, features: Vocabulary) -> list[Any]:
        """Write the names that are new; return what a checkpoint is to say of the file."""
        new = features.since(self._count)
        if new["length"].size or not self._mark.size:
            self._mark = NAMES.append(self.path, self._mark, {}, new)
            self._count += new["length"].size
        return [self._count, *self._mark]

    def read(self, recorded: Any) -> Vocabulary:
        """Return the names that belong to a checkpoint; `append` then goes on behind them.

        Raises InputError: the file is missing, too short, or not as it was written.
        """
        self._count, *mark = recorded
        self._mark = Mark(*mark)
        parts = NAMES.parts(self.path, mark=self._mark)
        return Vocabulary.of_parts([part.arrays for part in parts])


class StepFile:
    """The steps since a checkpoint: what a killed run need not compute again.

    checkpoint: the file lies beside it. Nothing is read or written before a method is called.
    """

    def __init__(self, checkpoint: AnyPath) -> None:
        self.path = Path(checkpoint).with_suffix(".steps")
        # Without a checkpoint no step can be kept.
        self._mark: Mark | None = None
        self._names = 0

    def begin(self, checkpoint: str, names: int) -> None:
        """Forget the steps before a checkpoint, of some checksum and number of names."""
        self._mark, self._names = Mark(0, checkpoint), names
        remove(self.path)

    def append(self, features: Vocabulary, change: Any) -> bool:
        """Keep a step; returns False where there is no checkpoint that it could follow.

        A power cut may leave a damaged one: to wait for the disk at each step would cost more than
        to take that one again.
        """
        if self._mark is None:
            return False
        tree, arrays = packed(change)
        # Other threads may add names meanwhile.
        new = features.since(self._names)
        self._mark = STEPS.append(self.path, self._mark, tree, arrays | new, durable=False)
        self._names += new["length"].size
        return True

    def redo(self, checkpoint: str, weights: Weights, run: Rounds) -> None:
        """Take the steps since a checkpoint, of some checksum, again."""
        if not self.path.exists():
            return
        for step in STEPS.parts(self.path, checkpoint):
            with STEPS.checking(self.path):
                names = Vocabulary.of_parts([step.arrays])
                weights.features.intern_spans(*names.spans(np.arange(len(names))))
                weights.grow()
                run.redo(unpacked(step.content, step.arrays))


@dataclass(eq=False)
class Checkpoints(Callback):
    """Saves a run after each round, after each part that takes long, and now and then.

    In between it keeps single steps, of tuners that can say what they are.

    fingerprint: see `load_checkpoint`.
    minutes: a step is saved if the last time was so long ago: all weights are looked at, which may
        be millions.
    names: that of the checkpoint from which the run goes on.
    files: see `load_checkpoint`.
    """

    path: AnyPath
    fingerprint: dict[str, str]
    minutes: float = 1.0
    names: NameFile | None = None
    files: Files = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = self.names or NameFile(self.path)
        self._steps = StepFile(self.path)

    def on_start(self, run: Rounds) -> None:
        """Begin to count the minutes; a tuner of a user's class may have what cannot be saved."""
        if not run.progress.sentences:
            _packed(run.tuner.state_dict(), run)
        self._saved = time.perf_counter()

    def on_report(self, report: Report, run: Rounds) -> None:
        """Save the run, if it is worth it."""
        features = run.tuner.weights.features
        if report.kind == "step" and time.perf_counter() - self._saved < 60 * self.minutes:
            step = run.step_dict()
            if step is None or self._steps.append(features, step):
                return
        checksum = save_checkpoint(
            self.path, run.tuner.weights, run, self.fingerprint, self.names, self.files
        )
        self._steps.begin(checksum, len(features))
        self._saved = time.perf_counter()
