"""Model folders and the grammars in them: damaged, and forged."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
from forging import damaged, forged

from torchtune_smt.core.archive import file_checksum
from torchtune_smt.core.weights import Weights
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.decoders.hiero import HieroDecoder
from torchtune_smt.decoders.phrase import PhraseDecoder
from torchtune_smt.features import RuleId, RuleShape
from torchtune_smt.grammar import load_grammar, read_grammar, store, write_grammar
from torchtune_smt.grammar.extracted_grammar import ExtractedPhrases
from torchtune_smt.kbest.lists import Source
from torchtune_smt.models import BitextModel, Model, load_model
from torchtune_smt.models.built import BuiltModel, PhraseModel

_GERMAN = """der hund sieht die katze
ein vogel schläft
das zebra sieht einen hund und der hund sieht einen vogel
eine katze schläft und sieht den hund
der vogel singt und die katze sieht ein zebra
der hund singt"""
_ENGLISH = """the dog sees the cat
a bird sleeps
the zebra sees a dog and the dog sees a bird
a cat sleeps and sees the dog
the bird sings and the cat sees a zebra
the dog sings"""
SOURCES = [line.split() for line in _GERMAN.split("\n")]
TRANSLATIONS = [line.split() for line in _ENGLISH.split("\n")]


def build(folder: Path, source: type[BuiltModel] = BitextModel) -> None:
    """Build a small model."""
    corpus = Corpus(SOURCES, [[words] for words in TRANSLATIONS], list(range(1, len(SOURCES) + 1)))
    fallback = (0.5, 1.0, 1.5)
    model = source(str(folder), order=2, discount_fallback=fallback, folds=2, iterations=2)
    model.build(corpus, lambda step: None)
    load_model(folder, folds=True)


def translations(model: Model) -> list[object]:
    """Return what a decoder makes of a model; it reads all kinds of its arrays."""
    kind = PhraseDecoder if isinstance(model.grammar, ExtractedPhrases) else HieroDecoder
    decoder = kind(model, templates=[RuleId(), RuleShape()], k=5, pop_limit=5, threads=1)
    weights = Weights(decoder.dense_names)
    weights.set(decoder.dense_names, np.linspace(0.1, 1, len(decoder.dense_names)))
    sources = [Source(0, ["der", "neue", "vogel", "sieht", "die", "katze"])]
    sources += [Source(i, words) for i, words in enumerate(SOURCES)]
    if model.folds:
        sources += [Source(i, words, i) for i, words in enumerate(SOURCES)]
    found: list[object] = []
    for kbest in decoder.decode(sources, weights):
        found += [kbest.tokens.tolist(), kbest.rows.value.tolist(), kbest.score.tolist()]
    grammar = model.grammar
    every = np.arange(len(grammar))
    found += [grammar.values(every).tolist(), [grammar.rule_text(rule) for rule in every]]
    return found


# The model of a folder as it was first.
_model = cache(load_model)


def _translated(folder: Path, _: Path) -> list[object]:
    return translations(load_model(folder, folds=True))


def _translated_grammar(folder: Path, path: Path) -> list[object]:
    # Alone: the model's folder has its checksum.
    return translations(replace(_model(folder), grammar=load_grammar(path)))


def _write_grammar(folder: Path) -> None:
    build(folder)
    _model(folder)


def _write_copy(folder: Path) -> None:
    _write_grammar(folder)
    write_grammar(folder / "rules", load_model(folder).grammar)
    read_grammar(folder / "rules", cache=True)


def _use_copy(folder: Path, _: Path) -> object:
    path = folder / "rules"
    taken = store.read_copy(path, {"format": None, "source": file_checksum(path)})
    return taken and translations(replace(_model(folder), grammar=taken))


PHRASES = partial(build, source=PhraseModel)
TARGETS = {
    "grammar-copy-forged": forged("grammar-copy-forged", store.COPY, _write_copy, _use_copy),
    "grammar-forged": forged("grammar-forged", store.ARCHIVE, _write_grammar, _translated_grammar),
    "model-folder": damaged("model-folder", build, _translated),
    "phrase-model-folder": damaged("phrase-model-folder", PHRASES, _translated, 100),
}
