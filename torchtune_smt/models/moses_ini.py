"""Moses's configuration files: which model, which weights."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.text import finite_number, split_words
from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.grammar.file_grammar import NO_LIMIT
from torchtune_smt.grammar.reordering import ReorderingType

# Features of one value that the decoder has itself, and those of a model's parts.
_PENALTIES: Final = ("UnknownWordPenalty", "WordPenalty", "PhrasePenalty", "Distortion")
PENALTIES: Final = {f"{kind}0_0": kind for kind in _PENALTIES}
"""Moses's own features, which need no file, by the names that the decoder has for them."""
_LANGUAGE_MODELS: Final = ("KENLM", "SRILM", "IRSTLM", "RANDLM")
# Binary ones are told by their files, as there may be text in their place.
_BINARY: Final = ("Compact", "Binary", "OnDisk")
_PHRASES: Final = (*(f"PhraseDictionary{kind}" for kind in ("Memory", *_BINARY)), "ProbingPT")
_REORDERING: Final = "LexicalReordering"
_SUPPORTED: Final = (*_PENALTIES, *_LANGUAGE_MODELS, *_PHRASES, _REORDERING)
_LIMITS: Final = {
    "distortion-limit": "distortion_limit",
    "cube-pruning-pop-limit": "pop_limit",
    "stack": "stack_size",
}
# The sections that weights take, and all that are read.
_OF_WEIGHTS: Final = ("feature", "weight", "weight-file")
_READ: Final = (*_LIMITS, "input-factors", *_OF_WEIGHTS)
# The least of those that may be as Moses writes them where there is no limit.
_LEAST: Final = {"distortion-limit": -1, "table-limit": 0}
LANGUAGE_MODEL: Final = "LM0"
"""What the decoder calls its language model."""
# Moses's weight of unknown words where it is given none.
_UNKNOWN_WORDS: Final = "UnknownWordPenalty0"
_DEFAULT: Final = 1.0
_INTEGER: Final = re.compile(r"-?[0-9]{1,9}")


@dataclass(frozen=True)
class Feature:
    """A line of ``[feature]``: its class, such as ``KENLM``, what its weights are called, ..."""

    kind: str
    name: str
    settings: Mapping[str, str]
    line: int


def read_moses_ini(path: str | os.PathLike[str]) -> MosesIni:
    """Read the ``moses.ini`` of a phrase-based model.

    Read are ``[feature]`` (one phrase table, one language model, lexicalised reordering or none,
    and Moses's penalties), ``[weight]``, ``[weight-file]``, ``[distortion-limit]``,
    ``[cube-pruning-pop-limit]`` and ``[stack]``. Other sections say how Moses is to run. The
    weights alone, of any model, are read by `read_any_weights`.

    Raises InputError: the file is bad, or names what is not supported.
    """
    return MosesIni(Path(path))


def read_any_weights(
    path: str | os.PathLike[str], *others: str | os.PathLike[str], phrase_decoder: bool = False
) -> tuple[Vocabulary, Float64]:
    """Read a weights file, or the weights of a ``moses.ini`` and of the file that it names.

    Of several the mean is returned; a feature that is not named in one has the weight 0 there.

    It is a ``moses.ini`` if it ends in ``.ini``. Its model is nobody's concern here: it may be of
    any decoder, with features that are not supported. `phrase_decoder`: features are called as by
    `PhraseDecoder`, where the language model is ``LM0`` whatever its name, and not as in the n-best
    lists that Moses writes. Names and values are in the order of the file.

    Raises InputError: a ``moses.ini`` has no weights, or a feature has a weight twice.
    """
    if others:
        read = [read_any_weights(one, phrase_decoder=phrase_decoder) for one in (path, *others)]
        every = Vocabulary()
        ids = [every.intern_all(own) for own, _ in read]
        shares = np.concatenate([values for _, values in read]) / len(read)
        return every, np.bincount(np.concatenate(ids), shares, len(every)).astype(np.float64)
    if Path(path).suffix != ".ini":
        return read_weights(path)
    ini = Sections(Path(path))
    dense, lines = ini.named_weights(phrase_decoder)
    names, values = Vocabulary(dense), np.array(list(dense.values()))
    file = ini.weight_file
    if file is None:
        return names, values
    sparse, more = read_weights(file)
    named = sparse.names(range(len(sparse)))
    for name in named:
        if name in lines:
            raise ini.error(f"{name} has a weight in {file} as well; remove one", lines[name])
    names.intern(named)
    return names, np.concatenate([values, more])


def content(line: str) -> str:
    """Return what a line says: without a comment, and without blanks and tabs around it."""
    return line.split("#", 1)[0].strip(" \t")


def header(line: str) -> str | None:
    """Return the name of the section that a line begins; None if it begins none."""
    text = content(line)
    return text[1:-1] if text.startswith("[") and text.endswith("]") else None


def numbered(label: str, width: int) -> list[str]:
    """Return what a decoder calls the values of a feature: ``LM0_0``."""
    return [f"{label}_{i}" for i in range(width)]


def names_in_lists(label: str, width: int) -> list[str]:
    """Return what lists call a feature's values: one with an underscore is sparse, and keeps it."""
    return [label] if width == 1 and "_" in label else numbered(label, width)


class Sections:
    """The lines of each section of a file with their numbers, without comments.

    read: the sections that are made use of, and may stand there once.
    """

    def __init__(self, path: Path, read: Container[str] = _OF_WEIGHTS) -> None:
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
                    raise self.error(message, number)
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

    def lines(self, name: str) -> list[tuple[str, int]]:
        """Return what a section says; nothing if it is not there."""
        return self._lines.get(name, [])

    def value(self, name: str) -> tuple[str, int]:
        """Return the one value of a section that is there, and its line."""
        lines = self.lines(name)
        if len(lines) != 1:
            message = f"[{name}] has {len(lines)} values; write one in the next line, or remove it"
            raise self.error(message, lines[1][1] if lines else self._begin[name])
        return lines[0]

    def features(self, *, strict: bool) -> list[Feature]:
        """Return the features, named as Moses names those that have no name: ``Distortion0``."""
        features: list[Feature] = []
        counts: dict[str, int] = {}
        for text, line in self.lines("feature"):
            kind, *words = split_words(text)
            if strict and kind not in _SUPPORTED:
                message = f"the feature {kind} is not supported; remove it and its weights"
                raise self.error(message, line)
            settings: dict[str, str] = {}
            for word in words:
                key, equals, value = word.partition("=")
                if strict and (not equals or key in settings):
                    message = f"{word!r} is no setting, or stands here twice; write key=value once"
                    raise self.error(message, line)
                settings.setdefault(key, value)
            number = counts[kind] = counts.get(kind, -1) + 1
            features.append(Feature(kind, settings.get("name", f"{kind}{number}"), settings, line))
        return features

    def weight_lines(self) -> dict[str, tuple[list[float], int]]:
        """Return weights and their lines, by the names of features that the lines have."""
        found: dict[str, tuple[list[float], int]] = {}
        for text, line in self.lines("weight"):
            label, _, rest = (part.strip(" \t") for part in text.partition("="))
            values = [finite_number(value) for value in split_words(rest)] if rest else []
            numbers = [value for value in values if value is not None]
            if not label or not values or len(numbers) < len(values):
                message = f"{text!r} is no name with finite numbers; write `Name= 0.5`"
                raise self.error(message, line)
            if label in found:
                raise self.error(f"{label} has weights already; remove one line", line)
            found[label] = numbers, line
        return found

    @property
    def weight_file(self) -> Path | None:
        """The file of sparse weights; relative paths begin at the folder of the file."""
        if "weight-file" not in self:
            return None
        return self.path.parent / self.value("weight-file")[0]

    def named_weights(self, phrase_decoder: bool) -> tuple[dict[str, float], dict[str, int]]:
        """Return dense weights, and the line of each; see `read_any_weights`."""
        labels = self.weight_lines()
        if not labels:
            message = "has no weights; write [weight], and a line `Name= 0.5` for each feature"
            raise self.error(message, self._begin.get("weight"))
        features = self.features(strict=False) if phrase_decoder else []
        own = {feature.name: feature.name for feature in features}
        models = [feature.name for feature in features if feature.kind in _LANGUAGE_MODELS]
        # Which of several is meant, nobody can say.
        if len(models) == 1:
            own[models[0]] = LANGUAGE_MODEL
        weights: dict[str, float] = {}
        lines: dict[str, int] = {}
        for label, (values, line) in labels.items():
            width = len(values)
            names = numbered(own[label], width) if label in own else names_in_lists(label, width)
            for name, value in zip(names, values, strict=True):
                if name in lines:
                    before = f"{name} has a weight already, in line {lines[name]}; remove one"
                    raise self.error(before, line)
                weights[name], lines[name] = value, line
        if _UNKNOWN_WORDS in own:
            weights.setdefault(f"{_UNKNOWN_WORDS}_0", _DEFAULT)
        return weights, lines


class MosesIni(Sections):
    """A configuration file of Moses's phrase-based decoder.

    As attributes:
    phrases, language_model, reordering: the features; there may be no reordering.
    fixed: the features with ``tuneable=false``.
    limits: what it says of ``distortion_limit``, ``pop_limit``, ``stack_size`` and ``table_limit``.
    weights: dense weights, called ``LM0_0``, ``TranslationModel0_0``, ``TranslationModel0_1``, ...
        as the decoder calls the features: the language model is always ``LM0``.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, _READ)
        features = self.features(strict=True)
        for place, feature in enumerate(features):
            self._check(feature, features[:place])
        self.phrases = self._only(features, _PHRASES, "phrase table")
        self.language_model = self._only(features, _LANGUAGE_MODELS, "language model")
        self.reordering = None
        if any(feature.kind == _REORDERING for feature in features):
            self.reordering = self._only(features, (_REORDERING,), "reordering model")
        for factor, line in self.lines("input-factors"):
            if factor != "0":
                raise self.error("only factor 0 is supported", line)
        self.limits = {
            name: self._limit(section, *self.value(section))
            for section, name in _LIMITS.items()
            if section in self
        }
        if "table-limit" in self.phrases.settings:
            text = self.phrases.settings["table-limit"]
            self.limits["table_limit"] = self._limit("table-limit", text, self.phrases.line)
        if "weight-file" in self:
            self.value("weight-file")
        self._check_weights({feature.name: feature for feature in features})
        self.fixed = [one.name for one in features if one.settings.get("tuneable") == "false"]
        self.weights: Mapping[str, float] = self.named_weights(phrase_decoder=True)[0]

    def file_of(self, feature: Feature) -> Path:
        """Return the file of a feature; raise InputError if it has no ``path``."""
        if "path" not in feature.settings:
            raise self.error(f"{feature.kind} has no path=; name its file", feature.line)
        return self.path.parent / feature.settings["path"]

    def check_scores(self, names: Container[str], table: Path) -> None:
        """Raise InputError unless each score of a phrase table has a weight, and the reverse.

        A line with ``num-features=`` says how many there are; without it, the features (`names`) of
        the table alone do.
        """
        label = self.phrases.name
        scores, weights = (
            next(i for i in itertools.count() if f"{label}_{i}" not in there)
            for there in (names, self.weights)
        )
        if scores != weights:
            message = f"{label} has {weights} weights, and {table} has {scores} scores to weigh"
            raise self.error(message, self.weight_lines()[label][1])

    def _check(self, feature: Feature, before: list[Feature]) -> None:
        """Refuse factors, a second penalty, and a feature that is called as another one."""
        kind, name = feature.kind, feature.name
        for setting in ("input-factor", "output-factor", "factor"):
            if feature.settings.get(setting, "0") != "0":
                raise self.error("only factor 0 is supported", feature.line)
        # The decoder has these itself, by this name.
        own = LANGUAGE_MODEL if kind in _LANGUAGE_MODELS else f"{kind}0"
        theirs = {LANGUAGE_MODEL, *(f"{penalty}0" for penalty in _PENALTIES)} - {own}
        if kind in _PENALTIES and name != own:
            message = f"a second {kind}, or one not called {own}, is not supported; remove it"
            raise self.error(message, feature.line)
        if name in theirs.union(other.name for other in before):
            message = f"another feature is called {name}; give {kind} a name= of its own"
            raise self.error(message, feature.line)

    def _only(self, features: list[Feature], kinds: tuple[str, ...], what: str) -> Feature:
        """Return the one feature of some kinds."""
        found = [feature for feature in features if feature.kind in kinds]
        if not found:
            raise self.error(f"[feature] names no {what} ({', '.join(kinds)})")
        if len(found) > 1:
            raise self.error(f"a second {what} is not supported; remove it", found[1].line)
        return found[0]

    def _integer(self, text: str, line: int) -> int:
        if not _INTEGER.fullmatch(text):
            raise self.error(f"{text!r} is no whole number", line)
        return int(text)

    def _limit(self, name: str, text: str, line: int) -> int:
        """Return a limit of the search."""
        limit, least = self._integer(text, line), _LEAST.get(name, 1)
        if limit < least:
            raise self.error(f"{name} must be {least} or more, not {limit}", line)
        return limit or (0 if least < 0 else NO_LIMIT)

    def _width(self, feature: Feature) -> int | None:
        """Return how many weights a feature has; None if its line does not say."""
        if feature.kind in _PHRASES:
            text = feature.settings.get("num-features")
            return None if text is None else self._integer(text, feature.line)
        if feature.kind != _REORDERING:
            return 1
        try:
            return ReorderingType.parse(feature.settings.get("type", "")).scores
        except ValueError as error:
            raise self.error(str(error), feature.line) from None

    def _check_weights(self, features: Mapping[str, Feature]) -> None:
        """Refuse weights of no feature, and features that have none, or another number of them."""
        given = self.weight_lines()
        for label, (values, line) in given.items():
            if label not in features:
                raise self.error(f"[feature] has no {label}; remove its weights, or name it", line)
            wanted = self._width(features[label])
            if wanted not in (None, len(values)):
                message = f"{label} has {len(values)} weights, and {wanted} are needed"
                raise self.error(message, line)
        for name, feature in features.items():
            if name != _UNKNOWN_WORDS and name not in given:
                message = f"the feature {name} has no weights; add `{name}= ...` to [weight]"
                raise self.error(message, feature.line)
