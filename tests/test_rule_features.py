"""Templates of rule features, the store that keeps them by rule, and the decoder's heap."""

import sys
from concurrent.futures import ThreadPoolExecutor
from heapq import heappop, heappush
from threading import Barrier

import numpy as np
import pytest
from hiero_reference import Rule, to_grammar
from hypothesis import given
from hypothesis import strategies as st
from lm_reference import DictModel, to_ngrams

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.hiero import HieroDecoder
from torchtune_smt.decoders.rule_features import RuleFeatures, spelling_of
from torchtune_smt.decoders.search_kernels import heap_pop, heap_push
from torchtune_smt.features import LexReordering, RuleId, RuleShape, SourceNgram, WordAlignment
from torchtune_smt.features.templates import (
    escape,
    is_gap,
    numbered_templates,
    template_of,
    templates_of,
)
from torchtune_smt.grammar import extract_grammar
from torchtune_smt.grammar.extraction import extract_phrases
from torchtune_smt.kbest.lists import Source
from torchtune_smt.lm import NgramModel
from torchtune_smt.models import Model

TEMPLATES = [RuleId(), SourceNgram(), RuleShape()]


def test_names_of_links():
    source, target, links = ["ja", "[1]", "haus"], ["the", "house", "[1]"], [(2, 1)]
    found = WordAlignment(insertions=True).aligned_features(source, target, links)
    assert found == ["alignment:haus~house", "alignment:ja~", "alignment:~the"]


def test_templates_of_names():
    """Words of Moses's features have colons."""
    names = ["rule_id:a:b~c", "WT_das~the", "plain", "_x"]
    assert [template_of(name) for name in names] == ["rule_id", "WT", "other", "other"]
    names = ["WT_:~that", "PP_steht~:~&quot;~~says", "WT_10:30~at", "WT_a~b", "rule_id:a~b", "X:y"]
    assert templates_of(names) == ["WT", "PP", "WT", "WT", "rule_id", "X"]
    assert templates_of(["rule_id:a~b", "rule_shape:T~T"]) == ["rule_id", "rule_shape"]
    assert templates_of(["plain", "other_x"]) == ["other", "other"]


@given(st.lists(st.text("aB:_-", min_size=1, max_size=6), unique=True, max_size=12))
def test_numbered_templates(names):
    features = Vocabulary(["dense_1", *names])
    templates, number = numbered_templates(features, np.arange(1, len(features)))
    assert [templates[t] for t in number] == templates_of(names)
    assert len(set(templates)) == len(templates)


words = st.text(min_size=1, max_size=6)
looks_special = st.sampled_from(["[1]", "[2]", "[X]", "T", "_", "~", "%5B1%5D", "a_b", "a~b", "%"])
symbols = st.one_of(st.sampled_from([(True, "[1]"), (True, "[2]")]), st.tuples(
    st.just(False), st.one_of(words, looks_special)))  # fmt: skip
side = st.lists(symbols, max_size=3)


def text(side):
    return [word if gap else escape(word) for gap, word in side]


@given(words, words, st.sampled_from(" \t\n\x0b\x0c\r\x1c\x85\u00a0\u2003\u2028\u3000"))
def test_escaping_is_injective_and_leaves_no_space(a, b, space):
    assert (escape(a) == escape(b)) == (a == b)
    assert not is_gap(escape(a))
    assert len(escape(a + space + b).split()) == 1


@given(side, side, side, side)
def test_rules_have_names_of_their_own(a, b, c, d):
    """No two rules share a name, which has no space that would split it in a file, and no sign."""
    (one,) = RuleId().features(text(a), text(b))
    (two,) = RuleId().features(text(c), text(d))
    assert (one == two) == ((a, b) == (c, d))
    assert one.split() == [one]
    assert "=" not in one and "|" not in one


@given(st.lists(symbols, min_size=2, max_size=2), st.lists(symbols, min_size=2, max_size=2))
def test_bigrams_have_names_of_their_own(a, b):
    def gaps_alike(side):
        return [(gap, "X" if gap else word) for gap, word in side]

    same = SourceNgram().features(text(a), []) == SourceNgram().features(text(b), [])
    assert same == (gaps_alike(a) == gaps_alike(b))


def uniform_model(names):
    words = ["<unk>", "<s>", "</s>", *names.split()]
    return NgramModel.from_ngrams(to_ngrams(DictModel({(word,): -1.0 for word in words})))


def test_words_that_look_like_gaps():
    """They stand in rules and sentences as words, and their names say so; values count firings."""
    rule = Rule(("<1>", "[X]", "<1>", "[X]"), ("<1>", "T", "~"), (1.0, 0.0))
    decoder = HieroDecoder(Model(to_grammar([rule]), uniform_model("a")), templates=TEMPLATES, k=1)
    weights = Weights(decoder.dense_names)
    weights.set(["F0"], [10.0])
    (kbest,) = decoder.decode([Source(0, list(rule.source))], weights)
    ids, values = kbest.row(0)
    assert kbest.text(0) == "<1> T ~"
    features = dict(zip(decoder.features.names(ids), values.tolist(), strict=True))
    assert {name: value for name, value in features.items() if ":" in name} == {
        "rule_id:<1>_%5BX%5D_<1>_%5BX%5D~<1>_T_%7E": 1,
        "source_ngram:<1>_%5BX%5D": 2,
        "source_ngram:%5BX%5D_<1>": 1,
        "rule_shape:T~T": 1,
    }


def slow(kind):
    """A template of a user's own, which no kernel spells."""

    class Slow(kind):
        def features(self, source, target):
            return super().features(source, target)

    return Slow


SlowId, SlowNgram, SlowShape = map(slow, (RuleId, SourceNgram, RuleShape))


@st.composite
def any_rules(draw):
    """Rules whose words look like anything, with up to two gaps."""
    sides = st.lists(st.sampled_from(["a", "b:", "ein", "%5B", "[X]", "\u00a0", "für", "~_"]))
    found = []
    for _ in range(draw(st.integers(1, 8))):
        gaps = [f"[{n + 1}]" for n in range(draw(st.integers(0, 2)))]
        source, target = draw(sides), draw(sides)
        for side in source, target:
            places = sorted(draw(st.integers(0, len(side))) for _ in gaps)
            order = gaps if side is source else draw(st.permutations(gaps))
            for place, gap in reversed(list(zip(places, order, strict=True))):
                side.insert(place, gap)
        found.append(Rule(tuple(source), tuple(target), (0.0, 0.0)))
    return found


@given(
    any_rules(), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), min_size=1), st.data()
)
def test_the_kernel_spells_as_templates_do(given_rules, chosen, data):
    grammar = to_grammar(given_rules)
    grammar.rule_counts = lambda asked: asked % 4 + 0.5
    asked = np.array(data.draw(st.permutations(range(len(grammar)))))
    found = []
    for kinds in (RuleId, SourceNgram, RuleShape), (SlowId, SlowNgram, SlowShape):
        templates = [kinds[kind]() for kind, _ in chosen]
        for template, (_, least) in zip(templates, chosen, strict=True):
            template.min_count = least
        store = RuleFeatures(grammar, templates, Vocabulary(["dense"]))
        assert [spelling_of(template) is None for template in templates] == [
            kinds[0] is SlowId for _ in templates
        ]
        of = store.of_sentence(asked)
        names = store.features.names(range(len(store.features)))
        found.append((names, of.begin.tolist(), of.id[of.feature].tolist()))
    assert found[0] == found[1]


class Answers:
    """Says the same of each rule."""

    name = "own"

    def __init__(self, answer, oriented=()):
        self.answer, self.oriented = answer, oriented

    def features(self, source, target):
        return self.answer

    def oriented_features(self, source, target, orientation, *, behind):
        return self.oriented


# A string would be taken for a list of letters, and the others fail when weights are written, after
# all the tuning, or are read as other names.
@pytest.mark.parametrize(
    "answer",
    ["own:a", None, [3], [""], ["other:a"], ["own"], ["own:a b"], ["own:a\u2003b"], ["own:a=1"]],
)
def test_a_template_that_does_not_answer_with_names(answer):
    grammar = to_grammar([Rule(("a",), ("b",), (0.0, 0.0))])
    for template in (Answers(answer), Answers([], answer)):
        store = RuleFeatures(grammar, [template], Vocabulary(), ["monotone"])
        with pytest.raises(InputError, match=r"Answers answers .* begin with 'own' and a colon"):
            store.of_sentence(np.zeros(1, np.int64))
    names = RuleFeatures(grammar, [Answers(["own:é", "own:b:#"])], Vocabulary(), ["monotone"])
    names.of_sentence(np.zeros(1, np.int64))
    assert names.features.names(range(2)) == ["own:é", "own:b:#"]


THREADS = 4


def in_threads(function):
    """Return what a function of a thread's number returns in threads that take turns at once."""
    together, interval = Barrier(THREADS), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            call = lambda n: together.wait() < THREADS and function(n)  # noqa: E731
            return list(pool.map(call, range(THREADS)))
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize(
    "templates", [TEMPLATES, [SlowId(), SlowNgram()], [RuleId(), LexReordering(lexicalized=True)]]
)
def test_threads_find_what_one_thread_finds(templates):
    """Rules that all ask for at once, or each before the others; copied words, too."""
    count, words = 400, [f"w{i}" for i in range(40)]
    rules = [Rule((f"s{i}", f"s{i % 7}"), (f"t{i}",), (0.0, 0.0)) for i in range(count)]
    orientations = ["monotone", "swap"] if isinstance(templates[-1], LexReordering) else []
    grammar = to_grammar(rules)
    for seed in range(5):
        shared = RuleFeatures(grammar, templates, Vocabulary(["dense"]), orientations)
        alone = RuleFeatures(grammar, templates, Vocabulary(["dense"]), orientations)

        def found(store, number, seed=seed):
            """Return the names of each rule's rows, as asked for part by part."""
            generator = np.random.default_rng((seed, number))
            asked = np.arange(count) if number % 2 else generator.permutation(count)
            names = {}
            for part in np.array_split(asked, 20):
                copied = generator.choice(words, 5).tolist()
                of = store.of_sentence(part, copied)
                assert (np.diff(of.id) > 0).all()
                keys = [key for key in [*part.tolist(), *copied] for _ in range(of.rows)]
                for row, key in enumerate(keys):
                    ids = of.id[of.feature[of.begin[row] : of.begin[row + 1]]]
                    names.setdefault((key, row % of.rows), store.features.names(ids))
            return names

        stores = [shared.sibling() for _ in range(THREADS)]
        results = in_threads(lambda number, own=stores: found(own[number], number))
        for number, result in enumerate(results):
            assert result == found(alone, number)
        assert len(shared.features) == len(alone.features)


def test_alignments_of_hierarchical_rules():
    """Links between words alone: gaps have places, and no links."""
    text = "ja ich habe es gesehen".split(), "i have seen it".split()
    links = [(1, 0), (2, 1), (3, 3), (4, 2)]
    grammar = extract_grammar([text[0]], [text[1]], [links], max_symbols=4)
    store = RuleFeatures(grammar, [WordAlignment()], Vocabulary())
    names = {}
    for rule in range(len(grammar)):
        found = store.of_sentence(np.array([rule]))
        text = " ".join(" ".join(side) for side in grammar.rule_text(rule))
        names[text] = store.features.names(found.id[found.feature])
    expected = ["alignment:habe~have", "alignment:gesehen~seen"]
    assert names["habe [1] gesehen have seen [1]"] == expected
    assert names["[1] es [2] [1] [2] it"] == ["alignment:es~it"]
    grammar.point_begin = None
    with pytest.raises(ValueError, match="this grammar has none; take a phrase table"):
        RuleFeatures(grammar, [WordAlignment()], Vocabulary())


@pytest.mark.parametrize("extract", [extract_grammar, extract_phrases])
@pytest.mark.parametrize("template", [RuleId, SlowId])
def test_a_training_sentence_does_not_count_for_itself(extract, template):
    """Others have occurred once in each, however small their shares of it are."""
    text, other = "abc", "xyz"
    links = [np.array([[i, i] for i in range(3)], np.int32)] * 3
    grammar = extract([text, text, "k"], [other, other, "l"], [*links[:2], links[0][:1]])

    def fired(words, train_index=-1):
        """How many rules of a sentence there are, and how many fire."""
        ids = grammar.source_words.lookup(words)
        rules = grammar.sentence_grammar(ids, 3, train_index).rule
        found = store.of_sentence(rules, train_index=train_index)
        return rules.size, found.feature.size

    for least in (1, 2, 3):
        store = RuleFeatures(grammar, [template(min_count=least)], Vocabulary())
        for _ in range(2):
            for words, train_index, count in ((text, -1, 2), (text, 0, 1), ("k", -1, 1)):
                rules, found = fired(words, train_index)
                assert rules > 0 and found == (rules if count >= least else 0)
            assert fired("k", 2) == (0, 0)


def test_decoders_do_not_count_a_training_sentence_for_itself():
    links = [np.array([[0, 0]], np.int32)] * 2
    grammar = extract_grammar([["x"], ["x"]], [["a"], ["a"]], links)
    decoder = HieroDecoder(Model(grammar, uniform_model("a")), templates=[RuleId(min_count=2)])
    for train_index, expected in ((-1, ["rule_id:x~a"]), (0, [])):
        source = Source(0, ["x"], train_index)
        (kbest,) = decoder.decode([source], Weights(decoder.dense_names))
        assert decoder.features.names(decoder.feature_ids([source])) == expected
        fired = decoder.features.names(np.unique(kbest.rows.feature))
        assert [name for name in fired if name.startswith("rule_id:")] == expected


@pytest.mark.parametrize("templates", [[], TEMPLATES])
def test_nothing_is_asked_of_no_rules(templates):
    store = RuleFeatures(to_grammar([Rule(("x",), ("y",), (0.0, 0.0))]), templates, Vocabulary())
    asked = [0, 0] if not templates else []
    found = store.of_sentence(np.array(asked, np.int64), ["x"] if asked else [])
    assert found.begin.tolist() == [0] * (4 if asked else 1)
    assert found.feature.size == found.id.size == 0


@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=False)), max_size=60), st.integers(0, 3))
def test_heap(actions, first):
    """Numbers push, None pops; the heap may begin anywhere in its arrays."""
    room = first + len(actions) + 1
    keys, values = np.full(room, 7.0), np.full(room, -7, np.int32)
    pushed = []
    reference = []
    for action in actions:
        if action is not None:
            heap_push(keys, values, first, len(reference), action, len(pushed))
            heappush(reference, -action)
            pushed.append(action)
        elif reference:
            value = heap_pop(keys, values, first, len(reference))
            assert pushed[value] == -heappop(reference)
    rest = [heap_pop(keys, values, first, n) for n in range(len(reference), 0, -1)]
    assert [pushed[value] for value in rest] == sorted((-x for x in reference), reverse=True)
    assert len(set(rest)) == len(rest)
    assert (keys[:first] == 7).all() and (values[:first] == -7).all()
