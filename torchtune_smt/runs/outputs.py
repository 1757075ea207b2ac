"""What is compared: the outputs of runs, and what they are of a set."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.text import BLANKS, split_fields, split_words, whole_number
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.runs.folder import RECORDS, WEIGHTS

Kind = Literal["run", "weights", "lists", "translations"]


@dataclass(frozen=True)
class Output:
    """What one run of a system left: its folder, or a file of it.

    Attributes
    ----------
    path : Path
        As it was given, or as it was found in a folder that was given.
    kind : {"run", "weights", "lists", "translations"}
    overrides : tuple of str
        Of a run's command line, its seed and Hydra's options left out.
    seed : str
        Of a run, as its command line has it.
    """

    path: Path
    kind: Kind
    overrides: tuple[str, ...] = ()
    seed: str = ""

    @property
    def folder(self) -> Path | None:
        """The run's folder, where it is known."""
        if self.kind == "run":
            return self.path
        return self.path.parent if self.kind == "weights" else None

    @property
    def weights(self) -> Path | None:
        """The file of its weights, where it is known."""
        if self.kind == "run":
            return self.path / WEIGHTS
        return self.path if self.kind == "weights" else None

    @property
    def is_recorded(self) -> bool:
        """Whether the run's command line, and so its seed, is known."""
        return self.folder is not None and (self.folder / RECORDS).is_dir()


class Outputs(NamedTuple):
    """What systems made of some sentences.

    Attributes
    ----------
    translations : dict of Output to list of str
        One a sentence.
    references : list of list of str
        ``references[i]``: those of sentence i.
    corpus : Corpus, optional
        The set that was translated, where the data are known.
    lists : dict of Output to list of list of str
        All hypotheses of each sentence, where there are lists.
    """

    translations: dict[Output, list[str]]
    references: list[list[str]]
    corpus: Corpus | None
    lists: dict[Output, list[list[str]]]


def is_list_line(line: str) -> bool:
    """Return whether a line is one of an n-best list, by its first fields."""
    fields = split_fields(line)
    return len(fields) > 2 and whole_number(fields[0].strip(BLANKS)) is not None


def check_text(path: str | os.PathLike[str], lines: Sequence[str]) -> None:
    """Raise InputError if a file is in another form than plain text, a sentence a line."""
    filled = [line.strip() for line in lines if line.strip()]
    for form, has in _FORMS.items():
        # What is written over several lines is a whole alone.
        several = form in ("JSON", "markup") and has("\n".join(filled))
        if filled and (several or all(map(has, filled))):
            raise InputError(
                f"holds {form}, and no plain text; write one sentence a line, and nothing else",
                path=path,
            )


def _is_json(text: str) -> bool:
    try:
        return text[:1] in ("{", "[", '"') and json.loads(text) is not None
    except (ValueError, RecursionError):
        return _PYTHON.fullmatch(text) is not None


# A list of strings as Python prints it.
_PYTHON: Final = re.compile(r"""\[("[^"]*"|'[^']*')(, ("[^"]*"|'[^']*'))*\]""")
_NUMBER: Final = re.compile(r"[-+]?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?|nan|[-+]?inf")
# What all lines of a file may have, and those of a text do not.
_FORMS: Final[Mapping[str, Callable[[str], object]]] = {
    "JSON": _is_json,
    "fields between ||| (an n-best list begins with the number of the sentence)": (
        lambda line: "|||" in split_words(line)
    ),
    "columns between tabs": lambda line: "\t" in line,
    "markup": re.compile(r"(<[?!][^>]*>\s*)*<(\w+)\b.*</\2>", re.S).fullmatch,
    "numbers": lambda line: all(map(_NUMBER.fullmatch, split_words(line))),
}
