"""Checkpoints: everything that a killed run needs to go on as if nothing had happened."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from torchtune_smt.core.checks import DAMAGED, well_formed, whole
from torchtune_smt.core.container import read_container, write_container
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.state import Packed, packed, unpacked, vector
from torchtune_smt.core.weights import Weights
from torchtune_smt.runs.name_file import NameFile
from torchtune_smt.runs.rounds import Callback, Rounds
from torchtune_smt.runs.step_files import StepFiles
from torchtune_smt.tuners.base import Report, Tuner

_VERSION: Final = 5
_KIND: Final = "checkpoint"
_CURE: Final = "start the run anew"

Files = Mapping[str, Mapping[str, str]]
"""Checksums of the files that a run has read, by their paths; those by the option naming them."""


def save_checkpoint(
    path: str | os.PathLike[str],
    weights: Weights,
    state: Rounds | Tuner,
    fingerprint: dict[str, str],
    names: NameFile | None = None,
    files: Files | None = None,
) -> str:
    """Write a checkpoint, whole or not at all, and the names that are new to a file beside it.

    Returns its checksum.

    Weights are written as they are, updates that were put off still being put off: bringing them
    up to date here would round them at other moments than an undisturbed run does.

    Parameters
    ----------
    state : Rounds or Tuner
        What changes them.
    fingerprint : dict of str
        What the run depends on (see `load_checkpoint`).
    names : NameFile, optional
        Of the run's earlier checkpoints; without it all names are written.
    files : mapping, optional
        What the run has read (see `load_checkpoint`).

    Raises
    ------
    InputError
        A file cannot be written, as on a full disk; the last checkpoint is still there. Or the
        tuner, of a user's class, has something in its state that cannot be saved.
    """
    # First of all: the checkpoint says that they are there.
    names = names or NameFile.of(path)
    recorded = names.append(weights.features)
    content = {
        "fingerprint": fingerprint,
        "files": {option: dict(some) for option, some in (files or {}).items()},
        "n_dense": weights.n_dense,
        "weights": weights.parameter,
        "state": state.state_dict(),
    }
    tree, arrays = _packed(content, state, recorded["count"])
    return write_container(path, _KIND, _VERSION, {"names": recorded, "run": tree}, arrays)


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
    path: str | os.PathLike[str],
    weights: Weights,
    state: Rounds | Tuner,
    fingerprint: dict[str, str],
    files: Files | None = None,
    lacking: Mapping[str, str] | None = None,
) -> NameFile:
    """Restore weights, and a run that changes them, from a checkpoint; return its names' file.

    Steps that a run took after it are taken again; see `StepFiles`.

    Nothing in the files is executed, and all of it is checked before weights or run change.

    Parameters
    ----------
    weights : Weights
        Fresh, with the dense features of the run's decoder, and the sparse ones that the run
        began with.
    state : Rounds or Tuner
        With the settings of the run; an optimizer is one of the weights' parameter.
    fingerprint : dict of str
        What this run depends on: what differs from the checkpoint's is an error that names it, the
        first of these.
    files : mapping, optional
        What this run has read: their content must be that of the checkpoint's. Those of an option
        that a checkpoint, as one of an earlier version, has none of are taken as they are.
    lacking : dict of str, optional
        What is wrong, and the cure, where a checkpoint has nothing of a name of the fingerprint.

    Raises
    ------
    InputError
        A file is missing, damaged, or of another run.
    """
    if not Path(path).exists():
        raise InputError(
            "there is no checkpoint; the run had not come so far, start it anew", path=path
        )
    stored = read_container(path, _KIND, _VERSION, cure=_CURE)
    names = NameFile.of(path)
    try:
        with well_formed():
            features = names.read(stored.content["names"], _CURE)
            content = unpacked(stored.content["run"], stored.arrays, len(features))
            recorded = dict(content["fingerprint"])
            read = {option: _checksums(some) for option, some in content.get("files", {}).items()}
            n_dense = whole(content["n_dense"], 0, len(features))
            values = vector(content["weights"], weights.parameter.dtype, len(features))
            saved = content["state"]
    except InputError:
        raise
    except ValueError:
        raise InputError(f"{DAMAGED}; {_CURE}", path=path) from None
    for name in [*fingerprint, *sorted(recorded.keys() - fingerprint.keys(), key=str)]:
        old, new = recorded.get(name), fingerprint.get(name)
        if old is None and new is not None and name in (lacking or {}):
            raise InputError((lacking or {})[name], path=path)
        if old != new:
            raise InputError(
                f"is of a run with {name} = {old}, and now it is {new}; resume with the same",
                path=path,
            )
    for option, some in (files or {}).items():
        _check_files(option, read.get(option, some), some)
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
    # The run is told how many weights there are, and may still refuse.
    weights.features.intern_spans(*spans)
    weights.grow()
    try:
        state.load_state_dict(saved)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"does not fit the run: {error}; {_CURE}", path=path) from None
    with torch.no_grad():
        # Features met after the weights were last read have a name already and no weight yet.
        weights.parameter[: values.numel()] = values.to(weights.parameter.device)
    if isinstance(state, Rounds):
        for step in StepFiles.of(path).read(stored.checksum):
            with step.checked():
                weights.features.intern_spans(*step.names.spans(np.arange(len(step.names))))
                weights.grow()
                state.redo(step.change)
    return names


def _checksums(found: Any) -> dict[str, str]:
    """Return the checksums of the files of an option; raise ValueError if they are none."""
    if not all(type(entry) is str for pair in found.items() for entry in pair):
        raise ValueError(DAMAGED)
    return dict(found)


def _check_files(option: str, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise InputError if the files of an option are not what a run has read.

    They may lie elsewhere: those of a set that has a name are looked for in several folders.
    """
    if list(before.values()) == list(now.values()):
        return
    if len(now) != len(before):
        more, fewer = (now, before) if len(now) > len(before) else (before, now)
        known = {Path(path).name for path in fewer}
        raise InputError(
            f"was not there when the run began, and is one of the files of {option} now; take it "
            f"away, or {_CURE}"
            if more is now
            else f"was one of the files of {option} when the run began, and is not there now; put "
            f"it back, or {_CURE}",
            path=next((path for path in more if Path(path).name not in known), list(more)[-1]),
        )
    raise InputError(
        f"has changed since the run began, and is one of the files of {option}; put it back as it "
        f"was, or {_CURE}",
        path=next(p for p, old in zip(now, before.values(), strict=True) if now[p] != old),
    )


@dataclass(eq=False)
class Checkpoints(Callback):
    """Saves a run after each round, after each part that takes long, and now and then.

    In between it keeps single steps, of tuners that can say what they are.

    Parameters
    ----------
    path : path
    fingerprint : dict of str
        See `load_checkpoint`.
    minutes : float
        A step is saved if the last time was so long ago: all weights are looked at, which may be
        millions.
    names : NameFile, optional
        That of the checkpoint from which the run goes on.
    files : mapping
        See `load_checkpoint`.
    """

    path: str | os.PathLike[str]
    fingerprint: dict[str, str]
    minutes: float = 1.0
    names: NameFile | None = None
    files: Files = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = self.names or NameFile.of(self.path)
        self._steps = StepFiles.of(self.path)

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
