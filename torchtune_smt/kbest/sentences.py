"""Sentences with references, to be tuned or evaluated on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from torchtune_smt.kbest.lists import Source

ELSEWHERE: Final[list[list[str]]] = [[]]
"""In the place of the references of a sentence that is not in a part of a set."""


class FileNumbers(NamedTuple):
    """What files call some sentences.

    of: the number in the files by `Source.index`.
    n_sentences: how many sentences the files have, from 0.
    """

    of: dict[int, int]
    n_sentences: int


@dataclass(frozen=True)
class Sentences:
    """A set of sentences to tune or to evaluate on.

    sources: ``sources[i].index`` is i, but for a `part` of others.
    references: ``references[i]``: those of ``sources[i]``; none where lists come with BLEU's
        statistics.
    whole: of how many sentences these are a `part`; None: they are all.
    lacking: which lines of the set, from 0, are of sentences that are left out here.
    """

    sources: list[Source]
    references: list[list[list[str]]]
    whole: int | None = None
    lacking: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls,
        source: Sequence[list[str]],
        references: Sequence[list[list[str]]],
        *,
        training: bool = False,
    ) -> Sentences:
        """Return sentences given as words; `training`: they are the bitext of the grammar."""
        sources = [Source(i, words, i if training else -1) for i, words in enumerate(source)]
        return cls(sources, list(references))

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def has_references(self) -> bool:
        """Whether each sentence has references."""
        return all(self.references)

    def lines(self, translations: Sequence[str]) -> Iterator[str]:
        """Yield the lines of a file of translations; empty for a sentence that is left out."""
        remaining = iter(translations)
        for line in range(len(translations) + len(self.lacking)):
            yield ("" if line in self.lacking else next(remaining)) + "\n"

    def sample(self, size: int | None, seed: int) -> Sentences:
        """Return a seeded random sample, numbered anew; all sentences if there are not more."""
        chosen = self.drawn(size, seed)
        return self if len(chosen) == len(self) else self.subset(chosen)

    def drawn(self, size: int | None, seed: int) -> list[int]:
        """Return which sentences `sample` takes."""
        if size is None or size >= len(self):
            return list(range(len(self)))
        chosen = np.random.default_rng(seed).choice(len(self), size, replace=False)
        return sorted(chosen.tolist())

    def part(self, chosen: Iterable[int]) -> Sentences:
        """Return some of the sentences, with their numbers; gains ask for them by these."""
        chosen = list(chosen)
        whole = len(self) if self.whole is None else self.whole
        references = [self.references[i] for i in chosen]
        return Sentences([self.sources[i] for i in chosen], references, whole)

    def numbered_references(self) -> list[list[list[str]]]:
        """Return the references of sentence n at place n, `ELSEWHERE` for those of other parts.

        Empty if there are none at all.
        """
        if self.whole is None or not any(self.references):
            return self.references
        numbered = [ELSEWHERE] * self.whole
        for source, references in zip(self.sources, self.references, strict=True):
            numbered[source.index] = references
        return numbered

    def subset(self, chosen: Sequence[int]) -> Sentences:
        """Return some of the sentences, numbered anew."""
        sources = [replace(self.sources[old], index=new) for new, old in enumerate(chosen)]
        return Sentences(sources, [self.references[i] for i in chosen])
