"""The weights in Moses's configuration files, whatever model they are of."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from torchtune_smt.core.text import finite_number, split_words
from torchtune_smt.models.ini_sections import IniSections

WEIGHT_SECTIONS: Final = ("feature", "weight", "weight-file")
"""The sections that weights take."""


class LabelWeights(NamedTuple):
    """A line of ``[weight]``.

    Attributes
    ----------
    values : list of float
    line : int
        Where it stands.
    """

    values: list[float]
    line: int


def weights_of_labels(sections: IniSections) -> dict[str, LabelWeights]:
    """Return what ``[weight]`` says, by the names of features that its lines have.

    Raises
    ------
    InputError
        A line has no name, no weights or one that is no finite number, or a name comes again.
    """
    found: dict[str, LabelWeights] = {}
    for text, line in sections.lines("weight"):
        label, _, rest = text.partition("=")
        label = label.strip(" \t")
        if not label:
            raise sections.error("has no name; write `Name= 0.5`", line)
        if label in found:
            raise sections.error(f"{label} has weights already; remove one line", line)
        values = []
        for value in split_words(rest):
            number = finite_number(value)
            if number is None:
                raise sections.error(f"{value!r} is no finite number", line)
            values.append(number)
        if not values:
            raise sections.error("has no weights; write `Name= 0.5`", line)
        found[label] = LabelWeights(values, line)
    return found


def weight_file_of(sections: IniSections) -> Path | None:
    """Return the file of sparse weights; relative paths begin at the folder of the ini file.

    Raises
    ------
    InputError
        ``[weight-file]`` has no value, or several.
    """
    if "weight-file" not in sections:
        return None
    return sections.path.parent / sections.value("weight-file")[0]


def numbered(label: str, width: int) -> list[str]:
    """Return what a decoder calls the values of a feature: ``LM0_0``."""
    return [f"{label}_{i}" for i in range(width)]


def names_in_lists(label: str, width: int) -> list[str]:
    """Return what readers of Moses's n-best lists call the values of a feature.

    As `numbered`, but one value whose name has an underscore is a sparse feature there, and keeps
    its name.
    """
    return [label] if width == 1 and "_" in label else numbered(label, width)
