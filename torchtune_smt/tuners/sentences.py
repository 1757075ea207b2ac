"""Sentences with references, as tuners take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.kbest.lists import KBest, Source
from torchtune_smt.metrics.corpus import CorpusScore, corpus_bleu


@dataclass(frozen=True)
class Sentences:
    """A set of sentences to tune or to evaluate on.

    Attributes
    ----------
    sources : list of Source
        ``sources[i].index`` is i.
    references : list of lists of word lists
        ``references[i]``: those of sentence i.
    """

    sources: list[Source]
    references: list[list[list[str]]]

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

    def subset(self, chosen: Sequence[int]) -> Sentences:
        """Return some of the sentences, numbered anew."""
        sources = [replace(self.sources[old], index=new) for new, old in enumerate(chosen)]
        return Sentences(sources, [self.references[i] for i in chosen])


def words_of(decoder: Decoder, kbest: KBest, h: int = 0) -> str:
    """Return the words of a hypothesis in one line."""
    return " ".join(decoder.target_words.names(kbest.hypothesis(h)))


def translate(
    decoder: Decoder, weights: Weights, sources: Sequence[Source], batch_size: int = 64
) -> list[str]:
    """Return the best translation of each sentence as one line of words."""
    lines = []
    for begin in range(0, len(sources), batch_size):
        batch = sources[begin : begin + batch_size]
        lines += [words_of(decoder, kbest) for kbest in decoder.decode(batch, weights, k=1)]
    return lines


def score_corpus(hypotheses: Sequence[str], sentences: Sentences) -> CorpusScore:
    """Return corpus BLEU of tokenised translations (sacrebleu, ``tokenize=none``)."""
    references = [[" ".join(words) for words in refs] for refs in sentences.references]
    return corpus_bleu(hypotheses, references)
