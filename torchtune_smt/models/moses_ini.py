"""Moses's configuration files: which model, which weights."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.text import finite_number, split_words
from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.grammar.file_grammar import NO_LIMIT
from torchtune_smt.grammar.phrase_formats import refusal
from torchtune_smt.grammar.reordering import ReorderingType


def content(line: str) -> str:
    """Return what a line says: without a comment, and without blanks and tabs around it."""
    return line.split("#", 1)[0].strip(" \t")


def header(line: str) -> str | None:
    """Return the name of the section that a line begins; None if it begins none."""
    text = content(line)
    return text[1:-1] if text.startswith("[") and text.endswith("]") else None


class IniSections:
    """The lines of each section with their numbers, without comments.

    Parameters
    ----------
    path : Path
    read : container of str
        The sections that are made use of, and may stand there once.

    Raises
    ------
    InputError
        The file is missing or bad, a section that is read stands there twice, or something stands
        before the first one.
    """

    def __init__(self, path: Path, read: Container[str]) -> None:
        self.path = path
        self._begin: dict[str, int] = {}
        self._lines: dict[str, list[tuple[str, int]]] = {}
        name = None
        for number, line in enumerate(read_lines(path), start=1):
            text, begun = content(line), header(line)
            if not text:
                continue
            if begun is not None:
                name = begun
                if name in self._begin and name in read:
                    message = f"a second [{name}] (the first is in line {self._begin[name]})"
                    raise self.error(f"{message}; leave one of them", number)
                self._begin.setdefault(name, number)
                self._lines.setdefault(name, [])
            elif name is None:
                raise self.error("stands before the first [section]", number)
            else:
                self._lines[name].append((text, number))

    def __contains__(self, name: str) -> bool:
        return name in self._begin

    def error(self, message: str, line: int | None = None) -> InputError:
        """Return an error in this file."""
        return InputError(message, path=self.path, line=line)

    def begin(self, name: str) -> int:
        """Return the line in which a section begins that is there."""
        return self._begin[name]

    def lines(self, name: str) -> list[tuple[str, int]]:
        """Return what a section says; nothing if it is not there."""
        return self._lines.get(name, [])

    def value(self, name: str) -> tuple[str, int]:
        """Return the one value of a section that is there, and its line.

        Raises
        ------
        InputError
            It has none, or several.
        """
        lines = self.lines(name)
        if not lines:
            message = f"[{name}] is empty; write its value in the next line, or remove it"
            raise self.error(message, self._begin[name])
        if len(lines) > 1:
            raise self.error(f"[{name}] has a second value; leave one of them", lines[1][1])
        return lines[0]


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


# Features of one value that the decoder has itself, and those of a model's parts.
_PENALTIES: Final = ("UnknownWordPenalty", "WordPenalty", "PhrasePenalty", "Distortion")
PENALTIES: Final = {f"{kind}0_0": kind for kind in _PENALTIES}
"""Moses's own features, which need no file, by the names that the decoder has for them."""
LANGUAGE_MODELS: Final = ("KENLM", "SRILM", "IRSTLM", "RANDLM")
"""Moses's classes of language models."""
_BINARY: Final = {
    "PhraseDictionaryCompact": "a compact phrase table (processPhraseTableMin)",
    "PhraseDictionaryBinary": "a binary phrase table (processPhraseTable)",
    "PhraseDictionaryOnDisk": "a binary phrase table (CreateOnDiskPt)",
    "ProbingPT": "a binary phrase table (CreateProbingPT)",
}
_PHRASES: Final = ("PhraseDictionaryMemory", *_BINARY)
_LIMITS: Final = {
    "distortion-limit": "distortion_limit",
    "cube-pruning-pop-limit": "pop_limit",
    "stack": "stack_size",
}
# All sections that are read.
_READ: Final = (*_LIMITS, "input-factors", *WEIGHT_SECTIONS)
# What Moses writes where there is no limit.
_NONE: Final = {"distortion-limit": -1, "table-limit": 0}
LANGUAGE_MODEL: Final = "LM0"
"""What the decoder calls its language model."""
UNKNOWN_WORDS: Final = "UnknownWordPenalty0"
UNKNOWN_WORDS_DEFAULT: Final = 1.0
"""Moses's weight of unknown words where it is given none."""
_INTEGER: Final = re.compile(r"-?[0-9]{1,9}")


@dataclass(frozen=True)
class Feature:
    """A line of ``[feature]``.

    Attributes
    ----------
    kind : str
        Its class, such as ``LexicalReordering``.
    name : str
        What its weights are called.
    settings : dict of str
    line : int
        Where it stands.
    """

    kind: str
    name: str
    settings: Mapping[str, str]
    line: int


@dataclass(frozen=True)
class MosesIni:
    """A configuration file of Moses's phrase-based decoder.

    Attributes
    ----------
    path : Path
    phrases, language_model : Feature
    reordering : Feature, optional
    weights : dict of float
        Dense weights, called ``LM0_0``, ``TranslationModel0_0``, ``TranslationModel0_1``, ... as
        the decoder calls the features: the language model is always ``LM0``.
    weight_file : Path, optional
        Sparse weights.
    limits : dict of int
        What it says of ``distortion_limit``, ``pop_limit``, ``stack_size`` and ``table_limit``.
    weight_lines : dict of int
        Where ``[weight]`` has those of a feature, by `Feature.name`.
    """

    path: Path
    phrases: Feature
    language_model: Feature
    reordering: Feature | None
    weights: Mapping[str, float]
    weight_file: Path | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    weight_lines: Mapping[str, int] = field(default_factory=dict)

    def file_of(self, feature: Feature) -> Path:
        """Return the file of a feature; relative paths begin at the folder of the ini file.

        Raises
        ------
        InputError
            The feature has no ``path``.
        """
        if "path" not in feature.settings:
            raise InputError(
                f"{feature.kind} has no path=; name its file", path=self.path, line=feature.line
            )
        return self.path.parent / feature.settings["path"]

    def check_scores(self, names: Container[str], table: Path) -> None:
        """Check that each score of the phrase table has a weight, and each weight a score.

        A line with ``num-features=`` says how many there are; without it, the table alone does.

        Parameters
        ----------
        names : container of str
            The features of the table.
        table : Path

        Raises
        ------
        InputError
            There are more of either.
        """
        label = self.phrases.name
        scores, weights = (
            next(i for i in itertools.count() if f"{label}_{i}" not in there)
            for there in (names, self.weights)
        )
        if scores != weights:
            raise InputError(
                f"{label} has {weights} weights, and {table} has {scores} scores; give each its "
                "weight",
                path=self.path,
                line=self.weight_lines[label],
            )


def read_moses_ini(path: str | os.PathLike[str], *, binary: bool = False) -> MosesIni:
    """Read the ``moses.ini`` of a phrase-based model.

    Read are ``[feature]`` (one phrase table, one language model, lexicalised reordering or none,
    and Moses's penalties), ``[weight]``, ``[weight-file]``, ``[distortion-limit]``,
    ``[cube-pruning-pop-limit]`` and ``[stack]``. Other sections say how Moses is to run. The
    weights alone, of any model, are read by `torchtune_smt.models.moses_ini`.

    Parameters
    ----------
    path : path
    binary : bool
        Whether the phrase table may be a binary one, as where its text is given by another option.

    Raises
    ------
    InputError
        The file is missing or bad, has a section that is read twice or one without its value, names
        a feature twice, one that is not supported or a binary table, a feature is called as one
        that the decoder has itself, or has no weights, or not as many as it has scores, or weights
        are those of none.
    """
    return _Reader(Path(path)).read(binary)


def _kept_names(kind: str) -> list[str]:
    """Return the names that a feature of some kind, which is no penalty, may not have."""
    kept = [f"{penalty}0" for penalty in _PENALTIES]
    return kept if kind in LANGUAGE_MODELS else [*kept, LANGUAGE_MODEL]


class _Reader:
    """Makes a model of sections."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sections = IniSections(path, _READ)
        self._error = self._sections.error
        self._weight_lines: dict[str, int] = {}

    def read(self, binary: bool) -> MosesIni:
        features = self._features()
        for feature in features:
            if feature.kind in _BINARY and not binary:
                message = f"PhraseDictionaryMemory and its text are needed: {feature.kind} "
                message += refusal(_BINARY[feature.kind])
                raise self._error(message, feature.line)
        phrases = self._only(features, _PHRASES, "phrase table")
        language_model = self._only(features, LANGUAGE_MODELS, "language model")
        reordering = [feature for feature in features if feature.kind == "LexicalReordering"]
        if len(reordering) > 1:
            message = "a second reordering model is not supported; remove it"
            raise self._error(message, reordering[1].line)
        for factor, line in self._sections.lines("input-factors"):
            if factor != "0":
                raise self._error("only factor 0 is supported", line)
        limits = {
            name: self._limit(section, *self._sections.value(section))
            for section, name in _LIMITS.items()
            if section in self._sections
        }
        if "table-limit" in phrases.settings:
            text = phrases.settings["table-limit"]
            limits["table_limit"] = self._limit("table-limit", text, phrases.line)
        return MosesIni(
            self.path,
            phrases,
            language_model,
            reordering[0] if reordering else None,
            self._weights(features),
            weight_file_of(self._sections),
            limits,
            self._weight_lines,
        )

    def _features(self) -> list[Feature]:
        """Return the features, named as Moses names those that have no name: ``Distortion0``."""
        features: list[Feature] = []
        counts: dict[str, int] = {}
        for text, line in self._sections.lines("feature"):
            kind, *words = split_words(text)
            settings = {}
            for word in words:
                key, equals, value = word.partition("=")
                if not equals:
                    raise self._error(f"{word!r} is no setting; write key=value", line)
                if key in settings:
                    raise self._error(f"{key}= stands here twice; leave one of them", line)
                settings[key] = value
            number = counts.get(kind, 0)
            counts[kind] = number + 1
            known = (*_PENALTIES, *LANGUAGE_MODELS, *_PHRASES)
            if kind not in (*known, "LexicalReordering"):
                message = f"the feature {kind} is not supported; remove it and its weights"
                raise self._error(message, line)
            if number and kind in _PENALTIES:
                raise self._error(f"a second {kind} is not supported; remove it", line)
            name = settings.get("name", f"{kind}{number}")
            # The decoder has these itself, by this name.
            if kind in _PENALTIES and name != f"{kind}0":
                message = f"{kind} must be called {kind}0; remove name={name}, in [weight] as well"
                raise self._error(message, line)
            if kind not in _PENALTIES and name in _kept_names(kind):
                message = f"the decoder has a feature {name} itself; give {kind} another name="
                raise self._error(f"{message}, in [weight] as well", line)
            if any(feature.name == name for feature in features):
                raise self._error(f"a second feature is called {name}; give it another name", line)
            features.append(Feature(kind, name, settings, line))
        return features

    def _only(self, features: list[Feature], kinds: tuple[str, ...], what: str) -> Feature:
        """Return the one feature of some kinds."""
        found = [feature for feature in features if feature.kind in kinds]
        if not found:
            raise self._error(f"[feature] names no {what} ({', '.join(kinds)})")
        if len(found) > 1:
            raise self._error(f"a second {what} is not supported; remove it", found[1].line)
        return found[0]

    def _integer(self, text: str, line: int) -> int:
        if not _INTEGER.fullmatch(text):
            raise self._error(f"{text!r} is no whole number", line)
        return int(text)

    def _limit(self, name: str, text: str, line: int) -> int:
        """Return a limit of the search."""
        limit, none = self._integer(text, line), _NONE.get(name)
        least = 0 if name == "distortion-limit" else 1
        if limit == none:
            return limit if limit < 0 else NO_LIMIT
        if limit < least:
            also = "" if none is None else f", or {none} for none"
            raise self._error(f"{name} must be {least} or more{also}, not {limit}", line)
        return limit

    def _width(self, feature: Feature) -> int | None:
        """Return how many weights a feature has; None if its line does not say."""
        text = feature.settings.get("num-features")
        said = None if text is None else self._integer(text, feature.line)
        if feature.kind in _PHRASES:
            return said
        width = 1
        if feature.kind == "LexicalReordering":
            try:
                width = ReorderingType.parse(feature.settings.get("type", "")).scores
            except ValueError as error:
                raise self._error(str(error), feature.line) from None
        if said not in (None, width):
            message = f"{feature.name} has {width} scores, and not num-features={said}"
            raise self._error(message, feature.line)
        return width

    def _weights(self, features: list[Feature]) -> dict[str, float]:
        """Return the dense weights."""
        weights: dict[str, float] = {}
        given = self._weight_lines
        named = {feature.name: feature for feature in features}
        for label, (values, line) in weights_of_labels(self._sections).items():
            if label not in named:
                message = (
                    f"there is no feature {label}; remove its weights, or name it in [feature]"
                )
                raise self._error(message, line)
            given[label] = line
            wanted = self._width(named[label])
            if wanted not in (None, len(values)):
                message = f"{label} has {len(values)} weights, and {wanted} are needed"
                raise self._error(message, line)
            own = LANGUAGE_MODEL if named[label].kind in LANGUAGE_MODELS else label
            weights |= zip(numbered(own, len(values)), values, strict=True)
        for feature in features:
            if feature.name in given:
                continue
            if feature.kind != "UnknownWordPenalty":
                raise self._error(
                    f"the feature {feature.name} has no weights; add `{feature.name}= ...` to "
                    "[weight]",
                    feature.line,
                )
            weights[f"{feature.name}_0"] = UNKNOWN_WORDS_DEFAULT
        return weights


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
