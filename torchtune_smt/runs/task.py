"""What there is to tune: a decoder, its weights, and sentences."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple, cast

from torchtune_smt.core.archive import file_checksum
from torchtune_smt.core.errors import InputError, warn
from torchtune_smt.core.recipe import check_part, leaves
from torchtune_smt.core.resources import PACKAGE
from torchtune_smt.core.text import split_words
from torchtune_smt.core.weights import Weights
from torchtune_smt.core.weights_io import Origin, read_origin
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.data.suspicions import corpus_suspicions, output_suspicions
from torchtune_smt.decoders.base import Decoder, Uncovered
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.metrics.base import BoundMetric, Judge, Metric, Score, bind_metric
from torchtune_smt.metrics.lists import ExternalScores
from torchtune_smt.models.base import Model, announcement, model_origin
from torchtune_smt.models.moses_ini import read_any_weights
from torchtune_smt.parallel.engine import usable_cores
from torchtune_smt.runs.parts import Parts
from torchtune_smt.tuners.sentences import Evaluated, evaluate_by, translate
from torchtune_smt.tuners.start import weights_of_files, weights_of_values


class Task(NamedTuple):
    """What there is to tune.

    weights: those that tuning starts from.
    sets: ``dev`` and perhaps ``test``: what is evaluated.
    origin: what the weights belong to, as far as anybody can say.
    lines: the line, from 1, of each sentence of `tuning` in its file of `total_lines`; stored lists
        are counted.
    words: what the decoder's words have behind those that it is made with.
    read: the sets of the data that were read.
    """

    decoder: Decoder
    weights: Weights
    sets: dict[str, Sentences]
    tuning: Sentences
    origin: Origin | None
    lines: list[int]
    total_lines: int
    words: list[str]
    model: Model | None
    read: tuple[str, ...] = ()


def open_task(parts: Parts, *, may_write_model: bool = True) -> Task:
    """Return the task of a run; a model that is missing is built if it may be written."""
    corpora = _Corpora(parts)
    read = {}
    for part, path in parts.starts.items():
        phrases = bool(parts.decoder.pools.get(part, parts.decoder.phrases))
        read[part] = path, read_any_weights(path, phrase_decoder=phrases)
    # Before lists are read or a model is built, which takes long.
    for name in sets_of_text(parts):
        corpora.read(name)
    said = None if parts.model is None else announcement(getattr(parts.model, "__dict__", {}))
    if said is not None:
        print(said, flush=True)
    decoder, model = _open_decoder(parts, corpora, compare_bitext=True, may_write=may_write_model)
    own_words = len(decoder.words)
    if read:
        weights = weights_of_files(read, decoder)
    else:
        weights = weights_of_values(parts.init_values, decoder)
    sets: dict[str, Sentences] = {}
    for name in ("train", "dev", "test"):
        if name != "train" or parts.tune_on == "train":
            found = decoder.sentences(name, partial(corpora.read, name))
            if found is not None:
                sets[name] = found
    if decoder.stored:
        for name, sentences in sets.items():
            if sentences.has_references:
                best = translate(decoder, weights, sentences.sources)
                texts = [split_words(line) for line in best]
                warn(output_suspicions(f"decoder.{name}", texts, sentences.references))
    elif "train" not in corpora.found:
        of_model = None
        if model is not None:
            of_model = model.grammar.source_words, model.grammar.target_words
        warn(corpus_suspicions(corpora.found, of_model))
    origin = _origin(parts, decoder, model)
    for part, path in parts.starts.items():
        named, own = read_origin(path), _origin(parts, decoder, model, part)
        difference = None if named is None or own is None else named.difference(own)
        if difference is not None:
            print(f"{path}: belongs to {difference}; tuning starts from it")
    for name in parts.required:
        if name not in decoder.features:
            raise InputError(
                f"there is no feature {name} at the start, and init.values.{name} would change "
                "nothing; leave it out, or give its weight in a file (init.file)"
            )
    for name, sentences in sets.items():
        if name != "train":
            uncovered = Uncovered(decoder)
            uncovered.add(sentences.sources)
            said = uncovered.text(parts.decoding.options.get("unknown"))
            if said is not None:
                print(f"{name}: {said}")
    tuning = sets[parts.tune_on].sample(parts.sentences, parts.seed)
    drawn = sets[parts.tune_on].drawn(parts.sentences, parts.seed)
    if decoder.stored:
        lines, total_lines = [i + 1 for i in drawn], len(sets[parts.tune_on])
    else:
        corpus = corpora.found[parts.tune_on]
        lines, total_lines = [corpus.lines[i] for i in drawn], corpus.total
    evaluated: dict[str, Sentences] = {name: sets[name] for name in ("dev", "test") if name in sets}
    # A decoder copies words that it does not know, and hypotheses are told apart by the ids of
    # their words: these must not depend on what is decoded first, as when a run is resumed, nor on
    # sets that are only evaluated.
    for sentences in (tuning, evaluated["dev"]):
        for source in sentences.sources:
            decoder.words.intern(source.words)
    # As a metric does that is bound to all of them.
    for references in tuning.references:
        for reference in references:
            decoder.words.intern(reference)
    words = decoder.words.names(range(own_words, len(decoder.words)))
    used = tuple(corpora.found)
    return Task(decoder, weights, evaluated, tuning, origin, lines, total_lines, words, model, used)


def _origin(parts: Parts, decoder: Decoder, model: Model | None, part: str = "") -> Origin | None:
    """Return what weights belong to that are tuned here, or with a part of the decoder alone."""
    if model is None:
        return decoder.origin()
    templates, options = parts.templates, parts.template_options
    if part:
        model = getattr(model, "models", {}).get(part, model)
        own = getattr(decoder.parts[part], "templates", ())
        taken = [one in own for one in templates]
        templates, options = (list(compress(some, taken)) for some in (templates, options))
    return model_origin(parts.dataset.description(), model, templates, options)


def sets_of_text(parts: Parts) -> list[str]:
    """Return the sets whose text is needed, the bitext that a model is built from left out."""
    if not parts.decoder.stored:
        return ["dev", "test"]
    options, drops_copies = parts.decoding.options, not parts.online
    unused = parts.decoder.unused(options, parts.tune_on, drops_copies=drops_copies)
    sets = ["train"] * (parts.tune_on == "train") + ["dev", "test"]
    return [name for name in sets if f"data.{name}" not in unused]


def open_decoder(parts: Parts, words: Sequence[str], model: Sequence[str]) -> Decoder:
    """Return another decoder like that of a task, of its words and model, without reading its text.

    Raises InputError: its model is another one than the task's.
    """
    decoder, own = _open_decoder(parts, _Corpora(parts), compare_bitext=False, may_write=False)
    if model_digests(own) != list(model):
        raise InputError(
            "the model that is found by a worker is not that of the run: copy the one of the "
            "machine that began it to all machines, or give a model.folder that they share"
        )
    decoder.words.intern(words)
    return decoder


def model_digests(model: Model | None) -> list[str]:
    """Return what tells a model from others, its limits of the search among that."""
    if model is None:
        return []
    limits = [f"{name}={limit}" for name, limit in sorted(model.limits.items())]
    return [model.grammar_part.digest, model.language_model_part.digest, *limits]


def limits_of(model: Model | None, decoder: Mapping[str, Any]) -> dict[str, str]:
    """Return the limits of the search that a model gives, and no option, as a run records them."""
    limits, options = {} if model is None else model.limits, cast(Any, decoder)
    return {
        f"{name} of the model": str(limit)
        for name, limit in limits.items()
        if reduce(lambda group, key: (group or {}).get(key), name.split("."), options) is None
    }


def _open_decoder(
    parts: Parts, corpora: _Corpora, *, compare_bitext: bool, may_write: bool
) -> tuple[Decoder, Model | None]:
    """Return the configured decoder and its model; see `ModelSource.open`."""
    offered: dict[str, Callable[[], Any]] = {
        "templates": lambda: parts.templates,
        "threads": lambda: usable_cores() if parts.threads is None else parts.threads,
        "tune_on": lambda: parts.tune_on,
    }
    model: Model | None = None
    if parts.model is not None:
        folds = parts.tune_on == "train" and parts.folds
        model = parts.model.open(
            corpora.bitext, folds=folds, compare_bitext=compare_bitext, may_write=may_write
        )
        offered["model"] = lambda: model
    decoder: Decoder = parts.decoding(**offered)
    return decoder, model


class _Corpora:
    """The sets of the data, each read once, when it is asked for.

    found: those that were read.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._longest = parts.decoder.longest_source(parts.decoding.options)
        self.found: dict[str, Corpus] = {}

    def read(self, name: str) -> Corpus | None:
        """Return a set, or None if none is needed."""
        if name == "train" and not self._parts.decoder.stored:
            return self.bitext()
        if name not in self.found:
            corpus = self._parts.dataset.read(name, max_words=self._longest)
            if corpus is None:
                if name == "test" or self._parts.decoder.stored:
                    return None
                raise InputError(f"data.{name} is null, and it is needed; name its files")
            self.found[name] = corpus
        return self.found[name]

    def bitext(self) -> Corpus:
        """Return the training bitext, without the pairs that are left out."""
        if "train" not in self.found:
            on_train = self._parts.tune_on == "train"
            max_words = self._longest if on_train else None
            dataset = self._parts.dataset
            self.found["train"] = dataset.require("train", training=True, max_words=max_words)
            print(f"training bitext: {self.found['train'].summary()}")
            order = ("train", "dev", "test")
            odd = corpus_suspicions({n: self.found[n] for n in order if n in self.found})
            warn([*dataset.without_rules(), *odd])
        return self.found["train"]


def bind(metric: Metric, decoder: Decoder, sentences: Sentences) -> BoundMetric:
    """Return the metric for the sentences that are tuned on."""
    numbers = decoder.file_numbers(sentences.sources)
    bound = bind_metric(metric, sentences.numbered_references(), decoder.words, numbers)
    check_part("metric", bound, "gains")
    return bound


def score_of(found: Evaluated) -> Score:
    """Return what weights are chosen by, and corpus BLEU."""
    bleu = found.score.score
    return Score(bleu if found.tuned is None else found.tuned, bleu)


def evaluate_start(task: Task, judge: Judge | None = None) -> dict[str, Score]:
    """Return the score of each set under the weights that tuning starts from.

    judge: by which dev is scored, where that is not corpus BLEU, which the other sets have.

    Features that only test has come into a vocabulary of its own: those of the sentences that are
    tuned on then have the same ids, and weights the same bits, with any test set or none.
    """
    scores = {}
    for name, sentences in task.sets.items():
        decoder = task.decoder if name == "dev" else task.decoder.fork()
        own = judge if name == "dev" else None
        scores[name] = score_of(evaluate_by(own, decoder, task.weights, sentences))
    return scores


# What a run reads.


def read_files(
    parts: Parts, settings: Mapping[str, Any], sets: Iterable[str]
) -> dict[str, dict[str, str]]:
    """Return the checksums of the files that a run reads whole before it begins.

    They are by path, under the option that names the file. Of a class of the user's own they are
    those that its options name. A model's files and the bitext that it is built from are left out:
    its own digests stand for them. So are weights that tuning began with (``init.file``), in whose
    place a checkpoint has others, and what can be read only once, such as a pipe.

    settings: all options of the run.
    sets: the sets of the data that the run has read.
    """
    found: dict[str, dict[str, str]] = {}
    for option, path in _named(parts, settings, sets):
        if path.is_file():
            found.setdefault(option, {})[str(path)] = file_checksum(path)
    return found


def named_files(
    parts: Parts, settings: Mapping[str, Any], sets: Iterable[str]
) -> Iterator[tuple[str, Path]]:
    """Yield every file that a run reads, or may read, and the option that names it.

    Besides those of `read_files` they are the bitext, start weights, files of models, and labels:
    whatever an option says that is a file.

    settings, sets: as for `read_files`.
    """
    yield from _named(parts, settings, sets)
    for name in sets:
        yield from ((f"data.{name}", path) for path in parts.dataset.files(name))
    for option, value in leaves("", settings):
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and os.path.isfile(text):
                yield option, Path(text)


def _named(
    parts: Parts, settings: Mapping[str, Any], sets: Iterable[str]
) -> Iterator[tuple[str, Path]]:
    dataset, stored = parts.dataset, parts.decoder.stored
    for name in sets:
        if name != "train" or stored:
            yield from ((f"data.{name}", path) for path in dataset.files(name))
    if dataset.split_compounds is not None and not stored:
        # How often words are in it says which compounds are split.
        if dataset.compounds is None:
            yield "data.train", dataset.source_file("train")
        else:
            yield "data.compounds", Path(dataset.compounds)
    if stored:
        for name in ("dev", "dev_scores", "test", "test_scores", "train", "train_scores"):
            given = parts.decoding.options.get(name) or []
            for path in [given] if isinstance(given, str) else given:
                yield f"decoder.{name}", Path(str(path))
    if isinstance(parts.metric, ExternalScores):
        yield "metric.path", Path(parts.metric.path)
    for group, value in settings.items():
        yield from _of_own_classes(str(group), value, own=False)


def _of_own_classes(option: str, value: Any, own: bool) -> Iterator[tuple[str, Path]]:
    """Yield what is a file of the texts that classes of others are given: nobody knows more."""
    if isinstance(value, dict):
        if "_target_" in value:
            own = not str(value["_target_"]).startswith(f"{PACKAGE.name}.")
        for name, inner in value.items():
            yield from _of_own_classes(f"{option}.{name}", inner, own)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _of_own_classes(f"{option}[{number}]", inner, own)
    elif own and isinstance(value, str) and os.path.isfile(value):
        yield option, Path(value)
