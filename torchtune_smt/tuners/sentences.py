"""Translations of sentences, and their score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import NamedTuple

import numpy as np

from torchtune_smt.core.snapshot import Snapshot
from torchtune_smt.decoders.base import Decoder, lists_of
from torchtune_smt.kbest.lists import KBest, KBestLists, Source
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.metrics.base import Judge
from torchtune_smt.metrics.corpus import CorpusScore, bleu_scores, corpus_bleu


def translate(
    decoder: Decoder, snapshot: Snapshot, sources: Sequence[Source], batch_size: int = 64
) -> list[str]:
    """Return the best translation of each sentence as one line of words."""
    return [kbest.text(0) for kbest in _best(decoder, snapshot, sources, batch_size)]


def _best(
    decoder: Decoder, snapshot: Snapshot, sources: Sequence[Source], batch_size: int = 64
) -> Iterator[KBest]:
    """Yield the list of each sentence, of its best hypothesis alone."""
    for begin in range(0, len(sources), batch_size):
        yield from lists_of(decoder, sources[begin : begin + batch_size], snapshot, 1)


class Evaluated(NamedTuple):
    """Corpus BLEU of the best hypotheses of a set, these, and what a metric says; see `Score`."""

    score: CorpusScore
    lines: list[str]
    tuned: float | None = None


def evaluate(
    decoder: Decoder, snapshot: Snapshot, sentences: Sentences
) -> tuple[CorpusScore, list[str]]:
    """Return corpus BLEU of the best hypotheses, and these, one a line; see `evaluate_by`."""
    return evaluate_by(None, decoder, snapshot, sentences)[:2]


def evaluate_by(
    judge: Judge | None, decoder: Decoder, snapshot: Snapshot, sentences: Sentences
) -> Evaluated:
    """Return corpus BLEU of the best hypotheses, these, and the score by a metric, if any.

    Without references BLEU comes from the statistics of the lists, and a line has the place of
    the hypothesis in its list (from 0, after copies were dropped).
    """
    if sentences.has_references:
        best = list(_best(decoder, snapshot, sentences.sources))
        lines = [kbest.text(0) for kbest in best]
        score = score_corpus(lines, sentences)
        if judge is None:
            return Evaluated(score, lines)
        return Evaluated(score, lines, judge.score(judge.judged(KBestLists.of(best))))
    found = lists_of(decoder, sentences.sources, snapshot, 1)
    assert found.statistics is not None and found.entry is not None
    bleu = float(bleu_scores(found.statistics.sum(axis=0, dtype=np.int64)))
    signature = f"statistics:scores.dat|smooth:exp|version:{version('sacrebleu')}"
    lines = [str(entry) for entry in found.entry.tolist()]
    return Evaluated(CorpusScore("BLEU", bleu, signature), lines)


def score_corpus(hypotheses: Sequence[str], sentences: Sentences) -> CorpusScore:
    """Return corpus BLEU of tokenised translations (sacrebleu, ``tokenize=none``)."""
    references = [[" ".join(words) for words in refs] for refs in sentences.references]
    return corpus_bleu(hypotheses, references)
