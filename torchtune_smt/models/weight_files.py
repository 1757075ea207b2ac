"""Weights of any file that is read: this package's and cdec's, or Moses's configuration."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.models.moses_ini import read_moses_ini


def read_any_weights(path: str | os.PathLike[str]) -> tuple[Vocabulary, Float64]:
    """Read a weights file, or the weights of a ``moses.ini`` and of the file that it names.

    Parameters
    ----------
    path : path
        A file of Moses's if it ends in ``.ini``.

    Returns
    -------
    names : Vocabulary
        In the order of the file: names[i] has the weight values[i].
    values : float64 array

    Raises
    ------
    InputError
        A file is missing or bad (`read_weights`, `read_moses_ini`), or both give one feature a
        weight.
    """
    if Path(path).suffix != ".ini":
        return read_weights(path)
    ini = read_moses_ini(path, binary=True)
    names, values = Vocabulary(ini.weights), np.array(list(ini.weights.values()))
    if ini.weight_file is None:
        return names, values
    sparse, more = read_weights(ini.weight_file)
    for name in sparse.names(range(len(sparse))):
        if name in names:
            raise InputError(
                f"{name} has a weight in {path} already; remove one of them", path=ini.weight_file
            )
        names.intern([name])
    return names, np.concatenate([values, more])
