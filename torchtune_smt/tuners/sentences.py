"""Translations of sentences, and their score."""

from __future__ import annotations

from collections.abc import Sequence

from torchtune_smt.core.snapshot import Snapshot
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.kbest.lists import Source
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.metrics.corpus import CorpusScore, corpus_bleu


def translate(
    decoder: Decoder, snapshot: Snapshot, sources: Sequence[Source], batch_size: int = 64
) -> list[str]:
    """Return the best translation of each sentence as one line of words."""
    lines = []
    for begin in range(0, len(sources), batch_size):
        batch = sources[begin : begin + batch_size]
        lines += [kbest.text(0) for kbest in decoder.decode(batch, snapshot, k=1)]
    return lines


def score_corpus(hypotheses: Sequence[str], sentences: Sentences) -> CorpusScore:
    """Return corpus BLEU of tokenised translations (sacrebleu, ``tokenize=none``)."""
    references = [[" ".join(words) for words in refs] for refs in sentences.references]
    return corpus_bleu(hypotheses, references)
