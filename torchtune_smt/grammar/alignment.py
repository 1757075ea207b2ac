"""Word alignment of a bitext, by sil-thot, and its files.

Pharaoh format: ``0-0 1-2``, source-target, a line for each sentence pair.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal, TypeVar, get_args

import numpy as np

from torchtune_smt.core.accepts import integer, one_of
from torchtune_smt.core.arrays import Int32
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.text import split_words, whole_number
from torchtune_smt.core.textio import atomic_writer, iterate_lines

if TYPE_CHECKING:
    from thot import alignment as thot

Alignment = Int32
"""int32 [links, 2]: (source, target) positions of linked words, from 0."""

Aligner = Literal["fast_align", "hmm", "eflomal"]
ALIGNERS: Final = get_args(Aligner)
"""What `align` aligns with."""


def read_alignments(
    path: str | os.PathLike[str],
    sources: Sequence[Sequence[str]] | None = None,
    targets: Sequence[Sequence[str]] | None = None,
    lines: Sequence[int] | None = None,
    total: int | None = None,
) -> list[Alignment]:
    """Read word alignments; an empty line is a sentence pair without links.

    Raises InputError: a line is no alignment, or they are not those of the bitext.

    sources, targets: the bitext, to check the alignments against.
    lines: which lines of the bitext's files its sentences are, from 1, where lines were dropped:
        the alignments may be those of the files, too, which have `total` lines.
    """
    rows = iterate_lines(path)
    most = None if sources is None else len(sources) if total is None else total
    alignments = [
        _links(row, path, number) for number, row in enumerate(islice(rows, most), start=1)
    ]
    count = len(alignments) + sum(1 for _ in rows)
    if sources is None or targets is None:
        return alignments
    pairs = min(len(sources), len(targets))
    if count == pairs:
        lines = range(1, count + 1)
    elif lines is not None and count == total:
        alignments = [alignments[line - 1] for line in lines]
    else:
        of_files = "" if total in (None, pairs) else f" of {total} lines"
        message = f"has {count} lines, and the bitext {pairs} pairs{of_files}; align this bitext"
        raise InputError(message, path=path)
    for line, links, *pair in zip(lines, alignments, sources, targets, strict=True):
        n, m = (len(words) for words in pair)
        if (links >= [n, m]).any():
            message = f"has a link out of its sentence pair ({n} and {m} words); align this bitext"
            raise InputError(message, path=path, line=line)
    return alignments


def _links(line: str, path: str | os.PathLike[str], number: int) -> Alignment:
    """Return the alignment that a line holds."""
    pairs = []
    for point in split_words(line):
        pairs.append([whole_number(end) for end in point.split("-")])
        if len(pairs[-1]) != 2 or None in pairs[-1]:
            message = f"{point} is no alignment point; write source-target, as in 0-1"
            raise InputError(message, path=path, line=number)
    return np.array(pairs, np.int32).reshape(-1, 2)


def write_alignments(path: str | os.PathLike[str], alignments: Iterable[Alignment]) -> None:
    """Write word alignments, points ascending (gzip if the name ends in ``.gz``)."""
    with atomic_writer(path) as file:
        for links in alignments:
            file.write(" ".join(f"{s}-{t}" for s, t in sorted(links.tolist())) + "\n")


def mean_distortion(alignments: Iterable[Alignment]) -> float:
    """Return what share of a sentence a translation word by word jumps over, the mean of its words.

    It is 0 where the order is the same, and a third where it is chance's. The source words of a
    target word are one phrase, as far as it reaches; where two of these overlap, nothing is jumped
    over. Words without a link count for nothing, and a sentence ends with the last one that has.
    """
    shares, words = 0.0, 0
    for links in alignments:
        linked: dict[int, list[int]] = {}
        for source, target in links.tolist():
            linked.setdefault(target, []).append(source)
        first, last, jumps = -1, -1, 0
        for target in sorted(linked):
            begin, end = min(linked[target]), max(linked[target])
            if not first <= begin <= last:
                jumps += abs(begin - last - 1)
            first, last = begin, end
        shares += jumps / (links[:, 0].max(initial=0) + 1)
        words += len(linked)
    return shares / max(words, 1)


_Pairs = Sequence[tuple[list[str], list[str]]]
_Model = TypeVar("_Model", bound="thot.AlignmentModel")
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

    sources, targets: a pair with an empty side has no links; nor has one that is too long for the
        aligner (1,024 words), which is reported as a warning.
    model ("fast_align", "hmm", "eflomal"): fast_align (Dyer et al. 2013); the HMM (Vogel et al.
        1996) after IBM model 1; or Gibbs sampling of a model with fertilities (Östling and
        Tiedemann 2016, "Efficient word alignment with Markov chain Monte Carlo").
    iterations: of EM; the HMM has as many of IBM model 1 before its own. eflomal draws as often
        from IBM model 1 and from an HMM, and four times as often from its own model.
    """
    # Imported only by those who align.
    from thot import alignment as thot

    one_of(*ALIGNERS).check("model", model)
    integer(1).check("iterations", iterations)
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
    from thot import alignment as thot

    if model == "fast_align":
        return _run(thot.FastAlignModel(), pairs, iterations, what)
    if model == "eflomal":
        eflomal = thot.EflomalAlignmentModel()
        eflomal.seed, eflomal.deterministic = _SEED, True
        # They vote: one alone cost two BLEU on Japanese-English, for a third of the time.
        eflomal.num_samplers = 3
        eflomal.auto_iterations = False
        eflomal.set_iterations(iterations, iterations, 4 * iterations)
        return _run(eflomal, pairs, eflomal.scheduled_iterations, what)
    first = _run(thot.Ibm1AlignmentModel(), pairs, iterations, f"{what}, words alone")
    # The pairs come along with the model to start from.
    return _run(thot.HmmAlignmentModel(first), [], iterations, what)


def _run(model: _Model, pairs: _Pairs, iterations: int, what: str) -> _Model:
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
    return model
