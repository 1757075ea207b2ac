"""All derivations of a sentence, one after the other: the reference of the decoder's tests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import strategies as st
from lm_reference import UNKNOWN, DictModel

from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.grammar import FileGrammar
from torchtune_smt.grammar.file_grammar import Side
from torchtune_smt.kbest.lists import KBest

GAPS = ("[1]", "[2]")
NAMES = ["F0", "F1"]  # features of a rule
DENSE = [*NAMES, "LanguageModel", "LanguageModel_OOV", "WordPenalty", "PassThrough", "Glue"]

Key = tuple[tuple[str, ...], tuple[tuple[str, float], ...]]


class TooManyError(Exception):
    """There are more derivations than a test has time for."""


@dataclass(frozen=True)
class Rule:
    source: tuple[str, ...]
    target: tuple[str, ...]
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class Derivation:
    words: tuple[str, ...]
    features: Counter[str]

    def score(self, weights: dict[str, float]) -> float:
        return math.fsum(v * weights.get(name, 0.0) for name, v in self.features.items())

    @property
    def key(self) -> Key:
        return key(self.words, self.features)


def key(words: Sequence[str], features: dict[str, float]) -> Key:
    """Return what tells derivations apart, whatever the order in which numbers were added."""
    rounded = {name: round(value, 6) for name, value in features.items()}
    return tuple(words), tuple(sorted((n, v) for n, v in rounded.items() if v != 0))


def sparse_names(rule: Rule) -> list[str]:
    """Names of all templates, of a rule without special characters."""
    source, target = list(rule.source), list(rule.target)
    names = ["rule_id:" + "_".join(source) + "~" + "_".join(target)]
    gapped = ["[X]" if s in GAPS else s for s in source]
    names += [f"source_ngram:{gapped[i]}_{gapped[i + 1]}" for i in range(len(gapped) - 1)]
    shapes = []
    for side in (source, target):
        shape: list[str] = []
        for symbol in side:
            kind = symbol if symbol in GAPS else "T"
            if not (kind == "T" and shape and shape[-1] == "T"):
                shape.append(kind)
        shapes.append("_".join(shape))
    return [*names, "rule_shape:" + "~".join(shapes)]


def all_derivations(
    rules: Sequence[Rule],
    model: DictModel,
    sentence: Sequence[str],
    max_span: int,
    names_of: Callable[[Rule], list[str]] = sparse_names,
    limit: int = 2000,
) -> list[Derivation]:
    """Return every derivation with its features; TooManyError: there are more than `limit`."""
    grammar = {(rule.source, rule.target): rule for rule in reversed(rules)}

    def bindings(side: tuple[str, ...], i: int, j: int) -> Iterator[tuple[tuple[int, int], ...]]:
        """Spans of the gaps, for each way in which the side covers words i..j."""
        if not side:
            if i == j:
                yield ()
        elif side[0] in GAPS:
            for middle in range(i + 1, j + 1):
                for rest in bindings(side[1:], middle, j):
                    yield ((i, middle), *rest)
        elif i < j and sentence[i] == side[0]:
            yield from bindings(side[1:], i + 1, j)

    def use(rule: Rule, own: dict[str, float], parts: Sequence[Derivation]) -> Derivation:
        words: list[str] = []
        for symbol in rule.target:
            words += parts[GAPS.index(symbol)].words if symbol in GAPS else [symbol]
        features = Counter(own)
        features.update(names_of(rule))
        for part in parts:
            features.update(part.features)
        return Derivation(tuple(words), features)

    def limited(found: list[Derivation]) -> list[Derivation]:
        if len(found) > limit:
            raise TooManyError
        return found

    @cache
    def x(i: int, j: int) -> list[Derivation]:
        found = []
        if j == i + 1:
            word = (sentence[i],)
            found.append(use(Rule(word, word), {"PassThrough": 1.0}, []))
        for rule in grammar.values():
            for spans in bindings(rule.source, i, j):
                for parts in product(*(x(a, b) for a, b in spans)):
                    own = dict(zip(NAMES, rule.values, strict=True))
                    found.append(use(rule, own, parts))
                limited(found)
        return found

    @cache
    def s(j: int) -> list[Derivation]:
        found = list(x(0, j)) if j <= max_span else []
        for k in range(max(1, j - max_span), j):
            for left, right in product(s(k), x(k, j)):
                glued = Counter(left.features)
                glued.update(right.features)
                glued["Glue"] += 1
                found.append(Derivation(left.words + right.words, glued))
            limited(found)
        return found

    complete = s(len(sentence)) if sentence else [Derivation((), Counter())]
    for derivation in complete:
        words = list(derivation.words)
        unknown = sum((w,) not in model.prob or w == UNKNOWN for w in words)
        derivation.features["LanguageModel"] = model.score(words)
        derivation.features["LanguageModel_OOV"] = unknown
        derivation.features["WordPenalty"] = -len(words) / math.log(10)
    return complete


def joined(sides: Sequence[tuple[str, ...]], gaps: dict[str, int]) -> Side:
    """Return sides of rules as the package has them."""
    words = Vocabulary()
    begin = np.append(0, np.cumsum([len(side) for side in sides])).astype(np.int64)
    symbols = [
        gaps[symbol] if symbol in gaps else int(words.intern([symbol])[0])
        for side in sides
        for symbol in side
    ]
    return Side(words, begin, np.array(symbols, np.int32))


def to_grammar(rules: Sequence[Rule], names: Sequence[str] = NAMES) -> FileGrammar:
    """Return rules as a grammar of the package."""
    return FileGrammar(
        joined([r.source for r in rules], {"[1]": -1, "[2]": -1}),
        joined([r.target for r in rules], {"[1]": -1, "[2]": -2}),
        list(names),
        np.array([r.values for r in rules], float).reshape(len(rules), len(names)),
    )


def features_of(kbest: KBest, h: int) -> dict[str, float]:
    ids, values = kbest.row(h)
    assert list(ids) == sorted(set(ids))
    return dict(zip(kbest.features.names(ids), values.tolist(), strict=True))


def words_of(kbest: KBest, h: int = 0) -> list[str]:
    return kbest.words.names(kbest.hypothesis(h))


def check_list(
    kbest: KBest,
    expected: Sequence[Derivation],
    weight: dict[str, float],
    k: int,
    *,
    unique: bool,
    pruned: bool,
    tolerance: float = 0.0,
) -> None:
    """Compare a list with what should stand in it; where it is pruned, look its entries up."""
    found: Counter[Key] = Counter()
    for h in range(len(kbest)):
        features = features_of(kbest, h)
        score = sum(value * weight.get(name, 0.0) for name, value in features.items())
        assert kbest.score[h] == pytest.approx(score, abs=1e-9)
        found[key(words_of(kbest, h), features)] += 1
    assert (np.diff(kbest.score) <= tolerance).all()
    assert found <= Counter(derivation.key for derivation in expected)
    scores = [derivation.score(weight) for derivation in expected]
    best: dict[tuple[str, ...], float] = {}
    if unique:
        assert len({words for words, _ in found}) == len(kbest)
        for derivation, score in zip(expected, scores, strict=True):
            best[derivation.words] = max(score, best.get(derivation.words, -math.inf))
        scores = list(best.values())
    assert 1 <= len(kbest) <= min(k, len(scores))
    if not pruned:
        assert kbest.score == pytest.approx(sorted(scores, reverse=True)[:k], abs=1e-9)
        for h in range(len(kbest)) if unique else ():
            assert kbest.score[h] == pytest.approx(best[tuple(words_of(kbest, h))], abs=1e-9)


SOURCE_WORDS = "uva"  # a is a target word, too
TARGET_WORDS = "abcz"  # the language model may not know some


@st.composite
def rules(draw: st.DrawFn, sentence: Sequence[str]) -> Rule:
    """A rule that matches a sentence: with no gap or up to two, swapped or not, or no words at all.

    The target side may be empty.
    """
    begin = draw(st.integers(0, len(sentence) - 1))
    end = draw(st.integers(begin + 1, min(len(sentence), begin + 4)))
    source = list(sentence[begin:end])
    for _ in range(draw(st.integers(0, 2))):
        words = [i for i, symbol in enumerate(source) if symbol != "*"]
        if not words:
            break
        first = draw(st.sampled_from(words))
        last = first
        while last + 1 in words and draw(st.booleans()):
            last += 1
        if source[:first] or source[last + 1 :]:
            source[first : last + 1] = ["*"]
    gaps = list(GAPS[: source.count("*")])
    target: list[str] = draw(st.lists(st.sampled_from(TARGET_WORDS), max_size=3))
    for gap in gaps:
        target.insert(draw(st.integers(0, len(target))), gap)
    fill = iter(gaps)
    values = tuple(draw(st.integers(-20, 20)) / 10 for _ in NAMES)
    return Rule(tuple(next(fill) if s == "*" else s for s in source), tuple(target), values)


@st.composite
def sentences_and_rules(draw: st.DrawFn) -> tuple[list[str], list[Rule]]:
    sentence = draw(st.lists(st.sampled_from(SOURCE_WORDS), min_size=1, max_size=5))
    return sentence, draw(st.lists(rules(sentence), min_size=3, max_size=8))
