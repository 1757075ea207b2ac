"""The phrase-based decoder, against enumeration of all translations, and its behaviour in use."""

from itertools import product

import numpy as np
import pytest
from hiero_reference import TooManyError, check_list, features_of, words_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from lm_reference import DictModel, dict_models, to_ngrams
from phrase_reference import (
    NAMES,
    OWN,
    Phrase,
    all_translations,
    class_names,
    reordering_names,
    sentences_and_phrases,
    sparse_name,
    to_table,
)

from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.decoders.hiero import HieroDecoder
from torchtune_smt.decoders.phrase import PhraseDecoder
from torchtune_smt.features import LexReordering, RuleId, WordAlignment
from torchtune_smt.grammar.extraction import extract_phrases
from torchtune_smt.grammar.reordering import ReorderingType
from torchtune_smt.kbest.lists import Source
from torchtune_smt.lm import NgramModel
from torchtune_smt.models import Model

LM = NgramModel.from_ngrams(
    to_ngrams(DictModel({("<s>",): 0.0, ("</s>",): -1.0, ("<unk>",): -2.0}))
)
NO_PRUNING = 5_000
ALL = 20_000
MSD = ReorderingType.parse("wbe-msd-bidirectional-fe-allff")

weight_values = st.integers(-20, 20).map(lambda i: i / 10)


def names_of(kind):
    return [*NAMES, *(reordering_names(kind) if kind is not None else []), *OWN]


def check_lists(sentence, kind, phrases, model, weight, *, pop, lexicalized=False, **options):
    """Compare the decoder's list with what should stand in it."""
    limit = options["distortion_limit"]
    try:
        expected = all_translations(phrases, kind, model, sentence, limit, lexicalized=lexicalized)
    except TooManyError:
        assume(False)
    own = Model(to_table(phrases, kind), NgramModel.from_ngrams(to_ngrams(model)))
    templates = [RuleId(), LexReordering(lexicalized=lexicalized)]
    decoder = PhraseDecoder(own, templates=templates, pop_limit=pop, stack_size=pop, **options)
    assert decoder.dense_names == names_of(kind)
    (kbest,) = decoder.decode([Source(3, sentence)], FrozenWeights.of(weight))
    assert kbest.index == 3
    k, unique, pruned = options["k"], options["unique"], pop < NO_PRUNING
    check_list(kbest, expected, weight, k, unique=unique, pruned=pruned, tolerance=1e-9)


@settings(max_examples=70)
@given(
    sentences_and_phrases(),
    dict_models(),
    st.fixed_dictionaries(
        {
            "distortion_limit": st.sampled_from([-1, 0, 1, 2, 3, 6, 100]),
            "unique": st.booleans(),
            "k": st.sampled_from([1, 2, 10, ALL]),
            "pop": st.sampled_from([1, 3, NO_PRUNING, NO_PRUNING, NO_PRUNING]),
            "lexicalized": st.booleans(),
        }
    ),
    st.data(),
)
def test_lists_are_those_of_all_translations(given_phrases, model, options, data):
    sentence, kind, phrases = given_phrases
    names = names_of(kind)
    weight = dict(zip(names, data.draw(st.tuples(*[weight_values] * len(names))), strict=True))
    sparse = {sparse_name(phrase.source, phrase.target) for phrase in phrases}
    order = MSD if kind is None else kind
    for phrase in phrases:
        rule = f":{'_'.join(phrase.source)}~{'_'.join(phrase.target)}"
        for column, behind in product(range(order.orientations), (False, True)):
            sparse.update(
                class_names(order, column, behind, rule if options["lexicalized"] else "")
            )
    names = [*sorted(sparse), "rule_id:q~q"]
    weight |= data.draw(st.dictionaries(st.sampled_from(names), weight_values))
    check_lists(sentence, kind, phrases, model, weight, **options)


@settings(max_examples=30)
@given(
    st.sampled_from(
        ["hier-msd-bidirectional-fe", "hier-mslr-bidirectional-fe", "hier-msd-backward-fe"]
    ),
    st.integers(4, 6),
    st.sampled_from([-1, 3, 4]),
    st.data(),
)
def test_blocks_of_any_form(name, length, distortion_limit, data):
    """One phrase a word, so that blocks alone tell derivations apart; 2 4 1 3 are none together."""
    kind = ReorderingType.parse(name)
    sentence = [f"w{i}" for i in range(length)]
    scores = st.tuples(*[st.integers(-20, 0).map(lambda i: i / 10)] * kind.scores)
    phrases = [Phrase((word,), ("z",), (0.0, 0.0), data.draw(scores)) for word in sentence]
    model = DictModel({("<s>",): 0.0, ("</s>",): -1.0, ("<unk>",): -2.0})
    weight = dict.fromkeys(names_of(kind), 1.0)
    options = {"distortion_limit": distortion_limit, "unique": False, "k": ALL}
    check_lists(sentence, kind, phrases, model, weight, pop=NO_PRUNING, **options)


def decoder_of(phrases, kind=None, **options):
    return PhraseDecoder(Model(to_table(phrases, kind), LM), **options)


def weights(**changed):
    return FrozenWeights.of(
        {"LM0_0": 0.5, "WordPenalty0_0": -1.0, "UnknownWordPenalty0_0": 1.0, "Distortion0_0": 0.3}
        | {f"{name}_0": value for name, value in changed.items()}
    )


PHRASES = [Phrase(("u",), ("a",), (0.0, 0.0), ()), Phrase(("u", "v"), ("b", "c"), (-0.5, 0.0), ())]


@pytest.mark.parametrize("kind", [None, MSD])
def test_an_empty_sentence_has_an_empty_translation(kind):
    phrases = [Phrase(p.source, p.target, p.values, (0.0,) * 6 if kind else ()) for p in PHRASES]
    decoder = decoder_of(phrases, kind)
    empty, other = decoder.decode([Source(0, []), Source(1, ["v", "v"])], weights())
    assert features_of(empty, 0) == {"LM0_0": pytest.approx(-np.log(10))}
    # v is no phrase by itself, and copied.
    assert (words_of(empty), words_of(other)) == ([], ["v", "v"])
    assert features_of(other, 0)["UnknownWordPenalty0_0"] == -200.0


@pytest.mark.parametrize("limit", [-1, 0, 6, 1000])
def test_long_sentences(limit):
    phrases = [Phrase(p.source, p.target, p.values, (-0.1,) * 6) for p in PHRASES]
    decoder = decoder_of(phrases, MSD, k=10, pop_limit=20, distortion_limit=limit)
    words = ["u", "v", "x", "u"] * 100
    (kbest,) = decoder.decode([Source(0, words)], weights(PhrasePenalty=-0.5))
    assert len(kbest) == 10
    assert words_of(kbest) == ["b", "c", "x", "a"] * 100


def test_a_phrase_longer_than_the_widest_limit():
    long = Phrase(("u",) * 80, ("a",), (0.0, 0.0), ())
    decoder = decoder_of([long], distortion_limit=-1, pop_limit=10)
    (kbest,) = decoder.decode([Source(0, ["u"] * 90)], weights())
    assert words_of(kbest).count("a") == 1
    assert len(words_of(kbest)) == 11


@pytest.mark.parametrize(
    ("limit", "n"), [(20, 500), (64, 500), (65, 500), (100, 90), (1 << 30, 500)]
)
def test_options_are_sorted_the_same_whatever_their_number(limit, n):
    scores = -np.random.default_rng(limit).integers(0, n // 3, n) / 8
    # Of one to three words, which the language model does not know.
    length = 1 + np.arange(n) % 3
    phrases = [
        Phrase(("u",), (f"w{i}",) * length[i], (score, 0.0), ()) for i, score in enumerate(scores)
    ]
    decoder = decoder_of(phrases, table_limit=limit, k=n, pop_limit=n, stack_size=n)
    (kbest,) = decoder.decode([Source(0, ["u"])], weights(TranslationModel0=1.0))
    best = np.argsort(-scores - (1 - np.log(10)) * length, kind="stable")[:limit]
    assert {words_of(kbest, h)[0] for h in range(len(kbest))} == {f"w{i}" for i in best}
    assert np.diff(kbest.score).max(initial=0.0) <= 0


def test_features_of_links_and_counts():
    """Of pairs that occurred often enough; copied words occurred never."""
    text = [["ja", "ein"]] * 2, [["so", "a"]] * 2, [[(1, 1)], [(1, 1)]]
    model = Model(extract_phrases(*text), LM)

    def sparse(*templates):
        decoder = PhraseDecoder(model, templates=templates, k=1)
        (kbest,) = decoder.decode([Source(0, ["ja", "ein", "x"])], weights(PhrasePenalty=-9.0))
        assert words_of(kbest)[-1] == "x"
        features = features_of(kbest, 0)
        return {name: value for name, value in features.items() if ":" in name}

    assert sparse(WordAlignment()) == {"alignment:ein~a": 1, "alignment:ja~": 1, "alignment:x~x": 1}
    named = {"rule_id:ja_ein~a": 1, "rule_id:x~x": 1}
    assert sparse(RuleId()) == named
    assert sparse(RuleId(min_count=2)) == {"rule_id:ja_ein~a": 1}
    assert sparse(RuleId(min_count=3), WordAlignment(min_count=3), LexReordering()) == {
        "lex_reordering:before_monotone": 2,
        "lex_reordering:monotone": 2,
        "lex_reordering:behind_monotone": 1,
    }
    assert sparse(LexReordering(behind=False, lexicalized=True, min_count=1)) == {
        "lex_reordering:before_monotone:ja_ein~a": 1,
        "lex_reordering:monotone:ja_ein~a": 1,
    }


@pytest.mark.parametrize(
    ("kind", "gaps", "template", "message"),
    [
        (PhraseDecoder, False, WordAlignment(), "alignment features need the word alignment"),
        (PhraseDecoder, False, RuleId(min_count=1), "not say how often its rules occurred"),
        (HieroDecoder, False, LexReordering(), "of the order of phrases; take decoder=phrase"),
        (PhraseDecoder, True, RuleId(), "this grammar has gaps; take model=phrase"),
    ],
)
def test_what_a_model_has_not(kind, gaps, template, message):
    table = to_table(PHRASES, None)
    table.gaps = gaps
    with pytest.raises(ValueError, match=message):
        kind(Model(table, LM), templates=[template])
