"""Model folders and the grammars in them: damaged, and forged."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from forging import write_forged
from mutations import mutated
from targets import Check, Different, Target, Verdict, drawer

from torchtune_smt.core.container import read_container
from torchtune_smt.core.weights import Weights
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.decoders.hiero import HieroDecoder
from torchtune_smt.features import RuleId, RuleShape
from torchtune_smt.grammar import ExtractedGrammar, load_grammar, save_grammar, store
from torchtune_smt.kbest.lists import Source
from torchtune_smt.lm import NgramModel
from torchtune_smt.model_folder import ModelSettings, build_model, load_model

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


def _build(folder: Path) -> None:
    settings = ModelSettings(order=2, discount_fallback=(0.5, 1.0, 1.5), folds=2, iterations=2)
    corpus = Corpus(SOURCES, [[words] for words in TRANSLATIONS], list(range(1, len(SOURCES) + 1)))
    build_model(folder, corpus, settings, lambda step: None)
    load_model(folder, folds=True)


def _translations(
    grammar: ExtractedGrammar, model: NgramModel, folds: list[NgramModel]
) -> list[object]:
    """Return what a decoder makes of a model; it reads all kinds of its arrays."""
    decoder = HieroDecoder(
        grammar, model, folds=folds, templates=[RuleId(), RuleShape()], k=5, pop_limit=5, threads=1
    )
    weights = Weights(decoder.dense_names)
    weights.set(decoder.dense_names, np.linspace(0.1, 1, len(decoder.dense_names)))
    sources = [Source(0, ["der", "neue", "vogel", "sieht", "die", "katze"])]
    sources += [Source(i, words) for i, words in enumerate(SOURCES)]
    if folds:
        sources += [Source(i, words, i) for i, words in enumerate(SOURCES)]
    found: list[object] = []
    for kbest in decoder.decode(sources, weights):
        found += [kbest.tokens.tolist(), kbest.value.tolist(), kbest.score.tolist()]
    every = np.arange(len(grammar))
    found += [grammar.values(every).tolist(), [grammar.rule_text(rule) for rule in every]]
    return found


def _damaged(folder: Path) -> Check:
    whole, place = folder / "whole", folder / "model"
    _build(whole)
    grammar, model, folds = load_model(whole, folds=True)
    expected = _translations(grammar, model, list(folds))
    names = [path.relative_to(whole) for path in sorted(whole.rglob("*")) if path.is_file()]
    shutil.copytree(whole, place)

    def check(case: int) -> Verdict:
        draw = drawer("model-folder", case)
        name = draw.choice(names)
        content = (whole / name).read_bytes()
        other = draw.choice(names)
        (place / name).write_bytes(mutated(content, draw, [(whole / other).read_bytes()]))
        try:
            grammar, model, folds = load_model(place, folds=True)
            if _translations(grammar, model, list(folds)) != expected:
                raise Different(f"with another {name}")
        finally:
            shutil.copyfile(whole / name, place / name)
        return "same"

    return check


def _damaged_grammar(folder: Path) -> Check:
    _build(folder / "model")
    grammar, model, folds = load_model(folder / "model", folds=True)
    expected = _translations(grammar, model, list(folds))
    path = folder / "grammar"
    whole = (folder / "model" / "grammar").read_bytes()

    def check(case: int) -> Verdict:
        path.write_bytes(mutated(whole, drawer("grammar", case)))
        loaded = load_grammar(path)
        if _translations(loaded, model, list(folds)) != expected:
            raise Different("the translations are others")
        return "same"

    return check


def _forged(folder: Path) -> Check:
    _build(folder / "model")
    grammar, model, folds = load_model(folder / "model", folds=True)
    path = folder / "grammar"
    save_grammar(path, grammar)
    whole = read_container(path, store._KIND, store._VERSION, cure="")

    def check(case: int) -> Verdict:
        draw = drawer("grammar-forged", case)
        write_forged(path, store._KIND, store._VERSION, whole, draw)
        _translations(load_grammar(path), model, list(folds))
        return "taken"

    return check


TARGETS = {
    "model-folder": Target(_damaged),
    "grammar": Target(_damaged_grammar),
    "grammar-forged": Target(_forged),
}
