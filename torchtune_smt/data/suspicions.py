"""Signs that texts are not prepared alike, or do not belong together; each with its cure.

They are cheap (a sample of lines, whose size does not grow with the text, except where copies of
sentences are looked for), and hints, not proofs: whoever reads them decides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Final, NamedTuple

import numpy as np

from torchtune_smt.data.bitext import Corpus

Text = Sequence[Sequence[str]]
"""The words of each line."""

SAMPLE: Final = 1000
"""Lines of a text that are looked at, spread evenly."""

_PUNCTUATION: Final = frozenset(".,!?;:。，！？；：．、")
# Runs of letters of scripts that put no blanks between words, and how long words are at most, on
# the average, where somebody has.
_RUNS: Final = (
    (re.compile("[\u3005\u3040-\u30ff\u3400-\u9fff]+"), 5.0),
    (re.compile("[\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff]+"), 10.0),
)
_FEWEST_RUNS: Final = 20
# What Moses writes for some characters, and HTML by number; also where it was taken apart
# afterwards. Of other names only what is in one piece.
_ENTITY: Final = re.compile(
    "& ?(?:amp|apos|quot|lt|gt|bar|bra|ket|# ?x?[0-9a-fA-F]{1,6}) ?;|&[a-z]{2,8};"
)
_ESCAPED: Final = re.compile("[&'\"<>|\\[\\]]")
_FEWEST_ENTITIES: Final = 5
# Share of training pairs that one expects to be left out for their lengths, at most.
_UNEQUAL: Final = 0.1
_FEWEST_LINES: Final = 50
_FEWEST_WORDS: Final = 20
# F1 of words that a line has more with its counterpart than with another line, where they say the
# same: at least this, and so many standard errors. (A source copied in place of its translation
# has up to 0.11, by names, numbers and punctuation.)
_COMMON: Final = 0.1
_CLEAR: Final = 3.0


def corpus_suspicions(
    sets: Mapping[str, Corpus],
    vocabularies: tuple[Container[str], Container[str]] | None = None,
) -> list[str]:
    """Return what is suspicious about the sets (train, dev, test) of a run, a sentence each.

    `vocabularies`, which tell whether languages are swapped, are by default those of train.
    """
    found = [] if vocabularies is None else _unescaped(sets, vocabularies)
    if vocabularies is None and "train" in sets:
        vocabularies = _words(sets["train"].source), _words(sets["train"].targets)
    for name, corpus in sets.items():
        found += _unsegmented(name, corpus)
        swapped = _swapped(name, corpus, *vocabularies) if vocabularies else []
        found += swapped or _disordered(name, corpus)
    for side in range(2):
        texts = {name: _side(corpus, side) for name, corpus in sets.items()}
        found += _unlike(texts, ("source", "target")[side])
    if "train" in sets:
        train = sets["train"]
        source, target = TextProfile.of(train.source), TextProfile.of(train.targets)
        found += source.escaped_unlike(target, "the source of train", "the target of train")
        found += _dropped(train)
    return found + _copied(sets)


def output_suspicions(
    name: str,
    lines: Text,
    references: Sequence[Sequence[Sequence[str]]],
    *,
    case: bool = True,
    tokens: bool = True,
) -> list[str]:
    """Return what is suspicious about translations beside their references, a sentence each.

    case, tokens: whether case, and the way in which text is split, make a difference.
    """
    first = [row[0] for row in references]
    one, other = TextProfile.of(lines), TextProfile.of(first)
    found = one.differences(other, name, "the references", case=case, tokens=tokens)
    if not found:
        found = _unrelated(lines, first, range(1, len(lines) + 1), name, "the references")
    return found


class TextProfile(NamedTuple):
    """What tells how a text was prepared, of a sample of its lines."""

    words: int
    # Share of the words with a capital letter.
    capitals: float
    # Punctuation marks at the end of words, or alone; share of them that are attached to a word.
    marks: int
    attached: float
    # Share of the words that are marked as pieces of words (``@@`` at the end, ``▁`` in front).
    pieces: float
    # Characters as Moses escapes them (``&apos;``), and those that it would escape.
    entities: int
    unescaped: int

    @classmethod
    def of(cls, text: Text) -> TextProfile:
        """Return the profile of a text."""
        words = [word for line in _sample(text) for word in line]
        rest, entities = _ENTITY.subn("", " ".join(words))
        ends = [word for word in words if word[-1] in _PUNCTUATION]
        attached = sum(len(word) > 1 and word[-2].isalnum() for word in ends)
        marks = attached + sum(len(word) == 1 for word in ends)
        total = max(1, len(words))
        return cls(
            len(words),
            sum(word != word.lower() for word in words) / total,
            marks,
            attached / max(1, marks),
            sum(word.endswith("@@") or word.startswith("▁") for word in words) / total,
            entities,
            len(_ESCAPED.findall(rest)),
        )

    def differences(
        self, other: TextProfile, name: str, other_name: str, *, case: bool, tokens: bool
    ) -> list[str]:
        """Return how two texts that should be alike are not, a sentence each."""
        found = []
        low, high = sorted([self.capitals, other.capitals])
        if case and min(self.words, other.words) >= 100 and high > 0.02 and low < 0.1 * high:
            found.append(
                f"{name} and {other_name} differ in case ({self.capitals:.0%} and "
                f"{other.capitals:.0%} of the words have a capital letter): give both in the same "
                "case"
            )
        if tokens and (self.pieces > 0.01) != (other.pieces > 0.01):
            split, whole = (name, other_name) if self.pieces > 0.01 else (other_name, name)
            found.append(
                f"pieces of words (@@ or ▁) are in {split}, and none in {whole}: join them"
            )
        elif tokens:
            found += self.escaped_unlike(other, name, other_name)
        unlike = abs(self.attached - other.attached) > 0.5
        if tokens and unlike and min(self.marks, other.marks) >= 10:
            found.append(
                f"{name} and {other_name} are not tokenised alike ({self.attached:.0%} and "
                f"{other.attached:.0%} of the punctuation marks are attached to a word): "
                "tokenise both in the same way"
            )
        return found

    def escaped_unlike(self, other: TextProfile, name: str, other_name: str) -> list[str]:
        """Return whether one of two texts, of any languages, is escaped alone."""
        pairs = ((self, name, other, other_name), (other, other_name, self, name))
        return [
            f"entities (&apos;, &quot;) are in {escaped}, and the characters themselves in "
            f"{plain}: write both in the same way"
            for one, escaped, two, plain in pairs
            if min(one.entities, two.unescaped) >= _FEWEST_ENTITIES and not two.entities
        ]


def _unescaped(
    sets: Mapping[str, Corpus], vocabularies: tuple[Container[str], Container[str]]
) -> list[str]:
    """Return where a model's words are escaped, as Moses has them, and a text is not."""
    profiles = {
        (name, ("source", "target")[side]): TextProfile.of(list(chain(*_side(corpus, side))))
        for name, corpus in sets.items()
        for side, words in enumerate(vocabularies)
        if "&apos;" in words or "&quot;" in words
    }
    return [
        f"the model's {side} words have entities (&apos;, &quot;), and {name} the characters "
        "themselves: write it as Moses's tokenizer.perl does, with data.normalize=false "
        "data.tokenize=false"
        for (name, side), profile in profiles.items()
        if profile.unescaped >= _FEWEST_ENTITIES and not profile.entities
    ]


def _side(corpus: Corpus, side: int) -> list[Text]:
    """Return the source as the only text, or the texts of all references."""
    if side == 0:
        return [corpus.source]
    count = min(map(len, corpus.references))
    return [[row[j] for row in corpus.references] for j in range(count)]


def _unlike(sets: Mapping[str, list[Text]], side: str) -> list[str]:
    """Compare all texts of a language with the first of them."""
    texts = {
        f"the {side} of {name}" + (f" ({j})" if len(columns) > 1 else ""): text
        for name, columns in sets.items()
        for j, text in enumerate(columns)
    }
    (first, expected), *others = ((name, TextProfile.of(text)) for name, text in texts.items())
    return [
        sentence + " (see data.lowercase, data.tokenize)"
        for name, profile in others
        for sentence in profile.differences(expected, name, first, case=True, tokens=True)
    ]


def _unsegmented(name: str, corpus: Corpus) -> list[str]:
    """Look for a language without blanks whose words nobody has told apart."""
    found = []
    for side, text in (("source", corpus.source), ("target", corpus.targets)):
        lines = " ".join(word for line in _sample(text) for word in line)
        for pattern, longest in _RUNS:
            runs = pattern.findall(lines)
            if len(runs) >= _FEWEST_RUNS and sum(map(len, runs)) > longest * len(runs):
                found.append(
                    f"the {side} of {name} has {sum(map(len, runs)) / len(runs):.0f} letters "
                    "between blanks: it seems not to be split into words; split it with a "
                    "segmenter of its language first"
                )
    return found


def _swapped(
    name: str, corpus: Corpus, source_words: Container[str], target_words: Container[str]
) -> list[str]:
    """Look for a set whose sides stand in each other's place."""
    shares = []
    for text in (corpus.source, corpus.targets):
        known = [(word in source_words, word in target_words) for word in _words(text)]
        # Words that both languages have say nothing: names, numbers, punctuation.
        alone = [source for source, target in known if source != target]
        shares.append(sum(alone) / len(alone) if len(alone) >= _FEWEST_WORDS else math.nan)
    if shares[0] < 0.5 < shares[1]:
        return [
            f"the source of {name} has words of the model's target side, and its references those "
            "of the source side: are the files in the wrong order?"
        ]
    return []


def _disordered(name: str, corpus: Corpus) -> list[str]:
    """Look for lines that are not translations of each other."""
    source, targets = corpus.source, corpus.targets
    for block in _blocks(len(corpus)):
        lengths = np.array(
            [[len(" ".join(text[i])) for i in block] for text in (source, targets)], np.float64
        )
        if (lengths.std(1) == 0).any():
            continue
        r = float(np.corrcoef(np.log1p(lengths))[0, 1])
        if r < max(0.15, 2.5 / math.sqrt(len(block))):
            begin, end = corpus.lines[block[0]], corpus.lines[block[-1]]
            return [
                f"the lengths of source and target of {name} have next to nothing to do with each "
                f"other (correlation {r:.2f} in lines {begin} to {end}): is line n of one file the "
                "translation of line n of the other?"
            ]
    found = []
    for j, text in enumerate(_side(corpus, 1)[1:], start=1):
        found += _unrelated(text, targets, corpus.lines, f"reference {j} of {name}", "reference 0")
    return found


def _unrelated(
    one: Text, other: Text, numbers: Sequence[int], name: str, other_name: str
) -> list[str]:
    """Compare lines of one language that should say the same with lines that should not."""
    for block in _blocks(len(one)):
        middle = len(block) // 2
        gains = [
            _overlap(one[i], other[i]) - _overlap(one[i], other[j])
            for i, j in zip(block, [*block[middle:], *block[:middle]], strict=True)
        ]
        error = float(np.std(gains)) / math.sqrt(len(gains))
        if np.mean(gains) <= max(_COMMON, _CLEAR * error):
            begin, end = numbers[block[0]], numbers[block[-1]]
            return [
                f"lines {begin} to {end} of {name} have hardly more words in common "
                f"with the same lines of {other_name} than with others: are they of the "
                "same sentences, in the same order and the same language?"
            ]
    return []


def _overlap(one: Sequence[str], other: Sequence[str]) -> float:
    """Return F1 of the sets of words of two lines."""
    a, b = set(one), set(other)
    return 2 * len(a & b) / max(1, len(a) + len(b))


def _dropped(train: Corpus) -> list[str]:
    """Look for many training pairs of too different lengths."""
    unequal, lines = train.dropped.get("of too different lengths", 0), train.total
    if unequal <= _UNEQUAL * lines:
        return []
    return [
        f"{unequal:,} of {lines:,} lines of train are left out because their lengths differ too "
        "much (data.max_ratio): are they translations of each other, and both split into words?"
    ]


def _copied(sets: Mapping[str, Corpus]) -> list[str]:
    """Look for sentences with their translations that are in two sets."""
    found = []
    small = [name for name in ("dev", "test") if name in sets]
    pairs = {name: {pair for row in _rows(sets[name]) for pair in row} for name in small}
    for name, other in [*((name, "train") for name in small), ("test", "dev")]:
        if name not in pairs or other not in sets:
            continue
        trained = other == "train"
        # Of a large text only what is asked for is kept.
        known = {pair for row in _rows(sets[other]) for pair in row & pairs[name]}
        count = sum(not known.isdisjoint(row) for row in _rows(sets[name]))
        size = len(sets[name])
        if 2 * count > (size if trained else min(size, len(sets[other]))):
            cure = "take them out of one of the two" if trained else "take other sentences"
            why = "scores on them say" if trained else "on what was tuned on, scores say"
            found.append(
                f"{count:,} of {size:,} sentences of {name} are in {other} with their "
                f"translations: {why} little; {cure}"
            )
    return found


def _rows(corpus: Corpus) -> Iterator[set[str]]:
    """Yield the pairs of each sentence and its references."""
    for source, references in zip(corpus.source, corpus.references, strict=True):
        yield {" ".join([*source, "|||", *reference]) for reference in references}


def _words(text: Text) -> set[str]:
    """Return the words of a sample."""
    return {word for line in _sample(text) for word in line}


def _sample(text: Text) -> Text:
    """Return some lines, spread evenly."""
    return text[:: -(-len(text) // SAMPLE)] if text else text


def _blocks(lines: int) -> list[list[int]]:
    """Return numbers of lines: a sample of each quarter, or of all where there are few."""
    if lines < _FEWEST_LINES:
        return []
    parts = 4 if lines >= 8 * _FEWEST_LINES else 1
    bounds = [lines * part // parts for part in range(parts + 1)]
    return [list(range(begin, end, -(-(end - begin) // SAMPLE))) for begin, end in pairwise(bounds)]
