"""What is said of words that no rule covers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from torchtune_smt.decoders.base import Decoder
from torchtune_smt.kbest.lists import Source

# Characters of a line, in which the most frequent words are named.
_WIDTH = 68


class Uncovered:
    """Counts the words of sentences that a decoder cannot translate."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._counts: Counter[str] = Counter()
        self._words = 0

    def add(self, sources: Iterable[Source]) -> None:
        """Count those of some sentences."""
        for source in sources:
            self._words += len(source.words)
            self._counts.update(self._decoder.uncovered(source))

    def text(self, unknown: str | None) -> str | None:
        """Return a line for the log; None if every word is covered.

        unknown ("keep", "drop"): what the decoder does with them.
        """
        counts = self._counts
        if not counts:
            return None
        fate = {"keep": "unknown, and copied", "drop": "unknown, and dropped"}
        line = f"{counts.total():,} of {self._words:,} words are "
        line += f"{fate.get(unknown or '', 'in no rule')}: "
        shown: list[str] = []
        for word, _ in counts.most_common():
            if len(line) + len(", ".join([*shown, word])) > _WIDTH:
                break
            shown.append(word)
        return line + ", ".join(shown) + (", ..." if len(shown) < len(counts) else "")
