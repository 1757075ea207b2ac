"""Cross-fitted language models: each training sentence is scored by one that has not seen it.

A model of all training targets has memorised them, so the feature's weight learnt on training
data would be useless elsewhere. Sentence i belongs to fold i % n; model f is estimated on all
sentences but those of fold f. Each model has the vocabulary of its own sentences: a word that
occurs in one fold only is unknown to that fold's model, as new words are in new text.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from torchtune_smt.core.accepts import integer
from torchtune_smt.core.archive import Archive, file_checksum
from torchtune_smt.core.errors import REBUILD, InputError
from torchtune_smt.lm.arpa import write_arpa
from torchtune_smt.lm.estimate import estimate, read_tokens
from torchtune_smt.lm.model import NgramModel

# Written last: a folder without it is not whole.
_MANIFEST = "folds.json"
_ARCHIVE = Archive("set of fold models", 1, REBUILD)


def fold_of(train_index: int, n_folds: int) -> int:
    """Return the fold of a training sentence, whose model has not seen it."""
    return train_index % n_folds


def build_folds(
    folder: str | PathLike[str],
    sentences: Sequence[Sequence[str]],
    n_folds: int = 10,
    order: int = 5,
    discount_fallback: tuple[float, float, float] | None = None,
    path: str | PathLike[str] | None = None,
    numbers: Sequence[int] | None = None,
) -> str:
    """Write the model of each fold, estimated on all the others' sentences, for `load_folds`.

    Returns a checksum of all models. Raises InputError: as `estimate`, or fewer sentences than
    folds.

    sentences: in the order of the training bitext.
    numbers: what counts for the fold of each sentence, in the place of its number.
    """
    folder = Path(folder)
    (folder / _MANIFEST).unlink(missing_ok=True)
    integer(2).check("n_folds", n_folds)
    if len(sentences) < n_folds:
        message = f"{len(sentences)} sentences are too few for {n_folds} folds; take fewer folds"
        raise InputError(message, path=path)
    # For all sentences at once, so that errors name the right line.
    read_tokens(sentences, path)
    checksums = []
    numbers = range(len(sentences)) if numbers is None else numbers
    for fold in range(n_folds):
        numbered = zip(numbers, sentences, strict=True)
        others = [words for i, words in numbered if fold_of(i, n_folds) != fold]
        write_arpa(_fold_path(folder, fold), estimate(others, order, discount_fallback, path))
        checksums.append(file_checksum(_fold_path(folder, fold)))
    return _ARCHIVE.write_json(folder / _MANIFEST, {"models": checksums})


def load_folds(
    folder: str | PathLike[str], *, expected: str | None = None, may_write: bool = True
) -> list[NgramModel]:
    """Load what `build_folds` wrote: model f has not seen the sentences of fold f.

    Raises InputError: the folder is not whole, or has another checksum than the `expected` one.
    """
    folder = Path(folder)
    path = folder / _MANIFEST
    if not path.is_file():
        raise InputError(f"holds no whole set of fold models; {REBUILD}", path=folder)
    manifest = _ARCHIVE.read_json(path)
    with _ARCHIVE.checking(path):
        checksums = list(manifest["models"])
    if expected not in (None, manifest["checksum"]):
        raise InputError(f"is of another model; {REBUILD}", path=path)
    return [
        NgramModel.load(_fold_path(folder, fold), expected=checksum, may_write=may_write)
        for fold, checksum in enumerate(checksums)
    ]


def _fold_path(folder: Path, fold: int) -> Path:
    return folder / f"fold-{fold}.arpa.gz"
