"""Features of the texts of k-best lists: what hypotheses say of each other, and of their words.

A hypothesis is the better the nearer it is to the others that are probable: *risk* (Kumar and Byrne
2004, "Minimum Bayes-risk decoding for statistical machine translation"); and words that nobody else
has are often wrong. No reference is asked, so that new lists get the same features.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from os import PathLike
from typing import Any, Final, Self

import numpy as np
from rapidfuzz.distance import Levenshtein, Prefix
from rapidfuzz.process import cdist

from torchtune_smt.core.arrays import Float64, Int32, Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.weights_io import read_comment
from torchtune_smt.kbest.columns import with_dense
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.order import scale_of
from torchtune_smt.kbest.stored_lists import names_in

# Of the entropy that lists could have, so much is theirs on average under the scale of each risk.
SHARES: Final = {"risk_sharp": 0.2, "risk_middle": 0.4, "risk_flat": 0.6}
# Hypotheses that others are compared with, the most probable ones.
MOST: Final = 100
# A word of no more lists than these is rare.
RARE: Final = 3

NAMES: Final = (
    *SHARES,
    "distance_first",
    *("text_words", "text_frequency", "text_rare", "text_repeats"),
)
"""The dense features."""

_TITLE: Final = "text features: "


@dataclass(frozen=True)
class TextFeatures:
    """Dense features of texts: all that has to be known to give them to new lists.

    - ``risk_...``: the expected edit distance, in letters, to the hypotheses h of the list (the 100
      most probable ones) with p(h) ∝ exp(scale · W·H), W the weights that tuning starts from, at
      three scales;
    - ``distance_first``: that to the first hypothesis, in the decoder's order;
    - ``text_words``: the number of words; ``text_frequency``: the sum of log(n) over them, n the
      number of lists, of those tuned on, in which the word is (1 at least, as of a word that is in
      this list alone, so that nothing depends on whether the list is among these);
      ``text_rare``: the number of words with n ≤ 3; ``text_repeats``: words behind the same word.

    start: W, by name.
    scales: one for each risk.
    frequency: n, where it is above 1.
    """

    start: Mapping[str, float]
    scales: tuple[float, ...]
    frequency: Mapping[str, int]

    @classmethod
    def of(cls, lists: KBestLists, start: Float64) -> Self:
        """Return the features of lists that are tuned on, from weights `start` (float64 [D])."""
        assert lists.features is not None and lists.words is not None
        begin, tokens = lists.strings()
        owner = np.repeat(np.arange(len(lists)), np.diff(begin[lists.begin]))
        there = np.unique(owner * len(lists.words) + tokens) % len(lists.words)
        count = np.bincount(there, minlength=len(lists.words))
        own, often = np.flatnonzero(start), np.flatnonzero(count > 1)
        score = lists.rows.dot(start)
        return cls(
            lists.features.named(own, start[own]),
            tuple(scale_of(lists.begin, score, share) for share in SHARES.values()),
            lists.words.named(often, count[often]),
        )

    @classmethod
    def read(cls, path: str | PathLike[str]) -> TextFeatures | None:
        """Return what a weights file says of them; raise InputError where that is not whole."""

        def made(given: Any) -> TextFeatures:
            scales = tuple(float(scale) for scale in given["scales"])
            start = {str(name): float(value) for name, value in given["start"].items()}
            frequency = {str(word): int(count) for word, count in given["frequency"].items()}
            if len(scales) != len(SHARES):
                raise ValueError
            return cls(start, scales, frequency)

        return read_comment(path, _TITLE, made)

    def comment(self) -> str:
        """Return what a weights file says."""
        return _TITLE + json.dumps(asdict(self))

    def added(self, lists: KBestLists) -> KBestLists:
        """Return lists, with names of features and words, that have these features, too.

        Raises InputError: they have a feature of such a name already, or none of `start`.
        """
        features: Any = lists.features
        if (twice := [name for name in NAMES if name in features]) and np.isin(
            features.lookup(twice), lists.rows.feature
        ).any():
            raise InputError(
                f"the lists have a feature {twice[0]!r} of their own; rename it, or tune with "
                "texts=none"
            )
        start = names_in(features, list(self.start))
        if start and (features.lookup(start) < 0).all():
            raise InputError(
                f"the lists have no feature {start[0]!r}: risk is computed from the "
                "features that weights were tuned on; are these lists of another decoder?"
            )
        assert lists.words is not None
        begin, tokens = lists.strings()
        kinds, place = np.unique(tokens, return_inverse=True)
        words = lists.words.names(kinds)
        text = np.array([*words, ""], object)[place].tolist()
        risks = self._risks(lists, [" ".join(text[a:b]) for a, b in pairwise(begin.tolist())])
        often = np.array([self.frequency.get(word, 1) for word in words], np.float64)[place]
        return with_dense(lists, NAMES, np.hstack([risks, _of_words(begin, tokens, often)]))

    def _risks(self, lists: KBestLists, texts: Sequence[str]) -> Float64:
        """Return risks, and distances to the first hypothesis, float64 [n, 4]."""
        active, rows = lists.rows.numbered()
        assert lists.features is not None
        names = names_in(lists.features, list(self.start))
        start = FrozenWeights.of(dict(zip(names, self.start.values(), strict=True)))
        score = rows.dot(start.read(lists.features, active))
        scales = np.array(self.scales)[:, None]
        out: Float64 = np.empty((lists.n_hypotheses, len(SHARES) + 1))
        for first, last in pairwise(lists.begin.tolist()):
            own, here = _apart(texts[first:last]), score[first:last]
            top = np.argsort(-here, kind="stable")[:MOST]
            share = np.exp(scales * (here[top] - here[top[0]]))
            share /= share.sum(axis=1, keepdims=True)
            # The distances of all pairs are half as many where they are symmetric.
            few = last - first <= 2 * MOST
            others = [0, *top.tolist()]
            found = cdist(
                own,
                own if few else [own[h] for h in others],
                scorer=Levenshtein.distance,
                dtype=np.int32,
            )
            found = np.ascontiguousarray(found[:, others] if few else found)
            out[first:last, :-1] = found[:, 1:] @ share.T
            out[first:last, -1] = found[:, 0]
        return out


def _apart(texts: Sequence[str]) -> Sequence[str]:
    """Return texts without what all begin and end with, which no distance between them counts."""
    for _ in range(2):
        # Texts between these in order begin as they do.
        cut = Prefix.similarity(min(texts), max(texts))
        texts = [text[cut:][::-1] for text in texts]
    return texts


def _of_words(begin: Int64, tokens: Int32, often: Float64) -> Float64:
    """Return the features of words, float64 [n, 4]; `often`: how many lists have each token."""
    length = np.diff(begin)
    owner = np.repeat(np.arange(length.size), length)
    repeats = np.zeros(tokens.size, np.bool_)
    repeats[1:] = (tokens[1:] == tokens[:-1]) & (owner[1:] == owner[:-1])
    columns = (np.log(often), often <= RARE, repeats)
    return np.column_stack(
        [length, *(np.bincount(owner, column, length.size) for column in columns)]
    )


def added_by(
    path: str | PathLike[str], weighted: Collection[str]
) -> Callable[[KBestLists], KBestLists] | None:
    """Return what gives lists the features of texts that a weights file needs, if it needs some.

    weighted: the features that have a weight there. Where some are of such features and the file
        does not say how they are computed, what is returned raises InputError.
    """
    found = TextFeatures.read(path)
    if found is not None:
        return found.added
    needed = [name for name in NAMES if name in weighted]

    def checked(lists: KBestLists) -> KBestLists:
        for name in needed:
            if lists.features is not None and name not in lists.features:
                raise InputError(
                    f"has a weight for {name}, and no line '# {_TITLE}...', by which it is "
                    "computed; take the file as it was written",
                    path=path,
                )
        return lists

    return checked if needed else None
