"""Templates of sparse features, and how the names of features are spelt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, Final, Protocol, runtime_checkable

import numpy as np

from torchtune_smt.core.accepts import integer
from torchtune_smt.core.arrays import Int64, UInt8
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.offsets import gather
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.features.rule_kernels import RULE_ID, RULE_SHAPE, SOURCE_NGRAM

# Names stand between white space of any kind and before '=' in the files of this field; '_' and '~'
# separate the parts of a name, brackets mark gaps. The last space of Unicode is U+3000.
_SPACES = "".join(c for c in map(chr, range(0x3001)) if c.isspace())
_ESCAPES = str.maketrans(
    {c: "".join(f"%{b:02X}" for b in c.encode()) for c in "%_~=|[]:" + _SPACES}
)

# What files can hold.
_NAME: Final = re.compile(r"[^\s=]+")

OF_CLASSES: Final = "class_"
"""How the names of templates begin that look at classes of words."""
UNKNOWN_CLASS: Final = "unk"

# Features whose names are looked at together.
_PIECE: Final = 1 << 16


class RuleTemplate(Protocol):
    """A template whose features depend on one rule at a time.

    name: prefix of its features' names, which are ``name:...``.
    min_count: rules that occurred less often in the bitext (`Grammar.rule_counts`) fire nothing; a
        copied word occurred never.
    classes: if true, it is given the classes of words (`Model.classes`) in the place of words, and
        `UNKNOWN_CLASS` for a word that has none.
    spelling: the compiled twin of `features`; see `torchtune_smt.features.rule_kernels`.
    """

    name: str

    def features(self, source: Sequence[str], target: Sequence[str]) -> list[str]:
        """Return the features that fire when a rule is used, one entry for each firing.

        source, target: the sides of the rule; gaps are ``[1]`` and ``[2]``, in source order. A word
            never looks like a gap here: it comes through `escape`.
        """
        ...


@runtime_checkable
class AlignedTemplate(RuleTemplate, Protocol):
    """A template that looks at a rule's word alignment."""

    def aligned_features(
        self, source: Sequence[str], target: Sequence[str], links: Sequence[tuple[int, int]]
    ) -> list[str]:
        """Return the features that fire when a rule is used, besides those of `features`.

        source, target: see `RuleTemplate.features`.
        links: positions of linked words, of source and target side. Empty where a word that no rule
            covers is dropped, and never else: a copied word is linked to its copy, and a rule whose
            links are not known is not asked about.
        """
        ...


@runtime_checkable
class OrientedTemplate(RuleTemplate, Protocol):
    """A template that looks at how phrases are ordered."""

    def oriented_features(
        self, source: Sequence[str], target: Sequence[str], orientation: str, *, behind: bool
    ) -> list[str]:
        """Return the features that fire when a phrase has an orientation.

        source, target: see `RuleTemplate.features`.
        orientation: see `torchtune_smt.grammar.reordering.ORIENTATIONS`.
        behind: towards what is behind it, and not towards what is before it on the target side.
        """
        ...


@runtime_checkable
class TranslationTemplate(Protocol):
    """A template that looks at whole translations, as no search does, and not at rules.

    A decoder's lists get its features, and the order that these give them: see
    `torchtune_smt.decoders.translation_features`.

    name, classes: see `RuleTemplate`.
    """

    name: str

    def translation_features(self, words: Sequence[str]) -> list[str]:
        """Return the features of a translation, one entry for each firing.

        words: they come through `escape`.
        """
        ...


def min_count_of(template: RuleTemplate) -> int:
    """Return how often a rule must have occurred to fire a template's features."""
    return int(getattr(template, "min_count", 0))


Template = RuleTemplate | TranslationTemplate
"""What makes sparse features of translations."""


def of_classes(template: Template) -> bool:
    """Return whether a template looks at the classes of words."""
    return bool(getattr(template, "classes", False))


def check_classes(templates: Sequence[Template], there: bool) -> None:
    """Raise ValueError if a template needs the classes of words, and none are there."""
    needing = [template.name for template in templates if of_classes(template)]
    if needing and not there:
        raise ValueError(
            f"{needing[0]} features need the classes of words, and this model has none; build it "
            "with model.classes=50 (model.hiero.classes=50 and model.phrase.classes=50 where there "
            "are two), or name files with model.source_classes and model.target_classes"
        )


def checked_names(template: Template, names: list[str]) -> list[str]:
    """Return what a template answers; raise InputError where files of weights cannot hold it."""
    start = f"{template.name}:"
    if isinstance(names, list | tuple) and all(
        isinstance(name, str) and name.startswith(start) and _NAME.fullmatch(name) for name in names
    ):
        return list(names)
    raise InputError(
        f"features.templates: {type(template).__name__} answers {names!r}, and must "
        f"give a list of names that begin with {template.name!r} and a colon and have no white "
        "space and no = in them (docs/extend.md)"
    )


def escape(word: str) -> str:
    """Return a word as it stands in feature names: special characters as ``%`` and hex digits."""
    return word.translate(_ESCAPES)


def is_gap(symbol: str) -> bool:
    """Return whether a symbol of an escaped rule is a gap."""
    return symbol.startswith("[")


def template_of(name: str) -> str:
    """Return the template of a sparse feature: what stands before the first colon, if it is a name.

    Or else before the first underscore, as in Moses's names, whose words may have colons
    (``WT_:~that``); ``other`` where there is neither.
    """
    template, found, _ = name.partition(":")
    if found and template.isidentifier() and not template.endswith("_"):
        return template
    template, found, _ = name.partition("_")
    return template if found and template else "other"


def templates_of(names: Sequence[str]) -> list[str]:
    """Return the template of each of the sparse features that occur together.

    ``WT_10:30~10:30`` alone could be of a template ``WT_10``. Where other features ``WT_...`` have
    no colon, it is of ``WT``.
    """
    labels = {template_of(name) for name in names if ":" not in name}
    found = []
    for name in names:
        label = name.partition("_")[0]
        found.append(label if label in labels else template_of(name))
    return found


def numbered_templates(features: Vocabulary, ids: Int64) -> tuple[list[str], Int64]:
    """Return the `templates_of` sparse features, and the number of each feature's (int64)."""
    heads = Vocabulary()
    head: Int64 = np.empty(ids.size, np.int64)
    for first in range(0, ids.size, _PIECE):
        piece = slice(first, first + _PIECE)
        begin, letters = gather(features.begin, features.symbols, ids[piece])
        end = begin[1:]
        colon, underscore = (_behind(letters, sign, begin) for sign in b":_")
        stop = np.where(colon <= end, colon, np.minimum(underscore, end))
        head[piece] = heads.intern_spans(letters, begin[:-1], stop)
    # What stands before the colon is no template: the underscore behind it counts.
    odd = [
        h
        for h, name in enumerate(heads.names(range(len(heads))))
        if name.endswith(":") and "_" not in name and not name[:-1].isidentifier()
    ]
    whole = np.flatnonzero(np.isin(head, odd))
    head[whole] = heads.intern(features.names(ids[whole]))
    used, place = np.unique(head, return_inverse=True)
    found = templates_of(heads.names(used.tolist()))
    templates = list(dict.fromkeys(found))
    number = np.array([templates.index(template) for template in found], np.int64)
    return templates, number[place]


def _behind(letters: UInt8, sign: int, begin: Int64) -> Int64:
    """Return the place behind the first sign at or after each begin; beyond all where none is."""
    places = np.append(np.flatnonzero(letters == sign), letters.size)
    return places[np.searchsorted(places, begin[:-1])] + 1


class _Named:
    """What the templates here have in common: their names, and the arguments of `RuleTemplate`."""

    kind: ClassVar[str]

    def __init__(self, min_count: int = 0, classes: bool = False) -> None:
        self.name = f"{OF_CLASSES}{self.kind}" if classes else self.kind
        self.min_count = min_count
        self.classes = classes

    def features(self, source: Sequence[str], target: Sequence[str]) -> list[str]:
        """Return the features of a rule by itself."""
        return []


class RuleId(_Named):
    """One feature a rule, fired by each use of it: ``rule_id:ein_[1]~a_[1]``.

    Source: all three papers ([L13] §3: rule identifiers; [G13]: discriminative phrase table).
    """

    kind = "rule_id"
    spelling: ClassVar[int] = RULE_ID

    def features(self, source: Sequence[str], target: Sequence[str]) -> list[str]:
        """Return the rule's own feature."""
        return [f"{self.name}:{'_'.join(source)}~{'_'.join(target)}"]


class SourceNgram(_Named):
    """Bigrams of a rule's source side, gaps as X: ``source_ngram:[X]_hat``. Source: [S12]."""

    kind = "source_ngram"
    spelling: ClassVar[int] = SOURCE_NGRAM

    def __init__(self, classes: bool = False) -> None:
        super().__init__(classes=classes)

    def features(self, source: Sequence[str], target: Sequence[str]) -> list[str]:
        """Return one feature for each pair of neighbours."""
        symbols = ["[X]" if is_gap(symbol) else symbol for symbol in source]
        return [f"{self.name}:{a}_{b}" for a, b in pairwise(symbols)]


class RuleShape:
    """Both sides of a rule, runs of words as one T: ``rule_shape:T_[1]~[1]_T``. Source: [S12]."""

    name = "rule_shape"
    spelling: ClassVar[int] = RULE_SHAPE

    def features(self, source: Sequence[str], target: Sequence[str]) -> list[str]:
        """Return the rule's shape."""
        return [f"rule_shape:{_shape(source)}~{_shape(target)}"]


def _shape(symbols: Sequence[str]) -> str:
    runs: list[str] = []
    for symbol in symbols:
        if is_gap(symbol):
            runs.append(symbol)
        elif not runs or runs[-1] != "T":
            runs.append("T")
    return "_".join(runs)


class WordAlignment(_Named):
    """Links of a rule, ``alignment:haus~house``, and words without one, ``alignment:ja~``.

    Those without one are source words that are deleted. Source: [G13].

    insertions: target words without a link, too: ``alignment:~the``.
    """

    kind = "alignment"

    def __init__(self, insertions: bool = False, min_count: int = 0, classes: bool = False) -> None:
        super().__init__(min_count, classes)
        self.insertions = insertions

    def aligned_features(
        self, source: Sequence[str], target: Sequence[str], links: Sequence[tuple[int, int]]
    ) -> list[str]:
        """Return one feature for each link, and for each word without one."""
        names = [f"{self.name}:{source[s]}~{target[t]}" for s, t in links]
        for side, words in enumerate((source, target) if self.insertions else (source,)):
            linked = {link[side] for link in links}
            alone = [word for i, word in enumerate(words) if i not in linked and not is_gap(word)]
            names += [f"{self.name}:~{word}" if side else f"{self.name}:{word}~" for word in alone]
        return names


class LexReordering(_Named):
    """How phrases are ordered, ``lex_reordering:before_swap``: the eight classes of [G13].

    Three towards what is before a phrase on the target side (``before_monotone``, ``before_swap``,
    ``before_discontinuous``), three towards what is behind it (``behind_...``), and, of the former,
    ``monotone`` and ``nonmonotone``.

    behind: whether there are classes towards what is behind a phrase.
    lexicalized: features of each phrase pair: ``lex_reordering:before_swap:ein_haus~a_house``.
        Without it, no word is in them.
    """

    kind = "lex_reordering"

    def __init__(
        self,
        behind: bool = True,
        lexicalized: bool = False,
        min_count: int = 0,
        classes: bool = False,
    ) -> None:
        super().__init__(min_count, classes)
        self.behind = behind
        self.lexicalized = lexicalized

    def oriented_features(
        self, source: Sequence[str], target: Sequence[str], orientation: str, *, behind: bool
    ) -> list[str]:
        """Return the classes that an orientation belongs to."""
        kind = orientation.split()[0]
        if behind:
            kinds = [f"behind_{kind}"] if self.behind else []
        else:
            kinds = [f"before_{kind}"]
            # Models that tell left from right alone do not say.
            if kind not in ("left", "right"):
                kinds.append("monotone" if kind == "monotone" else "nonmonotone")
        rule = f":{'_'.join(source)}~{'_'.join(target)}" if self.lexicalized else ""
        return [f"{self.name}:{name}{rule}" for name in kinds]


class TargetNgram:
    """Words of a translation in a row, whatever rules they are of: ``ngram2:the_house``.

    The local features of rules end where rules do; these look across their boundaries.

    n: how many words.
    classes: see `RuleTemplate`; the name begins with ``class_`` then.

    Raises ValueError: `n` is below 1.
    """

    def __init__(self, n: int = 2, classes: bool = False) -> None:
        integer(1).check("n", n)
        self.n = n
        self.classes = classes
        self.name = f"{OF_CLASSES if classes else ''}ngram{n}"

    def translation_features(self, words: Sequence[str]) -> list[str]:
        """Return one feature for each word with n - 1 words before it."""
        grams = ("_".join(words[i : i + self.n]) for i in range(len(words) - self.n + 1))
        return [f"{self.name}:{gram}" for gram in grams]
