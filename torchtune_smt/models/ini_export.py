"""Tuned weights in a copy of the ``moses.ini`` that they began with, whatever model it is of."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from torchtune_smt.core.snapshot import NamedWeights
from torchtune_smt.core.textio import atomic_writer
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.models.ini_sections import IniSections
from torchtune_smt.models.ini_weights import (
    WEIGHT_SECTIONS,
    names_in_lists,
    weight_file_of,
    weights_of_labels,
)
from torchtune_smt.models.moses_ini_writing import INI, write_like

SPARSE_WEIGHTS: Final = "moses.sparse.txt"
"""The file of sparse weights beside it."""


def export_to_ini(folder: Path, ini: Path, weights: NamedWeights) -> str | None:
    """Write weights that were tuned on Moses's n-best lists as its decoder takes them.

    Features that the lists do not have, such as those with ``tuneable=false`` and sparse ones that
    fire nowhere, keep the weights that they have in `ini`.

    Parameters
    ----------
    folder : Path
        Gets ``moses.ini`` and, if there are sparse weights, ``moses.sparse.txt``.
    ini : Path
        The file that tuning began with.
    weights : NamedWeights
        Called as by readers of Moses's n-best lists.

    Returns
    -------
    str, optional
        Why nothing is written.

    Raises
    ------
    InputError
        `ini` has changed meanwhile and is bad, or a file cannot be written.
    """
    if (folder / INI).exists() and (folder / INI).samefile(ini):
        return f"no {INI} is written: the one that tuning began with is in this folder"
    sections = IniSections(ini, WEIGHT_SECTIONS)
    values = weights.read(None, np.arange(len(weights.features))).tolist()
    tuned = dict(zip(weights.features.names(range(len(values))), values, strict=True))
    dense = set(weights.features.names(range(weights.n_dense)))
    in_lines: dict[str, list[float]] = {}
    for label, (before, _) in weights_of_labels(sections).items():
        names = names_in_lists(label, len(before))
        in_lines[label] = [tuned.pop(n, w) for n, w in zip(names, before, strict=True)]
    lost = sorted(name for name in dense.intersection(tuned) if tuned[name] != 0.0)
    if lost:
        return (
            f"no {INI} is written: {lost[0]} has a weight, and [weight] of {ini} has no line for it"
        )
    sparse = {name: value for name, value in tuned.items() if name not in dense}
    sparse = _sparse_before(sections) | sparse
    written = {name: value for name, value in sparse.items() if value != 0.0}
    if written:
        with atomic_writer(folder / SPARSE_WEIGHTS) as file:
            file.writelines(f"{name} {written[name]!r}\n" for name in sorted(written))
    weight_file = str((folder / SPARSE_WEIGHTS).resolve()) if written else None
    write_like(folder / INI, ini, in_lines, weight_file)
    return None


def files_of_ini(ini: Path) -> list[Path]:
    """Return a ``moses.ini`` and the file of sparse weights that it names, if it names one.

    Raises
    ------
    InputError
        It is missing or bad.
    """
    file = weight_file_of(IniSections(ini, WEIGHT_SECTIONS))
    return [ini] if file is None else [ini, file]


def _sparse_before(sections: IniSections) -> dict[str, float]:
    """Return what the file of sparse weights says that there is."""
    file = weight_file_of(sections)
    if file is None:
        return {}
    names, values = read_weights(file)
    return dict(zip(names.names(range(len(names))), values.tolist(), strict=True))
