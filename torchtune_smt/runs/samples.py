"""Translations of some sentences after each round, for TensorBoard."""

from __future__ import annotations

from typing import Final

import numpy as np

from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.runs.log import RunLog
from torchtune_smt.runs.rounds import Callback, Rounds
from torchtune_smt.tuners.base import Report
from torchtune_smt.tuners.sentences import translate

SAMPLES: Final = 5


class SampleTranslations(Callback):
    """Records how a few sentences of a set are translated after each round.

    log: gets the texts.
    sentences: they must be decoded elsewhere, too: nothing new may come into the decoder's
        vocabularies. `SAMPLES` of them are taken, at equal distances.
    """

    def __init__(
        self, log: RunLog, decoder: Decoder, weights: Weights, sentences: Sentences
    ) -> None:
        self._log = log
        self._decoder = decoder
        self._weights = weights
        number = min(SAMPLES, len(sentences))
        places = np.linspace(0, len(sentences) - 1, number).astype(int).tolist()
        self._sources = [sentences.sources[i] for i in places]
        self._references = [sentences.references[i] for i in places]

    def record(self, step: int) -> None:
        """Record the translations with the weights of the moment, at a step."""
        blocks = []
        lines = translate(self._decoder, self._weights, self._sources)
        for source, references, line in zip(self._sources, self._references, lines, strict=True):
            rows = [("source", " ".join(source.words))] if source.words else []
            rows += [("reference", " ".join(reference)) for reference in references]
            rows.append(("translation", line))
            blocks.append("\n".join(f"{name:<12} {text}" for name, text in rows))
        # As code: what stands in a sentence is no markup.
        self._log.text("translations", "\n\n".join(f"```\n{block}\n```" for block in blocks), step)

    def on_report(self, report: Report, run: Rounds) -> None:
        """Record the translations after a round."""
        if report.kind == "round":
            self.record(run.progress.sentences)
