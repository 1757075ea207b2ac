"""Checkpoints: everything that a killed run needs to go on as if nothing had happened."""

from __future__ import annotations

import os
import pickle
from typing import Any, Protocol

import torch

from torchtune_smt.errors import InputError
from torchtune_smt.textio import atomic_path
from torchtune_smt.tuners.epochs import Best, Progress
from torchtune_smt.vocabulary import Vocabulary
from torchtune_smt.weights import Weights

_VERSION = 2


class Stateful(Protocol):
    """What a tuner has besides weights and progress: its optimizer, say."""

    def state_dict(self) -> dict[str, Any]:
        """Return numbers, strings and tensors."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take over what `state_dict` gave; raise ValueError or KeyError if it does not fit."""
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
    """
    names = {name: torch.from_numpy(a) for name, a in weights.features.to_arrays().items()}
    best = progress.best
    content = {
        "version": _VERSION,
        "fingerprint": fingerprint,
        "features": names,
        "n_dense": weights.n_dense,
        "weights": weights.parameter.detach(),
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
    with atomic_path(path) as beside:
        torch.save(content, beside)


def load_checkpoint(
    path: str | os.PathLike[str],
    weights: Weights,
    tuner: Stateful,
    fingerprint: dict[str, str],
) -> Progress:
    """Restore weights and tuner from a checkpoint and return where the run was.

    Nothing in the file is executed (``weights_only``).

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
    try:
        content: dict[str, Any] = torch.load(path, weights_only=True)
        version, recorded = content["version"], content["fingerprint"]
    except FileNotFoundError:
        raise InputError(
            "there is no checkpoint; the run had not come so far, start it anew", path=path
        ) from None
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, pickle.UnpicklingError):
        raise InputError("is damaged or no checkpoint; start the run anew", path=path) from None
    if version != _VERSION:
        raise InputError(
            f"is of version {version}, and this package writes {_VERSION}; start the run anew",
            path=path,
        )
    for name in sorted(recorded.keys() | fingerprint.keys()):
        old, new = recorded.get(name), fingerprint.get(name)
        if old != new:
            raise InputError(
                f"is of a run with {name} = {old}, and now it is {new}; resume with the same",
                path=path,
            )
    features = Vocabulary.from_arrays(
        {name: tensor.numpy() for name, tensor in content["features"].items()}
    )
    if features.names(range(content["n_dense"])) != weights.features.names(range(weights.n_dense)):
        raise InputError("is of a model with other dense features", path=path)
    weights.features.intern(features.names(range(len(features))))
    weights.grow()
    parameter = weights.parameter
    # Features met after the weights were last read have a name already and no weight yet.
    stored = content["weights"]
    with torch.no_grad():
        parameter[: stored.numel()] = stored.to(parameter.device)
    try:
        tuner.load_state_dict(content["tuner"])
    except InputError:
        raise
    except (ValueError, KeyError) as error:
        raise InputError(f"does not fit the tuner: {error}", path=path) from None
    best = content["best"]
    return Progress(
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
