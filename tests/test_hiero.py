"""The hierarchical decoder, against enumeration of all derivations, and its behaviour in use."""

from itertools import product

import numpy as np
import pytest
from hiero_reference import (
    DENSE,
    GAPS,
    Rule,
    TooManyError,
    all_derivations,
    check_list,
    features_of,
    sentences_and_rules,
    sparse_names,
    to_grammar,
    words_of,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from lm_reference import DictModel, dict_models, to_ngrams

from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.decoders.hiero import HieroDecoder
from torchtune_smt.features import RuleId, RuleShape, SourceNgram
from torchtune_smt.kbest.lists import Source
from torchtune_smt.lm import NgramModel
from torchtune_smt.models import Model

LM = NgramModel.from_ngrams(
    to_ngrams(DictModel({("<s>",): 0.0, ("</s>",): -1.0, ("<unk>",): -2.0}))
)
TEMPLATES = [RuleId(), SourceNgram(), RuleShape()]
NO_PRUNING = 20_000


weight_values = st.integers(-20, 20).map(lambda i: i / 10)


@settings(max_examples=150)
@given(
    sentences_and_rules(),
    dict_models(),
    st.fixed_dictionaries(
        {
            "max_span": st.integers(1, 6),
            "unique": st.booleans(),
            "k": st.sampled_from([1, 2, 10, 5000]),
            "pop_limit": st.sampled_from([1, 3, NO_PRUNING, NO_PRUNING, NO_PRUNING]),
        }
    ),
    st.data(),
)
def test_lists_are_those_of_all_derivations(given_rules, model, options, data):
    sentence, rules = given_rules
    weight = dict(zip(DENSE, data.draw(st.tuples(*[weight_values] * len(DENSE))), strict=True))
    names = sorted({name for rule in rules for name in sparse_names(rule)})
    weight |= data.draw(st.dictionaries(st.sampled_from([*names, "rule_id:q~q"]), weight_values))
    check_lists(sentence, rules, model, weight, **options)


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
    check_lists(["u"] * length, rules, model, weight, unique=unique, max_span=2)


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
    for sentence, unique in product(("vuv", "vu", "uuv"), (False, True)):
        check_lists(list(sentence), rules, model, weight, unique=unique, max_span=5)


def check_lists(sentence, rules, model, weight, *, k=5000, unique, pop_limit=NO_PRUNING, max_span):
    """Compare the decoder's list with what should stand in it."""
    try:
        expected = all_derivations(rules, model, sentence, max_span)
    except TooManyError:
        assume(False)
    lm = NgramModel.from_ngrams(to_ngrams(model))
    options = {"k": k, "pop_limit": pop_limit, "max_span": max_span, "unique": unique}
    decoder = HieroDecoder(Model(to_grammar(rules), lm), templates=TEMPLATES, **options)
    assert decoder.dense_names == DENSE
    (kbest,) = decoder.decode([Source(3, sentence)], FrozenWeights.of(weight))
    assert kbest.index == 3
    check_list(kbest, expected, weight, k, unique=unique, pruned=pop_limit < NO_PRUNING)
    for h in range(len(kbest)):
        logp = features_of(kbest, h).get("LanguageModel", 0)
        assert logp == pytest.approx(lm.score(words_of(kbest, h))[0], abs=1e-9)


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
    kbests = decoder.decode(sources, FrozenWeights.of({"rule_id:elsewhere~x": 1.0}))
    assert len(decoder.features) == size
    for kbest in kbests:
        sparse = kbest.rows.feature[kbest.rows.feature >= len(DENSE)]
        assert np.isin(sparse, found).all()


def test_sentences_without_a_parse():
    """The empty sentence, a long one of unknown words, known words beyond the span limit."""
    rules = [Rule((w,), (w.upper(),), (0.0, 0.0)) for w in "uvw"]
    rules += [Rule((w,), (w.upper(), "z"), (1.0, 0.0)) for w in "uvw"]
    decoder = HieroDecoder(Model(to_grammar(rules), LM), max_span=4, k=20)
    values = [0.3, 0.2, 0.5, -1.0, -0.1, -0.5, 0.1]
    weights = FrozenWeights.of(dict(zip(DENSE, values, strict=True)))
    sentences = [[], ["<unknown>", "|||", "[1]", "</s>"] * 50, ["u", "v", "w"] * 12]
    empty, unknown, long = decoder.decode([Source(i, s) for i, s in enumerate(sentences)], weights)
    assert len(empty) == 1 and empty.tokens.size == 0
    logp, _ = LM.score([])
    assert features_of(empty, 0) == {"LanguageModel": pytest.approx(logp)}
    assert len(unknown) == 1 and words_of(unknown) == sentences[1]
    features = features_of(unknown, 0)
    assert features["PassThrough"] == 200 and features["Glue"] == 199
    assert features["LanguageModel_OOV"] == 150  # </s> is a word of the model
    assert features["LanguageModel"] == pytest.approx(LM.score(sentences[1])[0])
    assert len(long) == 20
    assert all(features_of(long, h)["Glue"] >= 8 for h in range(len(long)))
