"""Splitting compounds: Koehn and Knight (2003), "Empirical methods for compound splitting"."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Self

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.text import whole_number
from torchtune_smt.core.textio import atomic_writer, iterate_lines

FILLERS: Final[Mapping[str, tuple[str, ...]]] = {"de": ("", "s", "es")}
"""Letters that may stand between the parts of a compound, by language."""

LEAST: Final = 4
"""Letters of a part, at least."""


class CompoundSplitter:
    """Splits words into words of a text, where these are more frequent.

    Of all ways to take a word apart, itself among them, into parts that occur in the text, with
    filler letters between them, the one is chosen whose parts have the largest geometric mean of
    counts; of equal ones that of the fewest parts. Parts have `LEAST` letters or more. Case does
    not matter, and a part is spelt as it is most often.

    language: one of `FILLERS`.
    counts: how often each word of the text occurs, 1 or more.
    """

    def __init__(self, language: str, counts: Mapping[str, int]) -> None:
        self._fillers = FILLERS[language]
        # Others are no parts, and are not split.
        self.counts = {
            word: count for word, count in counts.items() if len(word) >= LEAST and word.isalpha()
        }
        total: Counter[str] = Counter()
        for word, count in self.counts.items():
            total[word.lower()] += count
        self._logarithms = {word: math.log(count) for word, count in total.items()}
        # The most frequent spelling comes last, and of equal ones the first of the alphabet.
        order = sorted(self.counts.items(), key=lambda entry: entry[0], reverse=True)
        order.sort(key=lambda entry: entry[1])
        self._spelling = {word.lower(): word for word, _ in order}
        self._found: dict[str, list[str]] = {}

    @classmethod
    def of_text(cls, language: str, sentences: Iterable[Sequence[str]]) -> Self:
        """Return a splitter with the frequencies of a text."""
        return cls(language, Counter(word for words in sentences for word in words))

    @classmethod
    def load(cls, language: str, path: str | os.PathLike[str]) -> Self:
        """Return the splitter that `save` has written."""
        counts = {}
        for number, line in enumerate(iterate_lines(path), start=1):
            word, _, text = line.partition("\t")
            count = whole_number(text)
            if not word or not count:
                message = "expected a word, a tab and its count; the file is damaged"
                raise InputError(message, path=path, line=number)
            counts[word] = count
        return cls(language, counts)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the frequencies, a word, a tab and its count a line."""
        with atomic_writer(path) as file:
            file.writelines(f"{word}\t{count}\n" for word, count in sorted(self.counts.items()))

    def split(self, words: Iterable[str]) -> list[str]:
        """Return the words, parts in the place of each that is split."""
        return [part for word in words for part in self.parts(word)]

    def parts(self, word: str) -> list[str]:
        """Return the parts of a word: itself, if it is not split."""
        if word not in self._found:
            self._found[word] = self._best(word)
        return self._found[word]

    def _best(self, word: str) -> list[str]:
        letters = word.lower()
        if len(letters) < 2 * LEAST or not word.isalpha() or len(letters) != len(word):
            return [word]
        # best[end][n]: of n parts that end there, the largest sum of logarithms, and the parts.
        best: list[dict[int, tuple[float, tuple[str, ...]]]] = [{} for _ in range(len(letters) + 1)]
        best[0][0] = (0.0, ())
        for begin in range(len(letters) - LEAST + 1):
            starts = self._behind_filler(letters, begin, best)
            for end in range(begin + LEAST, len(letters) + 1) if starts else ():
                own = self._logarithms.get(letters[begin:end])
                if own is None:
                    continue
                for n, (score, parts) in starts.items():
                    known = best[end].get(n + 1)
                    if known is None or score + own > known[0]:
                        best[end][n + 1] = (score + own, (*parts, letters[begin:end]))
        complete = best[len(letters)]
        if not complete:
            return [word]
        # Rounded, so that of equal ones the first, with the fewest parts, is found.
        n = max(sorted(complete), key=lambda n: round(complete[n][0] / n, 9))
        return [word] if n == 1 else [self._spelling[part] for part in complete[n][1]]

    def _behind_filler(
        self, letters: str, begin: int, best: list[dict[int, tuple[float, tuple[str, ...]]]]
    ) -> dict[int, tuple[float, tuple[str, ...]]]:
        """Return the best splits, by the number of parts, behind which a part may begin."""
        starts = dict(best[0]) if begin == 0 else {}
        for filler in self._fillers:
            end = begin - len(filler)
            if end <= 0 or letters[end:begin] != filler:
                continue
            for n, split in best[end].items():
                if n not in starts or split[0] > starts[n][0]:
                    starts[n] = split
        return starts
