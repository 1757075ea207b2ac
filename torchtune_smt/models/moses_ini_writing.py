"""Writing Moses's configuration files, with tuned weights."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from torchtune_smt.core.snapshot import NamedWeights
from torchtune_smt.core.textio import atomic_writer, read_lines
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.models import moses_ini

INI: Final = "moses.ini"
"""What the file is called in a run's folder."""
SPARSE_WEIGHTS: Final = "moses.sparse.txt"
"""The file of sparse weights beside it."""


def write_moses_ini(
    path: str | os.PathLike[str],
    ini: moses_ini.MosesIni,
    weights: Mapping[str, float],
    weight_file: str | None = None,
) -> None:
    """Write a configuration file like another one, with other weights.

    What else the other one says stays as it is; in another folder, relative paths become absolute.
    `PENALTIES` that have a weight, and that the other one lacks, are added to its features.

    weights: dense weights, called as in `MosesIni.weights`, or as readers of Moses's n-best lists
        call the features; 0 for those that are not mentioned.
    weight_file: file of the sparse weights, if there are any.
    """
    widths: dict[str, int] = {}
    for name in ini.weights:
        label = name.rpartition("_")[0]
        widths[label] = widths.get(label, 0) + 1
    added = [n for n in moses_ini.PENALTIES if n not in ini.weights and weights.get(n, 0.0) != 0.0]
    widths |= {name.removesuffix("_0"): 1 for name in added}
    renamed = {moses_ini.LANGUAGE_MODEL: ini.language_model.name}
    values: dict[str, list[float]] = {}
    for label, width in widths.items():
        own = renamed.get(label, label)
        names = zip(
            moses_ini.numbered(label, width), moses_ini.names_in_lists(own, width), strict=True
        )
        values[own] = [weights.get(name, weights.get(listed, 0.0)) for name, listed in names]
    _write_like(path, ini.path, values, weight_file, [moses_ini.PENALTIES[name] for name in added])


def export_to_ini(folder: Path, ini: Path, weights: NamedWeights) -> str | None:
    """Write weights that were tuned on Moses's n-best lists as its decoder takes them.

    The folder gets a ``moses.ini`` like `ini`, which tuning began with, and, if there are sparse
    weights, ``moses.sparse.txt``; weights are called as by readers of n-best lists. Features that
    the lists do not have, such as those with ``tuneable=false`` and sparse ones that fire nowhere,
    keep the weights that they have in `ini`, whatever model that is of. Returns why nothing is
    written, if so.
    """
    if (folder / INI).exists() and (folder / INI).samefile(ini):
        return f"no {INI} is written: the one that tuning began with is in this folder"
    sections = moses_ini.Sections(ini)
    values = weights.read(None, np.arange(len(weights.features))).tolist()
    tuned = dict(zip(weights.features.names(range(len(values))), values, strict=True))
    dense = set(weights.features.names(range(weights.n_dense)))
    in_lines: dict[str, list[float]] = {}
    for label, (before, _) in sections.weight_lines().items():
        names = moses_ini.names_in_lists(label, len(before))
        in_lines[label] = [tuned.pop(n, w) for n, w in zip(names, before, strict=True)]
    lost = sorted(name for name in dense.intersection(tuned) if tuned[name] != 0.0)
    if lost:
        return (
            f"no {INI} is written: {lost[0]} has a weight, and [weight] of {ini} has no line for it"
        )
    sparse: dict[str, float] = {}
    if (file := sections.weight_file) is not None:
        known, weight = read_weights(file)
        sparse = dict(zip(known.names(range(len(known))), weight.tolist(), strict=True))
    sparse |= {name: value for name, value in tuned.items() if name not in dense}
    written = {name: value for name, value in sparse.items() if value != 0.0}
    if written:
        with atomic_writer(folder / SPARSE_WEIGHTS) as text:
            text.writelines(f"{name} {written[name]!r}\n" for name in sorted(written))
    weight_file = str((folder / SPARSE_WEIGHTS).resolve()) if written else None
    _write_like(folder / INI, ini, in_lines, weight_file)
    return None


def files_of_ini(ini: Path) -> list[Path]:
    """Return a ``moses.ini`` and the file of sparse weights that it names, if it names one."""
    file = moses_ini.Sections(ini).weight_file
    return [ini] if file is None else [ini, file]


def _write_like(
    path: str | os.PathLike[str],
    ini: Path,
    weights: Mapping[str, Sequence[float]],
    weight_file: str | None,
    features: Sequence[str] = (),
) -> None:
    """Write a file like `ini` with the lines `weights` of ``[weight]``, and more `features`."""
    section = ""
    moved = Path(path).resolve().parent != ini.resolve().parent
    with atomic_writer(path) as file:
        for line in read_lines(ini):
            begun = moses_ini.header(line)
            section = section if begun is None else begun
            if section not in ("weight", "weight-file"):
                file.write((_with_absolute_path(line, ini) if moved else line) + "\n")
            if begun == "feature":
                file.writelines(f"{feature}\n" for feature in features)
        if weight_file is not None:
            file.write(f"[weight-file]\n{weight_file}\n\n")
        file.write("[weight]\n")
        for label, values in weights.items():
            file.write(f"{label}= {' '.join(map(repr, map(float, values)))}\n")


def _with_absolute_path(line: str, ini: Path) -> str:
    """Return a line that names a file, as any folder may have it."""
    text, mark, comment = line.partition("#")
    folder = ini.resolve().parent
    text = re.sub(r"(?<!\S)path=(\S+)", lambda found: f"path={folder / found[1]}", text)
    return text + mark + comment
