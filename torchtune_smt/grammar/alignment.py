"""Word alignment of a bitext, by sil-thot."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

import numpy as np
from thot import alignment as thot

from torchtune_smt.core.arguments import check_whole
from torchtune_smt.core.errors import InputError
from torchtune_smt.grammar.alignment_files import ALIGNERS, Aligner, Alignment

_Pairs = Sequence[tuple[list[str], list[str]]]

_SEED: Final = 1
# Seconds without a word of how far it is.
_SILENT: Final = 10

logger = logging.getLogger(__name__)


def align(
    sources: Sequence[Sequence[str]],
    targets: Sequence[Sequence[str]],
    *,
    model: Aligner = "fast_align",
    iterations: int = 5,
) -> list[Alignment]:
    """Return the word alignments of a bitext: both directions joined by grow-diag-final-and.

    The same bitext gives the same alignments.

    Parameters
    ----------
    sources, targets : sequences of sequences of str
        A pair with an empty side has no links; nor has one that is too long for the aligner
        (1,024 words), which is reported as a warning.
    model : {"fast_align", "hmm", "eflomal"}
        fast_align (Dyer et al. 2013); the HMM (Vogel et al. 1996) after IBM model 1; or Gibbs
        sampling of a model with fertilities (Östling and Tiedemann 2016, "Efficient word alignment
        with Markov chain Monte Carlo").
    iterations : int
        Of EM; the HMM has as many of IBM model 1 before its own. eflomal draws as often from IBM
        model 1 and from an HMM, and four times as often from its own model.

    Raises
    ------
    InputError
        Numbers of sentences differ.
    ValueError
        An argument is out of its range.
    """
    if model not in ALIGNERS:
        raise ValueError(f"model must be one of {', '.join(ALIGNERS)}, not {model!r}")
    check_whole("iterations", iterations, 1)
    if len(sources) != len(targets):
        raise InputError(
            f"{len(sources)} source and {len(targets)} target sentences do not make a bitext; "
            "they must be of one number"
        )
    # Words of the texts must not be mistaken for the aligner's own, such as NULL.
    pairs = [
        ([f"_{word}" for word in source], [f"_{word}" for word in target])
        for source, target in zip(sources, targets, strict=True)
    ]
    limit = thot.FastAlignModel().max_sentence_length
    usable = [0 < len(s) <= limit and 0 < len(t) <= limit for s, t in pairs]
    too_long = sum(len(s) > limit or len(t) > limit for s, t in pairs)
    if too_long:
        logger.warning("%d sentence pairs of over %d words are not aligned", too_long, limit)
    kept = [pair for pair, use in zip(pairs, usable, strict=True) if use]
    direct = _train(kept, model, iterations, "source to target")
    inverse = _train([(t, s) for s, t in kept], model, iterations, "target to source")
    aligner = thot.SymmetrizedAligner(direct, inverse)
    aligner.heuristic = thot.SymmetrizationHeuristic.GROW_DIAG_FINAL_AND
    return [
        np.argwhere(aligner.get_best_alignment(source, target)[1].to_numpy()).astype(np.int32)
        if use
        else np.empty((0, 2), np.int32)
        for (source, target), use in zip(pairs, usable, strict=True)
    ]


def _train(pairs: _Pairs, model: str, iterations: int, what: str) -> thot.AlignmentModel:
    """Return a model of the second sides of the pairs given the first."""
    if model == "fast_align":
        fast_align = thot.FastAlignModel()
        _run(fast_align, pairs, iterations, what)
        return fast_align
    if model == "eflomal":
        eflomal = thot.EflomalAlignmentModel()
        eflomal.seed, eflomal.deterministic = _SEED, True
        # They vote: one alone cost two BLEU on Japanese-English, for a third of the time.
        eflomal.num_samplers = 3
        eflomal.auto_iterations = False
        eflomal.set_iterations(iterations, iterations, 4 * iterations)
        _run(eflomal, pairs, eflomal.scheduled_iterations, what)
        return eflomal
    first = thot.Ibm1AlignmentModel()
    _run(first, pairs, iterations, f"{what}, words alone")
    # The pairs come along with the model to start from.
    hmm = thot.HmmAlignmentModel(first)
    _run(hmm, [], iterations, what)
    return hmm


def _run(model: thot.AlignmentModel, pairs: _Pairs, iterations: int, what: str) -> None:
    """Add pairs to a model, and train it; now and then it is said how far it is."""
    for source, target in pairs:
        model.add_sentence_pair(source, target)
    model.start_training()
    said = time.monotonic()
    for done in range(1, iterations + 1):
        model.train()
        if time.monotonic() > said + _SILENT:
            said = time.monotonic()
            logger.info("  aligning from %s: pass %d of %d", what, done, iterations)
    model.end_training()
