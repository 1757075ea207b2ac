"""All ways to translate a sentence with phrases, one after the other: the reference of tests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from hiero_reference import Derivation, TooManyError, joined
from hypothesis import strategies as st
from lm_reference import DictModel

from torchtune_smt.grammar.file_grammar import PhraseTable
from torchtune_smt.grammar.reordering import ORIENTATIONS, ReorderingType

NAMES = ["TranslationModel0_0", "TranslationModel0_1"]
OWN = ["Distortion0_0", "LM0_0", "WordPenalty0_0", "PhrasePenalty0_0", "UnknownWordPenalty0_0"]


@dataclass(frozen=True)
class Phrase:
    source: tuple[str, ...]
    target: tuple[str, ...]
    values: tuple[float, ...]
    reordering: tuple[float, ...]


@dataclass
class Step:
    """A phrase in its place."""

    first: int
    last: int
    phrase: Phrase | None
    target: tuple[str, ...]
    features: Counter[str] = field(default_factory=Counter)


def reordering_names(kind: ReorderingType) -> list[str]:
    return [f"LexicalReordering0_{i}" for i in range(kind.scores)]


def sparse_name(source: Sequence[str], target: Sequence[str]) -> str:
    return f"rule_id:{'_'.join(source)}~{'_'.join(target)}"


def class_names(kind: ReorderingType, column: int, behind: bool, rule: str = "") -> list[str]:
    """The sparse features of an orientation; `rule` is what a lexicalised name ends in."""
    name = ORIENTATIONS[kind.kind][column].split()[0]
    if behind:
        names = [f"behind_{name}"]
    elif name in ("left", "right"):
        names = [f"before_{name}"]
    else:
        names = [f"before_{name}", "monotone" if name == "monotone" else "nonmonotone"]
    return [f"lex_reordering:{n}{rule}" for n in names]


def orientation(kind: str, monotone: bool, swap: bool, right: bool) -> int:
    if kind == "leftright":
        return 0 if right else 1
    if kind == "monotonicity":
        return 0 if monotone else 1
    if monotone or swap:
        return 0 if monotone else 1
    # Of Moses's tables the third column is that of the left, and the fourth that of the right
    # (DL = 2 and DR = 3 in its LRModel.h, and so ScorerMSLR writes them).
    return 3 if kind == "mslr" and right else 2


def towards_before(kind: ReorderingType, before: list[tuple[int, int]], first: int, last: int):
    """The orientation of a phrase (first and last word) behind others; <s> is the first of them.

    Hierarchical: towards the block on top of the stack of Galley and Manning's shift-reduce parser,
    which joins the two on top as long as one follows the other in the source.
    """
    begin, end = before[-1]
    if kind.hierarchical:
        stack: list[tuple[int, int]] = []
        for span in before:
            stack.append(span)
            while len(stack) > 1:
                left, right = sorted(stack[-2:])
                if left[1] + 1 != right[0]:
                    break
                stack[-2:] = [(left[0], right[1])]
        begin, end = stack[-1]
    return orientation(kind.kind, first == end + 1, last + 1 == begin, first > end)


def towards_behind(kind: ReorderingType, covered: set[int], last: tuple[int, int], now):
    """The orientation of the last phrase towards the next one (Moses's, if hierarchical)."""
    begin, end = last
    first, final = now
    monotone, swap = first == end + 1, final + 1 == begin
    if kind.hierarchical:
        monotone = monotone or (first > end and end + 1 not in covered)
        swap = swap or (final < begin and begin - 1 not in covered)
    return orientation(kind.kind, monotone, swap, first > end)


def all_translations(
    phrases: Sequence[Phrase],
    kind: ReorderingType | None,
    model: DictModel,
    sentence: Sequence[str],
    distortion_limit: int,
    limit: int = 2000,
    lexicalized: bool = False,
) -> list[Derivation]:
    """Return every derivation with its features; `lexicalized`: with the phrase in sparse names."""
    n = len(sentence)
    table = {(phrase.source, phrase.target): phrase for phrase in reversed(phrases)}
    alone = {phrase.source for phrase in table.values()}
    jump = n if distortion_limit < 0 else distortion_limit

    def options(first: int, last: int) -> Iterator[Step]:
        words = tuple(sentence[first : last + 1])
        for phrase in table.values():
            if phrase.source == words:
                yield Step(first, last, phrase, phrase.target)
        if first == last and words not in alone:
            yield Step(first, last, None, words)

    found: list[Derivation] = []
    # Without a model of reordering, phrases still have an order.
    order = ReorderingType.parse("msd-bidirectional-fe") if kind is None else kind

    def rule_of(step: Step) -> str:
        source = "_".join(sentence[step.first : step.last + 1])
        return f":{source}~{'_'.join(step.target)}" if lexicalized else ""

    def features(steps: list[Step]) -> Counter[str]:
        total: Counter[str] = Counter()
        words: list[str] = []
        spans, covered = [(-1, -1)], set()
        for i, step in enumerate(steps):
            now = (step.first, step.last)
            words += step.target
            total[OWN[0]] -= abs(step.first - spans[-1][1] - 1)
            total[OWN[3]] += 1
            total[sparse_name(sentence[step.first : step.last + 1], step.target)] += 1
            if step.phrase is None:
                total[OWN[4]] -= 100
            else:
                total.update(dict(zip(NAMES, step.phrase.values, strict=True)))
            names = reordering_names(kind) if kind is not None else []
            column = towards_before(order, spans, *now)
            total.update(class_names(order, column, False, rule_of(step)))
            if kind is not None and kind.backward and step.phrase is not None:
                total[names[column]] += step.phrase.reordering[column]
            before = steps[i - 1].phrase if i else None
            column = towards_behind(order, covered, spans[-1], now)
            if i:
                total.update(class_names(order, column, True, rule_of(steps[i - 1])))
            if kind is not None and kind.forward and before is not None:
                column += kind.scores - kind.orientations
                total[names[column]] += before.reordering[column]
            spans.append(now)
            covered |= set(range(step.first, step.last + 1))
        total[OWN[1]] = model.score(words) * math.log(10)
        total[OWN[2]] = -len(words)
        return total

    def extend(steps: list[Step], covered: frozenset[int]) -> None:
        if len(covered) == n:
            words = tuple(word for step in steps for word in step.target)
            found.append(Derivation(words, features(steps)))
            if len(found) > limit:
                raise TooManyError
            return
        gap = min(set(range(n)) - covered)
        end = steps[-1].last if steps else -1
        for first in range(gap, n):
            for last in range(first, n):
                span = frozenset(range(first, last + 1))
                if span & covered:
                    break
                near = abs(first - end - 1) <= jump and last + 1 - gap <= jump
                if first == gap or near:
                    for step in options(first, last):
                        extend([*steps, step], covered | span)

    extend([], frozenset())
    return found


def to_table(phrases: Sequence[Phrase], kind: ReorderingType | None) -> PhraseTable:
    """Return phrases as a table of the package."""
    names = NAMES + (reordering_names(kind) if kind is not None else [])
    rows = [phrase.values + phrase.reordering for phrase in phrases]
    return PhraseTable(
        joined([phrase.source for phrase in phrases], {}),
        joined([phrase.target for phrase in phrases], {}),
        names,
        np.array(rows, float).reshape(len(phrases), len(names)),
        reordering=kind,
    )


TYPES = [
    "wbe-msd-bidirectional-fe-allff",
    "hier-msd-bidirectional-fe",
    "msd-backward-fe",
    "hier-mslr-bidirectional-fe-allff",
    "phrase-mslr-forward-f",
    "hier-monotonicity-backward-fe",
    "leftright-bidirectional-fe",
    "hier-msd-forward-fe",
]


@st.composite
def sentences_and_phrases(draw: st.DrawFn, longest: int = 5):
    """A sentence, the type of a reordering model or None, and phrases, most of which match."""
    sentence = draw(st.lists(st.sampled_from("uva"), min_size=1, max_size=longest))
    kind = draw(st.sampled_from([None, *map(ReorderingType.parse, TYPES)]))
    scores = 0 if kind is None else kind.scores
    phrases = []
    for _ in range(draw(st.integers(1, 7))):
        begin = draw(st.integers(0, len(sentence) - 1))
        end = draw(st.integers(begin + 1, min(len(sentence), begin + 3)))
        phrases.append(
            Phrase(
                tuple(sentence[begin:end]),
                tuple(draw(st.lists(st.sampled_from("abcz"), max_size=3))),
                tuple(draw(st.integers(-20, 0)) / 10 for _ in NAMES),
                tuple(draw(st.integers(-20, 0)) / 10 for _ in range(scores)),
            )
        )
    return sentence, kind, phrases
