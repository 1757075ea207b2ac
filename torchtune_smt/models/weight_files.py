"""Weights of any file that is read: this package's and cdec's, or Moses's configuration."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.text import split_words
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.models.ini_sections import IniSections
from torchtune_smt.models.ini_weights import (
    WEIGHT_SECTIONS,
    names_in_lists,
    numbered,
    weight_file_of,
    weights_of_labels,
)
from torchtune_smt.models.moses_ini import (
    LANGUAGE_MODEL,
    LANGUAGE_MODELS,
    UNKNOWN_WORDS,
    UNKNOWN_WORDS_DEFAULT,
)


def read_any_weights(
    path: str | os.PathLike[str], *, phrase_decoder: bool = False
) -> tuple[Vocabulary, Float64]:
    """Read a weights file, or the weights of a ``moses.ini`` and of the file that it names.

    The model of a ``moses.ini`` is nobody's concern here: it may be of any decoder, with features
    that are not supported.

    Parameters
    ----------
    path : path
        A file of Moses's if it ends in ``.ini``.
    phrase_decoder : bool
        Whether features are called as by `PhraseDecoder`, where the language model is ``LM0``
        whatever its name, and not as in the n-best lists that Moses writes.

    Returns
    -------
    names : Vocabulary
        In the order of the file: names[i] has the weight values[i].
    values : float64 array

    Raises
    ------
    InputError
        A file is missing or bad (`read_weights`, `weights_of_labels`), a ``moses.ini`` has no
        weights, or a feature has a weight twice.
    """
    if Path(path).suffix != ".ini":
        return read_weights(path)
    sections = IniSections(Path(path), WEIGHT_SECTIONS)
    dense, lines = _weights_of_ini(sections, phrase_decoder)
    names, values = Vocabulary(dense), np.array(list(dense.values()))
    file = weight_file_of(sections)
    if file is None:
        return names, values
    if not file.exists():
        message = f"there is no file {file}; put it there, or name the one with the sparse weights"
        raise sections.error(message, sections.value("weight-file")[1])
    sparse, more = read_weights(file)
    named = sparse.names(range(len(sparse)))
    for name in named:
        if name in lines:
            raise sections.error(
                f"{name} has a weight in {file} as well; remove one of them", lines[name]
            )
    names.intern(named)
    return names, np.concatenate([values, more])


def _weights_of_ini(
    sections: IniSections, phrase_decoder: bool
) -> tuple[dict[str, float], dict[str, int]]:
    """Return what ``[weight]`` says, and the line of each weight."""
    if "weight" not in sections:
        raise sections.error("has no section [weight]; add it, with a line `Name= 0.5` a feature")
    labels = weights_of_labels(sections)
    if not labels:
        message = "[weight] is empty; write a line `Name= 0.5` for each feature"
        raise sections.error(message, sections.begin("weight"))
    own = _names_in_decoder(sections) if phrase_decoder else {}
    weights: dict[str, float] = {}
    lines: dict[str, int] = {}
    for label, (values, line) in labels.items():
        width = len(values)
        names = numbered(own[label], width) if label in own else names_in_lists(label, width)
        for name, value in zip(names, values, strict=True):
            if name in lines:
                raise sections.error(
                    f"{name} has a weight already, in line {lines[name]}; remove one of them", line
                )
            weights[name], lines[name] = value, line
    if UNKNOWN_WORDS in own:
        weights.setdefault(f"{UNKNOWN_WORDS}_0", UNKNOWN_WORDS_DEFAULT)
    return weights, lines


def _names_in_decoder(sections: IniSections) -> dict[str, str]:
    """Return what the phrase-based decoder calls the features that ``[feature]`` names."""
    names: dict[str, str] = {}
    language_models = []
    counts: dict[str, int] = {}
    for text, _ in sections.lines("feature"):
        kind, *settings = split_words(text)
        number = counts.get(kind, 0)
        counts[kind] = number + 1
        given = [word.removeprefix("name=") for word in settings if word.startswith("name=")]
        label = given[0] if given else f"{kind}{number}"
        names[label] = label
        if kind in LANGUAGE_MODELS:
            language_models.append(label)
    # Which of several is meant, nobody can say.
    if len(language_models) == 1:
        names[language_models[0]] = LANGUAGE_MODEL
    return names
