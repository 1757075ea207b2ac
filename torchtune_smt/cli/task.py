"""What there is to tune: a decoder, its weights, and sentences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

import numpy as np
from omegaconf import DictConfig

from torchtune_smt.cli.belonging import lists_origin, model_origin, other_origin
from torchtune_smt.cli.lists import (
    evaluate_lists,
    has_statistics,
    list_metric,
    list_sentences,
    list_weights,
    open_lists,
)
from torchtune_smt.cli.objects import check_part
from torchtune_smt.cli.parts import Parts
from torchtune_smt.cli.setup import (
    initial_weights,
    make_decoder,
)
from torchtune_smt.cli.unused import refuse_unknown_values
from torchtune_smt.cli.warn import warn
from torchtune_smt.core.origin import Origin
from torchtune_smt.core.shortcuts import behaves_as
from torchtune_smt.core.snapshot import Snapshot
from torchtune_smt.core.weights import Weights
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.data.suspicions import corpus_suspicions, output_suspicions
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.decoders.kbest_files import KBestFiles
from torchtune_smt.kbest.lists import KBest
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.metrics.base import BoundMetric, Metric
from torchtune_smt.metrics.bleu import BleuReferences, Counts, SentenceBleu
from torchtune_smt.metrics.corpus import CorpusScore
from torchtune_smt.tuners.collect import Judge
from torchtune_smt.tuners.sentences import score_corpus, translate


class Task(NamedTuple):
    """What there is to tune.

    Attributes
    ----------
    decoder : Decoder
    weights : Weights
        Those that tuning starts from.
    sets : dict of str to Sentences
        ``dev`` and perhaps ``test``: what is evaluated.
    tuning : Sentences
        What is tuned on.
    origin : Origin
        What the weights belong to.
    """

    decoder: Decoder
    weights: Weights
    sets: dict[str, Sentences]
    tuning: Sentences
    origin: Origin


def has_stored_lists(cfg: DictConfig) -> bool:
    """Return whether k-best lists stand in the place of a decoder."""
    return bool(cfg.decoder.kind == "kbest_files")


def open_task(cfg: DictConfig, parts: Parts, *, may_write_model: bool = True) -> Task:
    """Return the configured task; a model that is missing is built if it may be written."""
    if has_stored_lists(cfg):
        task = _with_lists(cfg, parts)
    else:
        task = _with_model(cfg, parts, may_write_model)
    notice = other_origin(cfg.init.file, task.origin)
    if notice is not None:
        print(notice)
    decoder = task.decoder
    refuse_unknown_values(
        decoder.features if isinstance(decoder, KBestFiles) else decoder.dense_names
    )
    task = task._replace(tuning=_sample(task.tuning, cfg.tuner.sentences, cfg.seed))
    # A decoder copies words that it does not know, and hypotheses are told apart by the ids of
    # their words: these must not depend on what is decoded first, as when a run is resumed, nor on
    # sets that are only evaluated.
    for sentences in (task.tuning, task.sets["dev"]):
        for source in sentences.sources:
            task.decoder.words.intern(source.words)
    return task


def _with_lists(cfg: DictConfig, parts: Parts) -> Task:
    """Return what there is to tune on stored k-best lists."""
    decoder = open_lists(cfg.decoder, tune_on=cfg.tuner.tune_on)
    weights = list_weights(cfg.init, decoder)
    sets = {name: list_sentences(decoder, name, parts.dataset) for name in decoder.sets}
    for name, sentences in sets.items():
        if not has_statistics(decoder, sentences):
            lines = translate(decoder, weights, sentences.sources)
            texts = [line.split(" ") for line in lines]
            warn(output_suspicions(f"decoder.{name}", texts, sentences.references))
    tuning = sets[cfg.tuner.tune_on]
    evaluated: dict[str, Sentences] = {name: sets[name] for name in ("dev", "test") if name in sets}
    return Task(decoder, weights, evaluated, tuning, lists_origin(cfg.decoder))


def _with_model(cfg: DictConfig, parts: Parts, may_write_model: bool) -> Task:
    """Return what there is to tune with grammar and language model, built if need be."""
    max_words = cfg.decoder.max_words
    corpora = {"dev": parts.dataset.require("dev", max_words=max_words)}
    test = parts.dataset.read("test", max_words=max_words)
    if test is not None:
        corpora["test"] = test
    on_train = cfg.tuner.tune_on == "train"
    bitext: Corpus | None = None

    def read_bitext() -> Corpus:
        nonlocal bitext
        most = max_words if on_train else None
        bitext = parts.dataset.require("train", training=True, max_words=most)
        print(f"training bitext: {bitext.summary()}")
        warn(corpus_suspicions({"train": bitext, **corpora}))
        return bitext

    assert parts.model is not None
    model = parts.model.open(
        read_bitext, folds=on_train and cfg.lm == "folds", may_write=may_write_model
    )
    if bitext is None:
        vocabularies = model.grammar.source_words, model.grammar.target_words
        warn(corpus_suspicions(corpora, vocabularies))
    decoder = make_decoder(cfg, model, parts.templates)
    weights = initial_weights(cfg.init, decoder)
    sets = {name: decoder.sentences(name, corpus) for name, corpus in corpora.items()}
    tuning = sets["dev"]
    if on_train and bitext is not None:
        tuning = Sentences.of(bitext.source, bitext.references, training=True)
    return Task(
        decoder, weights, sets, tuning, model_origin(cfg, parts.dataset, model, parts.templates)
    )


def bind_metric(metric: Metric, decoder: Decoder, tuning: Sentences) -> BoundMetric:
    """Return the metric for the sentences that are tuned on."""
    if isinstance(decoder, KBestFiles):
        return list_metric(decoder, metric, tuning)
    bound = metric.bind(tuning.references, decoder.words)
    check_part("metric", bound, "gains")
    return bound


def make_judge(metric: Metric, decoder: Decoder, sentences: Sentences) -> Judge:
    """Return gains, and BLEU's statistics, of hypotheses of the sentences that are tuned on."""
    statistics: Callable[[KBest], Counts]
    if isinstance(decoder, KBestFiles) and has_statistics(decoder, sentences):
        statistics = partial(_stored_statistics, decoder, sentences)
    else:
        statistics = BleuReferences(sentences.references, decoder.words).statistics
    if behaves_as(metric, SentenceBleu, "bind"):
        score = cast(SentenceBleu, metric).score
        return Judge(statistics, lambda kbest, counts: score(counts))
    bound = bind_metric(metric, decoder, sentences)
    return Judge(statistics, lambda kbest, counts: bound.gains(kbest))


def _stored_statistics(decoder: KBestFiles, sentences: Sentences, kbest: KBest) -> Counts:
    """Return the statistics that came with a list."""
    return decoder.statistics(sentences.sources[kbest.index], kbest)


def _sample(sentences: Sentences, size: int | None, seed: int) -> Sentences:
    """Return a seeded random sample, numbered anew."""
    if size is None or size >= len(sentences):
        return sentences
    chosen = np.sort(np.random.default_rng(seed).choice(len(sentences), size, replace=False))
    return sentences.subset(chosen.tolist())


def evaluate(
    decoder: Decoder, snapshot: Snapshot, sentences: Sentences
) -> tuple[CorpusScore, list[str]]:
    """Return corpus BLEU and the translations under some weights."""
    if isinstance(decoder, KBestFiles):
        return evaluate_lists(decoder, snapshot, sentences)
    lines = translate(decoder, snapshot, sentences.sources)
    return score_corpus(lines, sentences), lines


def evaluate_start(task: Task) -> dict[str, float]:
    """Return corpus BLEU of each set under the weights that tuning starts from.

    Features that only test has come into a vocabulary of its own: those of the sentences that are
    tuned on then have the same ids, and weights the same bits, with any test set or none.
    """
    scores = {}
    for name, sentences in task.sets.items():
        decoder = task.decoder if name == "dev" else task.decoder.fork()
        scores[name] = evaluate(decoder, task.weights, sentences)[0].score
    task.weights.take(task.decoder.features)
    return scores
