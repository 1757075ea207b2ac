"""Stored k-best lists in the place of a decoder: from configuration to sentences and scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import sacrebleu
from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.hydra_main import option_errors
from torchtune_smt.cli.setup import weights_of_file
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.snapshot import Snapshot
from torchtune_smt.core.weights import Weights
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.decoders.kbest_files import KBestFiles
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.metrics.base import BoundMetric, Metric
from torchtune_smt.metrics.corpus import CorpusScore, bleu_of_statistics
from torchtune_smt.tuners.sentences import score_corpus, translate

SETS: Final = ("train", "dev", "test")


def open_lists(
    options: DictConfig, *, tune_on: str, report: Callable[[str], None] = print
) -> KBestFiles:
    """Read all lists that ``decoder=kbest_files`` names.

    Parameters
    ----------
    options : DictConfig
        The group `decoder`.
    tune_on : str
        The set that is tuned on; it must be there.
    report : callable
        Told what each set has, and what was left out.

    Raises
    ------
    InputError
        A list is missing or bad; see `KBestFiles.read`.
    """
    with option_errors("decoder"):
        decoder = KBestFiles(
            k=options.k,
            format=options.format,
            dense=_names(options.dense),
            keep=None if options.features == "all" else _names(options.features),
            on_error=options.on_error,
            unique=options.unique,
        )
    for name in SETS:
        lists, scores = _names(options[name]), _names(options[f"{name}_scores"])
        if lists is None and scores is not None:
            raise InputError(
                f"decoder.{name}_scores needs decoder.{name}: the features.dat files that belong "
                "to the scores.dat files"
            )
        if lists is None and name in ("dev", tune_on):
            raise InputError(
                f"decoder.{name} is null, and its k-best lists are needed; name the files"
            )
        if lists is not None:
            with option_errors(f"decoder.{name}"):
                stored = decoder.read(name, lists, scores, for_tuning=name == tune_on)
            report(f"k-best lists of {name}: {stored.summary()}")
    return decoder


def list_sentences(decoder: KBestFiles, name: str, dataset: Dataset) -> Sentences:
    """Return the sentences of a set of lists; its references are read where they are needed."""
    corpus = None if decoder.sets[name].has_statistics else dataset.read(name)
    return decoder.sentences(name, corpus)


def list_weights(
    init: DictConfig, decoder: KBestFiles, report: Callable[[str], None] = print
) -> Weights:
    """Return the weights that tuning starts from: those of a file, or values; 0 for the others.

    With no weights at all, lists begin in the order of their files.

    Raises
    ------
    InputError
        The weights file is bad, or has no weight for any feature of the lists.
    """
    features = decoder.features
    if init.file is not None:
        weights = weights_of_file(
            init.file, decoder.dense_names, lambda name: name in features, report
        )
        if not weights.parameter.any():
            raise InputError(
                "has no weight for any feature of the k-best lists (their dense ones are "
                f"{', '.join(decoder.dense_names)}); is it the weights file of another model?",
                path=init.file,
            )
        return weights
    weights = Weights(decoder.dense_names)
    known = {name: value for name, value in init["values"].items() if name in features}
    weights.set(list(known), list(known.values()))
    return weights


def list_metric(decoder: KBestFiles, metric: Metric, sentences: Sentences) -> BoundMetric:
    """Return gains for sentences of `list_sentences`: of references, or of scores.dat."""
    if has_statistics(decoder, sentences):
        return decoder.metric(metric, sentences.sources)
    return metric.bind(sentences.references, decoder.words)


def evaluate_lists(
    decoder: KBestFiles, snapshot: Snapshot, sentences: Sentences
) -> tuple[CorpusScore, list[str]]:
    """Return corpus BLEU of the best hypotheses, and these, one a line.

    With scores.dat BLEU comes from its statistics, and a line has the place of the hypothesis in
    its list (from 0, after copies were dropped).
    """
    if not has_statistics(decoder, sentences):
        lines = translate(decoder, snapshot, sentences.sources)
        return score_corpus(lines, sentences), lines
    best = decoder.decode(sentences.sources, snapshot, k=1)
    rows = [
        decoder.statistics(source, kbest)[0]
        for source, kbest in zip(sentences.sources, best, strict=True)
    ]
    score = bleu_of_statistics(np.sum(rows, axis=0))
    signature = f"statistics:scores.dat|smooth:exp|version:{sacrebleu.__version__}"
    lines = [decoder.words[int(k.hypothesis(0)[0])].partition(" ")[2] for k in best]
    return CorpusScore("BLEU", score, signature), lines


def has_statistics(decoder: KBestFiles, sentences: Sentences) -> bool:
    """Return whether sentences of `list_sentences` have scores.dat in the place of references."""
    return any(not references for references in sentences.references)


def _names(value: Any) -> list[str] | None:
    """Return an option that is a name, names, or null as a list."""
    if value is None:
        return None
    if OmegaConf.is_list(value):
        return [str(name) for name in value]
    return [str(value)]
