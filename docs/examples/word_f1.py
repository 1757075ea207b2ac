"""A metric: the harmonic mean of precision and recall of words, whatever their order."""

from collections import Counter

import numpy as np


class WordF1:
    """F1 against the closest reference, in 0..1."""

    def bind(self, references, words):
        """Count the words of the references once."""
        return BoundWordF1([[Counter(words.intern(r).tolist()) for r in row] for row in references])


class BoundWordF1:
    """`WordF1` for one set of references."""

    def __init__(self, references):
        self.references = references

    def gains(self, kbest):
        """Return the gain of each hypothesis."""
        bags = [Counter(kbest.hypothesis(h).tolist()) for h in range(len(kbest))]
        return np.array([max(f1(bag, r) for r in self.references[kbest.index]) for bag in bags])


def f1(bag, reference):
    """Return the F1 of two bags of words."""
    return 2 * (bag & reference).total() / max(1, bag.total() + reference.total())
