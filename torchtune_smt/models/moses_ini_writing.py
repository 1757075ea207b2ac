"""Writing Moses's configuration files, with tuned weights."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from torchtune_smt.core.textio import atomic_writer, read_lines
from torchtune_smt.models.ini_lines import header
from torchtune_smt.models.ini_weights import names_in_lists, numbered
from torchtune_smt.models.moses_ini import LANGUAGE_MODEL, PENALTIES, MosesIni

INI: Final = "moses.ini"
"""What the file is called in a run's folder."""


def write_moses_ini(
    path: str | os.PathLike[str],
    ini: MosesIni,
    weights: Mapping[str, float],
    weight_file: str | None = None,
) -> None:
    """Write a configuration file like another one, with other weights.

    What else the other one says stays as it is; in another folder, relative paths become absolute.
    `PENALTIES` that have a weight, and that the other one lacks, are added to its features.

    Parameters
    ----------
    ini : MosesIni
    weights : mapping of str to float
        Dense weights, called as in `MosesIni.weights`, or as readers of Moses's n-best lists call
        the features; 0 for those that are not mentioned.
    weight_file : str, optional
        File of the sparse weights, if there are any.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    widths: dict[str, int] = {}
    for name in ini.weights:
        label = name.rpartition("_")[0]
        widths[label] = widths.get(label, 0) + 1
    added = [n for n in PENALTIES if n not in ini.weights and weights.get(n, 0.0) != 0.0]
    widths |= {name.removesuffix("_0"): 1 for name in added}
    renamed = {LANGUAGE_MODEL: ini.language_model.name}
    values: dict[str, list[float]] = {}
    for label, width in widths.items():
        own = renamed.get(label, label)
        names = zip(numbered(label, width), names_in_lists(own, width), strict=True)
        values[own] = [weights.get(name, weights.get(listed, 0.0)) for name, listed in names]
    write_like(path, ini.path, values, weight_file, [PENALTIES[name] for name in added])


def write_like(
    path: str | os.PathLike[str],
    ini: Path,
    weights: Mapping[str, Sequence[float]],
    weight_file: str | None = None,
    features: Sequence[str] = (),
) -> None:
    """Write a configuration file like another one, whatever model that is of.

    What it says besides weights stays as it is; in another folder, relative paths become absolute.

    Parameters
    ----------
    ini : Path
        The other one.
    weights : mapping of str to sequence of float
        What the lines of ``[weight]`` say.
    weight_file : str, optional
        File of the sparse weights, if there are any.
    features : sequence of str
        Lines that ``[feature]`` gets.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    section = ""
    moved = Path(path).resolve().parent != ini.resolve().parent
    with atomic_writer(path) as file:
        for line in read_lines(ini):
            begun = header(line)
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
