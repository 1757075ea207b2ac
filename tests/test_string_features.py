"""Sparse features of texts: words, n-grams, letters, substitutions, words of the source."""

import json
from collections import Counter
from functools import partial

import numpy as np
import pytest
from commands import run_command
from hypothesis import given, settings
from hypothesis import strategies as st
from small_lists import as_set, put, weights_of

from torchtune_smt import KBestLists, Vocabulary, tune_lists
from torchtune_smt.core.errors import InputError
from torchtune_smt.features.strings import StringFeatures
from torchtune_smt.features.templates import escape
from torchtune_smt.metrics import WordErrorRate
from torchtune_smt.tuners.expected import ExpectedErrors

ALL = ("word", "ngram2", "ngram3", "chars1", "chars3", "chars10", "source")
TEXTS = st.lists(st.sampled_from(["a", "b", "bé", "c_d", "%", "~"]), max_size=5).map(" ".join)


def slow(template, text, source):
    name = template.rstrip("0123456789")
    n = int(template.removeprefix(name) or 1)
    words = [escape(word) for word in text.split()]
    if name == "source":
        return [f"{s}~{w}" for w in words for s in {escape(s) for s in source.split()}]
    symbols = words
    if name == "chars":
        letters = "".join(f" {word}" for word in text.split())
        symbols = ["_" if c == " " else escape(c) for c in letters]
    between = "_" if name == "ngram" else ""
    return [between.join(symbols[i : i + n]) for i in range(len(symbols) - n + 1)]


@given(st.lists(st.lists(TEXTS, min_size=1, max_size=4), min_size=1, max_size=4), TEXTS)
@settings(max_examples=60, deadline=None)
def test_features_by_their_definition(texts, source):
    lists = KBestLists.of_strings(texts)
    added = StringFeatures(ALL).added(lists, lists.features, [source] * len(texts), least=1)
    h = 0
    for one in texts:
        names = ([f"{t}:{n}" for t in ALL for n in slow(t, text, source)] for text in one)
        fires = [*map(Counter, names)]
        for mine in fires:
            differs = {n for n in mine if len({count[n] for count in fires}) > 1}
            assert added.features.named(*added.row(h)) == {name: mine[name] for name in differs}
            h += 1
    # Others than known ones are left out; hashed ones are sums of others.
    some = Vocabulary(added.features.names(range(0, len(added.features), 2)))
    again = KBestLists.of_strings(texts)
    known = StringFeatures(ALL).added(again, some, [source] * len(texts))
    kept = np.isin(added.rows.feature, np.arange(0, len(added.features), 2))
    assert known.rows.value.sum() == added.rows.value[kept].sum()
    hashed = StringFeatures(ALL, bits=2).added(again, again.features, [source] * len(texts), 1)
    assert hashed.rows.value.sum() == added.rows.value.sum()
    assert len(hashed.features) <= len(some) + 4 * len(ALL)
    hashed.check()


def test_a_substitution_is_of_the_first_hypothesis():
    lists = KBestLists.of_strings([["a b c", "a x c", "b c d"], ["a b", "a b"]])
    added = StringFeatures(("substitution",)).added(lists, lists.features, least=1)
    found = [added.features.named(*added.row(h)) for h in range(5)]
    start = "substitution:"
    assert found == [{}, {f"{start}b~x": 1}, {f"{start}a~": 1, f"{start}~d": 1}, {}, {}]


def test_a_feature_needs_lists_that_differ():
    lists = KBestLists.of_strings([["a b", "a"], ["a b", "a c"], ["b", "b"]])
    added = StringFeatures(("word",)).added(lists, lists.features, least=2)
    assert added.features.names(range(len(added.features))) == ["word:b"]


def speech(seed, n, told=0.8):
    """Lists whose best hypothesis `lm` knows badly; words x0, x1 are wrong as often as told."""
    generator = np.random.default_rng(seed)
    for number in range(n):
        words = [f"w{w}" for w in generator.integers(0, 40, 6)]
        hypotheses = []
        for _ in range(5):
            text = list(words)
            for place in np.flatnonzero(generator.random(6) < 0.3).tolist():
                new = "x" if generator.random() < told else "w"
                text[place] = f"{new}{generator.integers(2 if new == 'x' else 40)}"
            wrong = sum(a != b for a, b in zip(text, words, strict=True))
            lm = 0.3 * generator.standard_normal() - 0.05 * wrong
            hypotheses.append({"text": " ".join(text), "features": {"lm": lm}, "score": lm})
        hypotheses.sort(key=lambda one: -one["score"])
        text = {"source": " ".join(words), "references": [" ".join(words)]}
        yield {"id": f"{seed}-{number}", "hypotheses": hypotheses, **text}


tuned_on = partial(tune_lists, metric=WordErrorRate(), samples=20, texts="none", folds=0)


def test_what_is_true_is_found_and_noise_is_left():
    strings, solver = StringFeatures(("word", "ngram2")), ExpectedErrors(lr=0.5, strength=0.01)
    for told, options in ((0.8, {"solver": solver, "least": 15}), (0.0, {})):
        names = Vocabulary(), Vocabulary()
        dev, test = (as_set(n, list(speech(s, 600, told)), names) for n, s in (("d", 1), ("t", 2)))
        plain = tuned_on(dev, test)
        tuned = tuned_on(dev, test, strings=strings, **options)
        left = {n: w for n, w in tuned.weights.to_dict().items() if ":" in n and w}
        gained = plain.judged[1].after - tuned.judged[1].after
        if told:
            assert {*sorted(left, key=left.get)[:2]} == {"word:x0", "word:x1"}
            assert gained > 5
        else:
            assert abs(gained) < 0.5
            assert len(left) < 0.15 * len(names[1])


@pytest.mark.parametrize("options", [[], ["strings_bits=12"], ["strings_least=1"]])
def test_new_lists_get_the_same_features(options, tmp_path):
    """From the weights file alone: rerank chooses what tune has judged."""
    for name, seed in (("d", 1), ("t", 2)):
        some = list(speech(seed, 120))
        sources = [f"{one['id']} {one['source']}" for one in some]
        put(tmp_path, {name: map(json.dumps, some), f"{name}.src": sources})
    strings = "strings=[word,chars3,substitution,source]"
    given = ["dev=d", "test=t", "metric=wer", "folds=0", "samples=20", strings, *options]
    said = run_command("tune", *given, folder=tmp_path).check().out
    plain = ["weights=tuned.weights.txt", "input=t"]
    for more in ([], ["sources=t.src"]):
        lines = run_command("rerank", *plain, *more, folder=tmp_path).check().out.splitlines()
        wrong = sum(
            a != b
            for line, one in zip(lines, speech(2, 120), strict=True)
            for a, b in zip(line.split()[1:], one["source"].split(), strict=True)
        )
        row = next(line for line in said.splitlines() if line.startswith("t "))
        assert f" {100 * wrong / 720:.3f} " in row
    weights = weights_of(tmp_path / "tuned.weights.txt")
    assert any(w and name.startswith("source:") for name, w in weights.items())
    run_command("rerank", *plain, "sources=d.src", folder=tmp_path).refused("d.src")


def test_solvers_of_parts_leave_dense_features_alone(tmp_path):
    """A strong norm takes all sparse weights, and no dense one."""
    put(tmp_path, {"d": map(json.dumps, speech(1, 40))})
    given = ["dev=d", "metric=wer", "folds=0", "samples=20", "strings=[word]"]
    stochastic = ["tuner=stochastic", "optimizer=fobos", "regularizer.strength=1e6"]
    found = []
    for more in (["tuner=pro"], stochastic, [*stochastic, "tuner.solver.towards=start"]):
        run_command("tune", *given, *more, folder=tmp_path).check()
        found.append(weights_of(tmp_path / "tuned.weights.txt"))
    assert len(found[0]) > 10
    assert [[*one] for one in found[1:]] == [["lm"], ["lm"]]


def test_what_is_refused(tmp_path):
    for templates in (("words",), ("ngram",), ("chars0",), ("chars01",)):
        with pytest.raises(InputError, match=templates[0]):
            StringFeatures(templates)
    lists = KBestLists.of_strings([["a", "b"]], [[{"word:a": 1}, {}]])
    with pytest.raises(InputError, match="word:a"):
        StringFeatures(("word",)).added(lists, lists.features)
    with pytest.raises(InputError, match="sources"):
        StringFeatures(("source",)).added(lists, lists.features)
    path = put(tmp_path, {"w": 'a 1\n# string features: {"templates": ["wor"], "bits": 3}\n'})
    with pytest.raises(InputError, match="whole"):
        StringFeatures.read(path)
