"""Translations of sentences, and their score."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

import numpy as np

from torchtune_smt.core.snapshot import Snapshot
from torchtune_smt.decoders.base import Decoder, lists_of
from torchtune_smt.kbest.lists import Source
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.metrics.corpus import CorpusScore, bleu_of_statistics, corpus_bleu


def translate(
    decoder: Decoder, snapshot: Snapshot, sources: Sequence[Source], batch_size: int = 64
) -> list[str]:
    """Return the best translation of each sentence as one line of words."""
    lines = []
    for begin in range(0, len(sources), batch_size):
        batch = sources[begin : begin + batch_size]
        lines += [kbest.text(0) for kbest in lists_of(decoder, batch, snapshot, 1)]
    return lines


def evaluate(
    decoder: Decoder, snapshot: Snapshot, sentences: Sentences
) -> tuple[CorpusScore, list[str]]:
    """Return corpus BLEU of the best hypotheses, and these, one a line.

    Without references BLEU comes from the statistics of the lists, and a line has the place of
    the hypothesis in its list (from 0, after copies were dropped).
    """
    if sentences.has_references:
        lines = translate(decoder, snapshot, sentences.sources)
        return score_corpus(lines, sentences), lines
    best = lists_of(decoder, sentences.sources, snapshot, 1)
    assert best.statistics is not None and best.entry is not None
    score = bleu_of_statistics(best.statistics.sum(axis=0, dtype=np.int64))
    signature = f"statistics:scores.dat|smooth:exp|version:{version('sacrebleu')}"
    return CorpusScore("BLEU", score, signature), [str(entry) for entry in best.entry.tolist()]


def score_corpus(hypotheses: Sequence[str], sentences: Sentences) -> CorpusScore:
    """Return corpus BLEU of tokenised translations (sacrebleu, ``tokenize=none``)."""
    references = [[" ".join(words) for words in refs] for refs in sentences.references]
    return corpus_bleu(hypotheses, references)
