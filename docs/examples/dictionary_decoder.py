"""A decoder of one's own: it translates word by word with a dictionary."""

from collections.abc import Sequence
from math import log
from typing import NamedTuple

from torchtune_smt.core.snapshot import Snapshot
from torchtune_smt.core.textio import iterate_lines
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.kbest.lists import KBestLists, Source


class Partial(NamedTuple):
    """A translation of the first words of a sentence."""

    score: float
    words: tuple[str, ...]
    features: dict[str, float]


class DictionaryDecoder(Decoder):
    """Beam search over the translations of each word, in the order of the source.

    Dense features: ``Dictionary``, a log probability, and ``Copied``, words that it does not have.
    Sparse ones: ``pair:WORD~TRANSLATION`` and ``bigram:TRANSLATION~TRANSLATION``.

    Parameters
    ----------
    dictionary : path
        ``WORD TRANSLATION PROBABILITY`` a line.
    k, beam : int
        Length of the lists; partial translations that are kept after each word.
    """

    def __init__(self, dictionary: str, k: int = 50, beam: int = 100) -> None:
        self.k, self.beam = k, beam
        self.dense_names = ["Dictionary", "Copied"]
        self.features = Vocabulary(self.dense_names)
        self.words = Vocabulary()
        self.options: dict[str, list[tuple[str, dict[str, float]]]] = {}
        for line in iterate_lines(dictionary):
            word, translation, probability = line.split()
            option = (translation, {"Dictionary": log(float(probability))})
            self.options.setdefault(word, []).append(option)

    def decode(
        self, sources: Sequence[Source], snapshot: Snapshot, *, k: int | None = None
    ) -> KBestLists:
        """Return the k-best list of each sentence."""
        found = [self._search(source.words, snapshot)[: k or self.k] for source in sources]
        return KBestLists.of_strings(
            [[" ".join(one.words[1:]) for one in some] for some in found],
            [[one.features for one in some] for some in found],
            scores=[[one.score for one in some] for some in found],
            index=[source.index for source in sources],
            words=self.words,
            names=self.features,
        )

    def _search(self, source: Sequence[str], snapshot: Snapshot) -> list[Partial]:
        """Return translations of a sentence, best first."""
        beam = [Partial(0.0, ("<s>",), {})]
        for word in source:
            steps: dict[tuple[str, str], tuple[dict[str, float], float]] = {}
            longer = []
            for one in beam:
                for translation, dense in self.options.get(word, [(word, {"Copied": 1.0})]):
                    step = (one.words[-1], translation)
                    if step not in steps:
                        names = f"pair:{word}~{translation}", f"bigram:{'~'.join(step)}"
                        added = {**dense, **dict.fromkeys(names, 1.0)}
                        weights = snapshot.read(self.features, self.features.intern([*added]))
                        steps[step] = added, float(weights @ [*added.values()])
                    longer.append((one.score + steps[step][1], one, step))
            longer.sort(key=lambda found: -found[0])
            beam = []
            for score, one, step in longer[: self.beam]:
                sums = {n: one.features.get(n, 0.0) + x for n, x in steps[step][0].items()}
                beam.append(Partial(score, (*one.words, step[1]), {**one.features, **sums}))
        return beam
