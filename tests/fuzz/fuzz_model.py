"""Model folders and the grammars in them: damaged, and forged."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from forging import write_forged
from mutations import mutated
from targets import Check, Different, Target, Verdict, drawer

from torchtune_smt.core.archive import cache_path, file_checksum
from torchtune_smt.core.weights import Weights
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.decoders.hiero import HieroDecoder
from torchtune_smt.decoders.phrase import PhraseDecoder
from torchtune_smt.features import RuleId, RuleShape
from torchtune_smt.grammar import (
    ExtractedGrammar,
    load_grammar,
    read_grammar,
    save_grammar,
    store,
    write_grammar,
)
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


def _damaged(of_target: str, source: type[BuiltModel], folder: Path) -> Check:
    whole, place = folder / "whole", folder / "model"
    build(whole, source)
    model = load_model(whole, folds=True)
    expected = translations(model)
    names = [path.relative_to(whole) for path in sorted(whole.rglob("*")) if path.is_file()]
    shutil.copytree(whole, place)

    def check(case: int) -> Verdict:
        draw = drawer(of_target, case)
        name = draw.choice(names)
        content = (whole / name).read_bytes()
        other = draw.choice(names)
        (place / name).write_bytes(mutated(content, draw, [(whole / other).read_bytes()]))
        try:
            model = load_model(place, folds=True)
            if translations(model) != expected:
                raise Different(f"with another {name}")
        finally:
            shutil.copyfile(whole / name, place / name)
        return "same"

    return check


def _forged(folder: Path) -> Check:
    build(folder / "model")
    model = load_model(folder / "model", folds=True)
    path = folder / "grammar"
    assert isinstance(model.grammar, ExtractedGrammar)
    save_grammar(path, model.grammar)
    whole = store.ARCHIVE.read(path)

    def check(case: int) -> Verdict:
        draw = drawer("grammar-forged", case)
        write_forged(path, store.ARCHIVE, whole, draw)
        translations(replace(model, grammar=load_grammar(path)))
        return "taken"

    return check


def _forged_copy(folder: Path) -> Check:
    build(folder / "model")
    model = load_model(folder / "model")
    path = folder / "rules"
    write_grammar(path, model.grammar)
    read_grammar(path, cache=True)
    whole, key = store.COPY.read(cache_path(path)), {"format": None, "source": file_checksum(path)}

    def check(case: int) -> Verdict:
        write_forged(cache_path(path), store.COPY, whole, drawer("grammar-copy-forged", case))
        taken = store.read_copy(path, key)
        if taken is None:
            return "refused"
        translations(replace(model, grammar=taken))
        return "taken"

    return check


TARGETS = {
    "grammar-copy-forged": Target(_forged_copy),
    "model-folder": Target(partial(_damaged, "model-folder", BitextModel)),
    "phrase-model-folder": Target(partial(_damaged, "phrase-model-folder", PhraseModel), 100),
    "grammar-forged": Target(_forged),
}
