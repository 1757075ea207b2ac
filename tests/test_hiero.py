"""The hierarchical decoder, against enumeration of all derivations, and its behaviour in use."""

from __future__ import annotations

import math
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hiero_reference import (
    DENSE,
    GAPS,
    Rule,
    TooManyError,
    all_derivations,
    key,
    sentences_and_rules,
    sparse_names,
    to_grammar,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from lm_reference import DictModel, dict_models, to_ngrams

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.grammar_decoder import deadline
from torchtune_smt.decoders.hiero import HieroDecoder
from torchtune_smt.features import RuleId, RuleShape, SourceNgram
from torchtune_smt.kbest.lists import Source
from torchtune_smt.lm import DISCOUNT_FALLBACK, NgramModel, estimate
from torchtune_smt.models import Model

LM = NgramModel.from_ngrams(
    to_ngrams(DictModel({("<s>",): 0.0, ("</s>",): -1.0, ("<unk>",): -2.0}))
)
TEMPLATES = [RuleId(), SourceNgram(), RuleShape()]
NO_PRUNING = 20_000


def features_of(kbest, h, names):
    ids, values = kbest.row(h)
    return dict(zip(names.names(ids), values.tolist(), strict=True))


def words_of(kbest, decoder, h=0):
    return decoder.words.names(kbest.hypothesis(h))


def as_lists(kbests):
    """Everything in k-best lists, for comparison."""
    parts = [(*k.strings(), k.rows.begin, k.rows.feature, k.rows.value, k.score) for k in kbests]
    return [[array.tolist() for array in arrays] for arrays in parts]


weight_values = st.integers(-20, 20).map(lambda i: i / 10)


@settings(max_examples=150)
@given(
    sentences_and_rules(),
    dict_models(),
    st.integers(1, 6),
    st.booleans(),
    st.sampled_from([1, 2, 10, 5000]),
    st.sampled_from([1, 3, NO_PRUNING, NO_PRUNING, NO_PRUNING]),
    st.data(),
)
def test_lists_are_those_of_all_derivations(given_rules, model, max_span, unique, k, pop, data):
    sentence, rules = given_rules
    weight = dict(zip(DENSE, data.draw(st.tuples(*[weight_values] * len(DENSE))), strict=True))
    names = sorted({name for rule in rules for name in sparse_names(rule)})
    weight |= data.draw(st.dictionaries(st.sampled_from([*names, "rule_id:q~q"]), weight_values))
    check_lists(sentence, rules, model, max_span, unique, k, pop, weight)


@settings(max_examples=30)
@given(
    st.integers(2, 4),
    st.lists(st.text("abz", max_size=3).map(tuple), min_size=4, max_size=5, unique=True),
    dict_models(closed=True, min_order=2),
    st.booleans(),
    st.integers(-20, 20).filter(bool),
)
def test_many_strings_of_few_words(length, strings, model, unique, lm_weight):
    """All ways to put some strings in a row or swap them: many states, many equal strings."""
    rules = [Rule(("u",), string, (0.01 * i, 0.0)) for i, string in enumerate(strings)]
    if length == 2:
        rules.append(Rule(("[1]", "u"), ("[1]", "b", "a"), (0.0, 0.1)))
        rules.append(Rule(("[1]", "[2]"), ("[2]", "[1]"), (0.0, 0.0)))
    weight = dict.fromkeys(DENSE, 0.1) | {"LanguageModel": lm_weight / 10}
    check_lists(["u"] * length, rules, model, 2, unique, 5000, NO_PRUNING, weight)


def test_a_string_may_begin_and_end_alike():
    """Items of equal first and last words differ if one has more in between.

    Both "a" and "a z a" begin with a and end in state a, but of the first a word before it is
    still in the context of a word behind it.
    """
    ngrams = [tuple(ngram.split()) for ngram in "<s>,</s>,<unk>,a,b,b a,a b,a a,b a b".split(",")]
    model = DictModel(
        {ngram: -0.125 * i for i, ngram in enumerate(ngrams)},
        {("a",): -1.0, ("b",): -0.5, ("b", "a"): -2.0, ("a", "b"): -0.25},
    )
    rules = [
        Rule(("u",), ("a",), (0.0, 0.0)),
        Rule(("u",), ("a", "z", "a"), (3.0, 0.0)),
        Rule(("v",), ("b",), (0.0, 0.0)),
    ]
    weight = {"LanguageModel": 1.0, "F0": 1.0}
    for sentence in ("vuv", "vu", "uuv"):
        for unique in (False, True):
            check_lists(list(sentence), rules, model, 5, unique, 5000, NO_PRUNING, weight)


def check_lists(sentence, rules, model, max_span, unique, k, pop_limit, weight):
    """Compare the decoder's list with what should stand in it."""
    try:
        expected = all_derivations(rules, model, sentence, max_span)
    except TooManyError:
        assume(False)
    lm = NgramModel.from_ngrams(to_ngrams(model))
    decoder = HieroDecoder(
        Model(to_grammar(rules), lm),
        templates=TEMPLATES,
        k=k,
        pop_limit=pop_limit,
        max_span=max_span,
        unique=unique,
    )
    assert decoder.dense_names == DENSE
    weights = Weights(DENSE)
    weights.set(list(weight), list(weight.values()))
    (kbest,) = decoder.decode([Source(3, sentence)], weights)

    assert kbest.index == 3
    assert 1 <= len(kbest) <= k
    found = []
    for h in range(len(kbest)):
        words, features = words_of(kbest, decoder, h), features_of(kbest, h, decoder.features)
        found.append(key(words, features))
        assert list(kbest.row(h)[0]) == sorted(set(kbest.row(h)[0]))
        score = sum(value * weight.get(name, 0.0) for name, value in features.items())
        assert kbest.score[h] == pytest.approx(score, abs=1e-9)
        assert features.get("LanguageModel", 0) == pytest.approx(lm.score(words)[0], abs=1e-9)
    assert all(np.diff(kbest.score) <= 0)
    assert Counter(found) <= Counter(d.key for d in expected)
    if unique:
        assert len({words for words, _ in found}) == len(found)
    if pop_limit < NO_PRUNING:
        return
    scores = [derivation.score(weight) for derivation in expected]
    if unique:
        best: dict[tuple[str, ...], float] = {}
        for derivation, score in zip(expected, scores, strict=True):
            best[derivation.words] = max(score, best.get(derivation.words, -np.inf))
        scores = list(best.values())
        for (words, _), score in zip(found, kbest.score, strict=True):
            assert score == pytest.approx(best[words], abs=1e-9)
    assert kbest.score == pytest.approx(sorted(scores, reverse=True)[:k], abs=1e-9)


def covers(side, words):
    """Whether the source side of a rule can cover these words, gaps one or more of them."""
    if not side:
        return not words
    if side[0] in GAPS:
        return any(covers(side[1:], words[n:]) for n in range(1, len(words) + 1))
    return bool(words) and words[0] == side[0] and covers(side[1:], words[1:])


@given(sentences_and_rules(), st.integers(1, 6), st.lists(st.text("uvwx", max_size=5), max_size=3))
def test_features_of_charts(given_rules, max_span, others):
    """Those of each rule that covers a span of a sentence, and of each word that is copied."""
    sentence, rules = given_rules
    sentences = [list(sentence), *map(list, others)]
    decoder = HieroDecoder(Model(to_grammar(rules), LM), templates=TEMPLATES, max_span=max_span)
    weights = Weights(DENSE)
    weights.set(["rule_id:elsewhere~x"], [1.0])
    sources = [Source(i, words) for i, words in enumerate(sentences)]
    found = decoder.feature_ids(sources)
    expected = set()
    for words in sentences:
        copies = [Rule((word,), (word,)) for word in words]
        spans = [words[i : i + n] for n in range(1, max_span + 1) for i in range(len(words))]
        matching = [rule for rule in rules if any(covers(rule.source, span) for span in spans)]
        expected |= {name for rule in [*copies, *matching] for name in sparse_names(rule)}
    assert (np.diff(found) > 0).all()
    assert set(decoder.features.names(found)) == expected
    plain = HieroDecoder(Model(to_grammar(rules), LM), max_span=max_span)
    assert plain.feature_ids(sources).size == 0
    # Lists have no others, and decoding adds none.
    size = len(decoder.features)
    kbests = decoder.decode(sources, weights)
    assert len(decoder.features) == size
    for kbest in kbests:
        assert set(kbest.rows.feature[kbest.rows.feature >= len(DENSE)].tolist()) <= set(
            found.tolist()
        )


# What follows stands on a random grammar of a few hundred rules.

WORDS = [f"w{i}" for i in range(12)]


@pytest.fixture(scope="module")
def toy_model() -> tuple[list[Rule], NgramModel]:
    rng = np.random.default_rng(5)
    rules = [Rule((w,), (w.upper(),), (0.0, 0.0)) for w in WORDS]
    for _ in range(300):
        source = rng.choice(WORDS, rng.integers(1, 4)).tolist()
        target = [w.upper() for w in rng.choice(WORDS, rng.integers(1, 4))]
        if rng.random() < 0.5:
            source.insert(rng.integers(len(source) + 1), "[1]")
            target.insert(rng.integers(len(target) + 1), "[1]")
            if rng.random() < 0.5 and len(source) > 2 and source[-1] != "[1]":
                source.append("[2]")
                target.insert(rng.integers(len(target) + 1), "[2]")
        rules.append(Rule(tuple(source), tuple(target), tuple(rng.normal(size=2))))
    rng = np.random.default_rng(6)
    text = [[w.upper() for w in rng.choice(WORDS, rng.integers(3, 12))] for _ in range(400)]
    model = NgramModel.from_ngrams(estimate(text, 3, DISCOUNT_FALLBACK))
    return rules, model


@pytest.fixture(scope="module")
def toy_sources() -> list[Source]:
    rng = np.random.default_rng(7)
    return [Source(i, rng.choice([*WORDS, "?"], rng.integers(1, 25)).tolist()) for i in range(30)]


@pytest.fixture
def toy(toy_model):
    """Return a function that makes decoders of the toy grammar."""
    rules, model = toy_model

    def make(**options) -> HieroDecoder:
        options = {"templates": TEMPLATES, "k": 20, "pop_limit": 30} | options
        return HieroDecoder(Model(to_grammar(rules), model), **options)

    return make


def toy_weights(decoder, names=DENSE):
    weights = Weights(names)
    weights.set(DENSE, [0.3, 0.2, 0.5, -1.0, -0.1, -0.5, 0.1])
    assert decoder.dense_names == DENSE
    return weights


def names_in(decoder):
    return decoder.features.names(range(len(decoder.features)))


def assert_alike(found, expected, tolerance=0.0):
    """Compare lists of two decoders, whose ids may differ."""
    for a, b in zip(found, expected, strict=True):
        assert a.index == b.index
        assert a.score.tolist() == pytest.approx(b.score.tolist(), abs=tolerance)
        assert [a.text(h) for h in range(len(a))] == [b.text(h) for h in range(len(b))]
        for h in range(len(a)):
            one, other = (features_of(kbest, h, kbest.features) for kbest in (a, b))
            assert one == pytest.approx(other, abs=tolerance)


def test_threads_and_batches_change_nothing(toy, toy_sources):
    alone, together = toy(), toy(threads=4, seconds=1000.0)
    weights = toy_weights(alone)
    one_by_one = [kbest for s in toy_sources for kbest in alone.decode([s], weights)]
    at_once = together.decode(toy_sources, weights)
    at_once.check()
    assert at_once.features is together.features and at_once.words is together.words
    assert as_lists(one_by_one) == as_lists(at_once)
    assert [kbest.index for kbest in at_once] == list(range(len(toy_sources)))
    assert names_in(alone) == names_in(together)
    assert as_lists(together.decode(toy_sources, weights)) == as_lists(at_once)
    assert len(alone.decode([], weights)) == 0


@pytest.mark.parametrize("unknown", ["keep", "drop"])
def test_what_is_kept_changes_nothing(toy, toy_sources, unknown):
    """Whatever fits, and however often a sentence comes, lists and ids of features are the same."""
    rng = np.random.default_rng(3)
    without = toy(keep_mb=0, unknown=unknown)
    decoders = [toy(keep_mb=mb, unknown=unknown, threads=t) for mb, t in ((0.02, 1), (100, 3))]
    sources = [*toy_sources, Source(99, ["nobody", "knows", "this"])]
    for _ in range(5):
        some = [sources[i] for i in rng.permutation(len(sources))[: len(sources) * 2 // 3]]
        values = rng.normal(size=len(without.features))
        expected = None
        for decoder in (without, *decoders):
            weights = toy_weights(decoder)
            weights.set(without.features.names(range(values.size)), values)
            found = as_lists(decoder.decode(some, weights))
            expected = found if expected is None else expected
            assert found == expected
            assert names_in(decoder) == names_in(without)
            assert [decoder.uncovered(s) for s in some] == [without.uncovered(s) for s in some]
    few, all_of_them = (decoder._kept for decoder in decoders)
    assert len(without._kept) == 0
    assert 0 < len(few) < len(all_of_them) <= len(sources)
    assert 0 < few.nbytes <= 20_000


def test_sentences_are_kept_from_the_second_time_on(toy, toy_sources):
    decoder = toy(keep_mb=100)
    weights = toy_weights(decoder)
    decoder.decode(toy_sources, weights)
    assert len(decoder._kept) == 0
    prepared, prepare = [], decoder._prepare
    decoder._prepare = lambda rules: prepared.append(rules.index) or prepare(rules)
    for _ in range(3):
        decoder.decode(toy_sources[:4], weights)
    assert len(decoder._kept) == 4
    # The longest first.
    assert sorted(prepared) == [source.index for source in toy_sources[:4]]
    # A sentence of this number with other words is another one.
    decoder.decode([Source(0, toy_sources[1].words)], weights)
    assert prepared[4:] == [0]


def test_what_a_fork_meets_and_keeps_stays_with_it(toy, toy_sources):
    decoder, other = toy(keep_mb=100), toy()
    weights = toy_weights(decoder)
    decoder.decode(toy_sources[:3], weights)
    names = names_in(decoder)
    fork = decoder.fork()
    found = fork.decode(toy_sources[3:], weights)
    assert_alike(found, other.decode(toy_sources[3:], weights), 1e-12)
    assert len(fork.features) > len(names) == len(decoder.features)
    assert names_in(fork)[: len(names)] == names == names_in(decoder)
    # Ids of features that it meets first are not those of the decoder that it was forked from.
    for source in reversed(toy_sources):
        fork.decode([source], weights)
    for one in (decoder, fork, decoder, fork):
        for source in (toy_sources[0], toy_sources[-1]):
            expected = toy().decode([source], weights)
            assert_alike(one.decode([source], weights), expected, 1e-12)


def test_siblings_decode_in_threads(toy, toy_sources):
    """What one meets all know; the lists are those of a decoder that is alone."""
    decoder, other = toy(), toy()
    weights = toy_weights(decoder)
    siblings = [decoder.sibling() for _ in range(3)]
    batches = [[source] for source in toy_sources] * 2
    with ThreadPoolExecutor(len(siblings)) as pool:
        # Each has every third, and in the second round those of others.
        parts = [(n, batches[n::3]) for n in range(len(siblings))]
        found = list(pool.map(lambda p: [siblings[p[0]].decode(b, weights) for b in p[1]], parts))
    for (_, part), lists in zip(parts, found, strict=True):
        for sources, kbests in zip(part, lists, strict=True):
            assert kbests.features is decoder.features
            assert_alike(kbests, other.decode(sources, weights), 1e-12)
    assert sorted(names_in(decoder)) == sorted(names_in(other))


def test_weights_are_read_by_name(toy, toy_sources):
    """In whatever order they are, of however many features, and before a rule is first seen."""
    decoder, fresh = toy(), toy()
    weights = toy_weights(decoder)
    sources = toy_sources[:6]
    decoder.decode(sources, weights)
    names = names_in(decoder)[weights.n_dense :]
    rng = np.random.default_rng(1)
    values = rng.normal(size=len(names))
    weights.set(names, values)
    before, dimension = weights.parameter.tolist(), len(weights.features)
    expected = decoder.decode(sources, weights)
    # Decoding changes none.
    assert weights.parameter.tolist() == before and len(weights.features) == dimension
    for dense in ([], DENSE[:-1], DENSE[::-1], [*DENSE, "More"]):
        other = toy_weights(decoder, dense)
        other.features.intern(["another:feature"])
        shuffled = rng.permutation(len(names))
        other.set([names[i] for i in shuffled], values[shuffled])
        for one, tolerance in ((decoder, 0.0), (fresh, 1e-9)):
            assert_alike(one.decode(sources, other), expected, tolerance)


def test_lazy_weights_are_brought_up_to_date(toy, toy_sources):
    """Reading announces every feature of the sentences, and not all there are."""
    decoder = toy()
    weights = toy_weights(decoder)
    decoder.decode(toy_sources, weights)
    asked: list[int] = []

    class Asked:
        version = 0

        def read(self, features, ids):
            assert features is decoder.features
            asked.extend(ids.tolist())
            return weights.read(features, ids)

    kbests = decoder.decode(toy_sources[:3], Asked())
    assert set(asked) >= set(np.concatenate([k.rows.feature for k in kbests]).tolist())
    assert len(set(asked)) < 0.7 * len(decoder.features)


def test_sentences_without_a_parse(toy):
    """The empty sentence, a long one of unknown words, known words beyond the span limit."""
    decoder = toy(max_span=4)
    weights = toy_weights(decoder)
    sentences = [[], ["<unknown>", "|||", "[1]", "</s>"] * 50, WORDS * 3]
    sources = [Source(i, words) for i, words in enumerate(sentences)]
    empty, unknown, long = decoder.decode(sources, weights)
    assert len(empty) == 1 and empty.tokens.size == 0
    logp, _ = decoder.models[0].score([])
    assert features_of(empty, 0, decoder.features) == {"LanguageModel": pytest.approx(logp)}
    assert empty.score[0] == pytest.approx(0.5 * logp)
    assert len(unknown) == 1
    assert words_of(unknown, decoder) == sentences[1]
    features = features_of(unknown, 0, decoder.features)
    assert features["PassThrough"] == 200 and features["Glue"] == 199
    assert features["LanguageModel_OOV"] == 150  # </s> is a word of the model
    assert features["LanguageModel"] == pytest.approx(decoder.models[0].score(sentences[1])[0])
    assert len(long) == 20
    (one,) = decoder.decode(sources[2:], weights, k=1)
    assert len(one) == 1 and (one.score[0], one.text(0)) == (long.score[0], long.text(0))
    with pytest.raises(ValueError, match="k must be at least 1"):
        decoder.decode(sources, weights, k=0)
    assert all(features_of(long, h, decoder.features)["Glue"] >= 8 for h in range(len(long)))


def yields(part, side):
    """The words that a derivation covers, or that it gives."""
    found = []
    for symbol in getattr(part, side).split():
        gap = symbol in GAPS and part.parts
        found += yields(part.parts[int(symbol[1]) - 1], side) if gap else [symbol]
    return found


def used(part):
    return [part, *(rule for inner in part.parts for rule in used(inner))]


def test_derivations_are_those_of_the_best_translations(toy, toy_sources):
    decoder = toy(unique=False)
    weights = toy_weights(decoder)
    sources = [*toy_sources, Source(30, [])]
    nested = 0
    for source, kbest in zip(sources, decoder.decode(sources, weights), strict=True):
        whole = decoder.derivation(source, weights)
        sides = [[w for p in whole.parts for w in yields(p, s)] for s in ("source", "target")]
        assert sides == [source.words, words_of(kbest, decoder)]
        rules = [rule for part in whole.parts for rule in used(part)]
        for rule in [whole, *rules]:
            covered = source.words[rule.begin : rule.end]
            assert covered == (yields(rule, "source") if rule is not whole else source.words)
        names = Counter(
            name for r in rules for name in RuleId().features(r.source.split(), r.target.split())
        )
        features = features_of(kbest, 0, decoder.features)
        assert {n: v for n, v in features.items() if n.startswith("rule_id:")} == names
        assert features.get("Glue", 0) == max(0, len(whole.parts) - 1)
        nested += sum(len(rule.parts) == 2 for rule in rules)
    assert nested


def test_sentences_that_are_too_long(toy):
    decoder = toy(max_words=3)
    weights = toy_weights(decoder)
    (kbest,) = decoder.decode([Source(0, ["w1"] * 3)], weights)
    assert len(kbest) > 0
    with pytest.raises(ValueError, match="sentence 7 has 60,?000 words, and at most 3"):
        decoder.decode([Source(0, ["w1"]), Source(7, ["w1"] * 60_000)], weights)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_search_that_takes_too_long(toy, threads):
    """The search would take seconds."""
    decoder = toy(pop_limit=500, seconds=0.01, threads=threads)
    with pytest.raises(
        InputError, match=r"^sentence 3 .*900 words, 'w1 w1 w1 w1 w1 w1 ...'.*seconds"
    ):
        decoder.decode([Source(3, ["w1"] * 900)], toy_weights(decoder))


@pytest.mark.parametrize("seconds", [1e10, math.inf])
def test_more_time_than_a_timer_can_wait(seconds):
    before = set(threading.enumerate())
    with deadline(seconds) as stop:
        (timer,) = set(threading.enumerate()) - before
        assert timer.interval == threading.TIMEOUT_MAX
        assert not stop.any()
