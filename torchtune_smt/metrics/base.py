"""What a sentence-level metric is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.kbest.lists import KBest

References = Sequence[Sequence[list[str]]]
"""``references[i]``: the references of sentence i, each a list of tokens."""


class BoundMetric(Protocol):
    """A metric that knows the references of one set of sentences."""

    def gains(self, kbest: KBest) -> Float64:
        """Return a gain (float64, larger is better) for each hypothesis of a k-best list.

        The references are those of sentence ``kbest.index``.
        """
        ...


class Metric(Protocol):
    """A way to measure how good a hypothesis of one sentence is."""

    def bind(self, references: References, words: Vocabulary) -> BoundMetric:
        """Prepare the references once, for hypotheses written in the ids of `words`."""
        ...


def check_references(references: References) -> None:
    """Raise InputError where a sentence has no references, or only empty ones."""
    for index, alternatives in enumerate(references):
        if not any(alternatives):
            raise InputError(
                f"sentence {index} (counted from 0) has no reference that is not empty; "
                "every sentence needs one"
            )
