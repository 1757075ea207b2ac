"""Moses's configuration files: which model, which weights."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.text import split_words
from torchtune_smt.grammar.file_grammar import NO_LIMIT
from torchtune_smt.grammar.phrase_formats import refusal
from torchtune_smt.grammar.reordering import ReorderingType
from torchtune_smt.models.ini_sections import IniSections
from torchtune_smt.models.ini_weights import (
    WEIGHT_SECTIONS,
    numbered,
    weight_file_of,
    weights_of_labels,
)

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
    weights alone, of any model, are read by `torchtune_smt.models.weight_files`.

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
