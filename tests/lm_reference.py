"""Slow, obvious n-gram models: the references of the language model tests."""

import math
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from torchtune_smt.core.text import split_words
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.lm.ngrams import Ngrams

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"


def perplexity(model, lines):
    """Return the perplexity of tokenised lines, ``</s>`` and unknown words counted."""
    sentences = [split_words(line) for line in lines]
    total, _ = model.score_all(sentences)
    return 10.0 ** (-total.sum() / sum(len(sentence) + 1 for sentence in sentences))


class DictModel(NamedTuple):
    """A back-off model in two dicts from tuples of words."""

    prob: dict[tuple[str, ...], float]
    backoff: Mapping[tuple[str, ...], float] = MappingProxyType({})

    @property
    def order(self):
        return max(map(len, self.prob))

    def logp(self, history, word):
        """log10 p(word | history), the whole history given."""
        if (word,) not in self.prob:
            word = UNKNOWN
        known = [w if (w,) in self.prob else UNKNOWN for w in history]
        context = tuple(known[max(0, len(known) - self.order + 1) :])
        total = 0.0
        while (*context, word) not in self.prob:
            total += self.backoff.get(context, 0.0)
            context = context[1:]
        return total + self.prob[(*context, word)]

    def score(self, words, bos=True, eos=True):
        history = (BEGIN,) if bos else ()
        total = 0.0
        for word in words + [END] * eos:
            total += self.logp(history, word)
            history += (word,)
        return total

    def arpa(self):
        """The model as ARPA text."""
        orders = Counter(map(len, self.prob))
        lines = ["\\data\\", *(f"ngram {n}={orders[n]}" for n in sorted(orders))]
        for n in sorted(orders):
            lines += ["", f"\\{n}-grams:"]
            for ngram in (g for g in self.prob if len(g) == n):
                line = f"{self.prob[ngram]:.7g}\t{' '.join(ngram)}"
                if ngram in self.backoff:
                    line += f"\t{self.backoff[ngram]:.7g}"
                lines.append(line)
        return "\n".join([*lines, "", "\\end\\", ""])


def to_dict(ngrams):
    """Return a list of n-grams as dicts."""
    model = DictModel({}, {})
    for n, rows in enumerate(ngrams.rows, start=1):
        for row, prob, backoff in zip(rows, ngrams.prob[n - 1], ngrams.backoff[n - 1], strict=True):
            ngram = tuple(ngrams.words.names(row))
            model.prob[ngram] = float(prob)
            if n < ngrams.order:
                model.backoff[ngram] = float(backoff)
    return model


def to_ngrams(model):
    """Return dicts as a list of n-grams."""
    words = Vocabulary([UNKNOWN])
    words.intern([g[0] for g in model.prob if len(g) == 1])
    ngrams = [[(w,) for w in words.names(range(len(words)))]]
    ngrams += [[g for g in model.prob if len(g) == n] for n in range(2, model.order + 1)]
    rows = [np.array([words.lookup(g) for g in grams], np.int32) for grams in ngrams]
    return Ngrams(
        words,
        [own.reshape(-1, n) for n, own in enumerate(rows, start=1)],
        [np.array([model.prob[g] for g in grams], np.float32) for grams in ngrams],
        [np.array([model.backoff.get(g, 0.0) for g in grams], np.float32) for grams in ngrams],
    )


@st.composite
def dict_models(draw, closed=False, min_order=1):
    """Random back-off models of order 1 to 6; `closed`: with all prefixes and suffixes.

    Numbers are multiples of 1/64, so that sums are exact, and 0 is frequent among back-offs.
    """
    order = draw(st.integers(min_order, 6))
    words = [BEGIN, END, UNKNOWN, *"abcd"[: draw(st.integers(1, 4))]]
    ngrams = {(w,) for w in words}
    inner = [w for w in words if w not in (BEGIN, END)]
    longer = st.lists(st.sampled_from(inner), min_size=0, max_size=order).map(tuple)
    for core in draw(st.lists(longer, max_size=25)):
        ngram = core
        if draw(st.booleans()) and len(ngram) < order:
            ngram = (BEGIN, *ngram)
        if draw(st.booleans()) and len(ngram) < order:
            ngram = (*ngram, END)
        if len(ngram) >= 2:
            ngrams.add(ngram)
    # An order that is promised must have an n-gram.
    ngrams.add(tuple(draw(st.sampled_from(inner)) for _ in range(order)))
    if closed:
        for ngram in list(ngrams):
            for i in range(len(ngram)):
                ngrams |= {ngram[i:j] for j in range(i + 1, len(ngram) + 1)}
    else:
        for n in range(2, order):
            if not any(len(g) == n for g in ngrams):
                ngrams.add(tuple(draw(st.sampled_from(inner)) for _ in range(n)))
    model = DictModel({}, {})
    for ngram in sorted(ngrams, key=lambda g: (len(g), g)):
        model.prob[ngram] = -draw(st.integers(0, 200)) / 64
        if len(ngram) < order and draw(st.booleans()):
            model.backoff[ngram] = draw(st.integers(-100, 20)) / 64
    return model


def kneser_ney(sentences, order, fallback):
    """Interpolated modified Kneser-Ney by the book, one n-gram after the other.

    Recursive definition of p over counts in dicts; discounts as Chen & Goodman's, or `fallback`
    where they cannot be estimated.
    """
    padded = [[BEGIN, *words, END] for words in sentences]
    vocabulary = {w for words in padded for w in words} | {UNKNOWN}
    frequency = [Counter() for _ in range(order + 1)]
    for words in padded:
        for n in range(1, order + 1):
            frequency[n].update(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
    counts = [{} for _ in range(order + 1)]
    for n in range(1, order + 1):
        for ngram in frequency[n]:
            if n == order or ngram[0] == BEGIN:
                counts[n][ngram] = frequency[n][ngram]
            else:
                counts[n][ngram] = len({g[0] for g in frequency[n + 1] if g[1:] == ngram})
    counts[1][(BEGIN,)] = 0
    counts[1][(UNKNOWN,)] = 0
    discounts = []
    for n in range(order + 1):
        kinds = Counter(counts[n].values())
        d = [0.0, *fallback]
        if all(kinds[c] for c in (1, 2, 3)):
            y = kinds[1] / (kinds[1] + 2 * kinds[2])
            tried = [c - (c + 1) * y * kinds[c + 1] / kinds[c] for c in (1, 2, 3)]
            if all(0 <= value <= c for c, value in enumerate(tried, start=1)):
                d = [0.0, *tried]
        discounts.append(d)

    def followers(context):
        return [c for g, c in counts[len(context) + 1].items() if g[:-1] == context]

    def gamma(context):
        after = followers(context)
        if not sum(after):
            return 1.0
        d = discounts[len(context) + 1]
        return sum(d[min(c, 3)] for c in after) / sum(after)

    def p(ngram):
        if not ngram:
            return 1.0 / (len(vocabulary) - 1)
        context, n = ngram[:-1], len(ngram)
        count = counts[n].get(ngram, 0)
        rest = gamma(context) * p(ngram[1:])
        if not sum(followers(context)):
            return rest
        return (count - discounts[n][min(count, 3)]) / sum(followers(context)) + rest

    def log10(value):
        # Discounts of 0 leave nothing to back-off; -99 is ARPA's log10 0.
        return math.log10(value) if value > 1e-99 else -99.0

    model = DictModel({}, {})
    for n in range(1, order + 1):
        for ngram in counts[n]:
            model.prob[ngram] = 0.0 if ngram == (BEGIN,) else log10(p(ngram))
            if n < order:
                model.backoff[ngram] = log10(gamma(ngram))
    return model
