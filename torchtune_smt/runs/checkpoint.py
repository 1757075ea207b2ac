"""Checkpoints: everything that a killed run needs to go on as if nothing had happened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from torchtune_smt.core.container import read_container, write_container
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.state import DAMAGED, packed, unpacked, vector, well_formed, whole
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights
from torchtune_smt.runs.epochs import Best, Progress, check_progress

_VERSION: Final = 3
_KIND: Final = "checkpoint"
_CURE: Final = "start the run anew"


class Stateful(Protocol):
    """What a tuner has besides weights and progress: its optimizer, say."""

    def state_dict(self) -> dict[str, Any]:
        """Return numbers, strings and tensors."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take over what `state_dict` gave; raise ValueError, before anything, if it is not whole.

        It may come from a file: all kinds, lengths and ranges are to be checked.
        """
        ...


def save_checkpoint(
    path: str | os.PathLike[str],
    weights: Weights,
    tuner: Stateful,
    progress: Progress,
    fingerprint: dict[str, str],
) -> None:
    """Write a checkpoint, whole or not at all.

    Weights are written as they are, updates that were put off still being put off: bringing them
    up to date here would round them at other moments than an undisturbed run does.

    Parameters
    ----------
    tuner : Stateful
        Its optimizer, say.
    fingerprint : dict of str
        What the run depends on (see `load_checkpoint`).

    Raises
    ------
    InputError
        The file cannot be written, as on a full disk; the last checkpoint is still there.
    """
    names = {name: torch.from_numpy(a) for name, a in weights.features.to_arrays().items()}
    best = progress.best
    content = {
        "fingerprint": fingerprint,
        "features": names,
        "n_dense": weights.n_dense,
        "weights": weights.parameter,
        "tuner": tuner.state_dict(),
        "epoch": progress.epoch,
        "batches": progress.batches,
        "sentences": progress.sentences,
        "stale_epochs": progress.stale_epochs,
        "records": progress.records,
        "moved": progress.moved,
        "last": progress.last,
        "total": progress.total,
        "best": None if best is None else (best.epoch, best.score, best.weights),
    }
    write_container(path, _KIND, _VERSION, *packed(content))


def load_checkpoint(
    path: str | os.PathLike[str],
    weights: Weights,
    tuner: Stateful,
    fingerprint: dict[str, str],
) -> Progress:
    """Restore weights and tuner from a checkpoint and return where the run was.

    Nothing in the file is executed, and all of it is checked before weights or tuner change.

    Parameters
    ----------
    weights : Weights
        Fresh, with the dense features of the run's decoder.
    tuner : Stateful
        With the settings of the run; an optimizer is one of the weights' parameter.
    fingerprint : dict of str
        What this run depends on: what differs from the checkpoint's is an error that names it.

    Raises
    ------
    InputError
        The file is missing, damaged, or of another run.
    """
    if not Path(path).exists():
        raise InputError(
            "there is no checkpoint; the run had not come so far, start it anew", path=path
        )
    stored = read_container(path, _KIND, _VERSION, cure=_CURE)
    try:
        content = unpacked(stored.content, stored.arrays)
        with well_formed():
            recorded = dict(content["fingerprint"])
            names = {name: t.numpy() for name, t in content["features"].items()}
            features = Vocabulary.from_arrays(names)
            n_dense = whole(content["n_dense"], 0, len(features))
            values = vector(content["weights"], weights.parameter.dtype, len(features))
            best = content["best"]
            progress = Progress(
                epoch=content["epoch"],
                batches=content["batches"],
                sentences=content["sentences"],
                best=None if best is None else Best(*best),
                total=content["total"],
                stale_epochs=content["stale_epochs"],
                records=content["records"],
                moved=content["moved"],
                last=content["last"],
            )
            check_progress(progress, weights.parameter.dtype, len(features))
            state = content["tuner"]
    except ValueError:
        raise InputError(f"{DAMAGED}; {_CURE}", path=path) from None
    for name in sorted(recorded.keys() | fingerprint.keys(), key=str):
        old, new = recorded.get(name), fingerprint.get(name)
        if old != new:
            raise InputError(
                f"is of a run with {name} = {old}, and now it is {new}; resume with the same",
                path=path,
            )
    if features.names(range(n_dense)) != weights.features.names(range(weights.n_dense)):
        raise InputError("is of a model with other dense features", path=path)
    # The tuner is told how many weights there are, and may still refuse.
    weights.features.intern(features.names(range(len(features))))
    weights.grow()
    try:
        tuner.load_state_dict(state)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"does not fit the tuner: {error}", path=path) from None
    with torch.no_grad():
        # Features met after the weights were last read have a name already and no weight yet.
        weights.parameter[: values.numel()] = values.to(weights.parameter.device)
    return progress
