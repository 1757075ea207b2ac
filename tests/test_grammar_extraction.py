"""Rule extraction and leave-one-out, against an extractor that does it the slow, obvious way."""

import math
from collections import Counter, defaultdict
from contextlib import nullcontext
from fractions import Fraction
from itertools import chain, product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtune_smt.core.errors import InputError
from torchtune_smt.grammar import Grammar, extract_grammar, extraction
from torchtune_smt.grammar.extraction_kernels import UNIT, exact_count


def phrases(n, m, links, max_length, unaligned_edges):
    """All initial phrases, by the definition: try all pairs of spans."""
    found = []
    for s, t in product(range(n), range(m)):
        for e, u in product(range(s + 1, n + 1), range(t + 1, m + 1)):
            if e - s > max_length or u - t > max_length:
                continue
            inside = [(i, j) for i, j in links if s <= i < e and t <= j < u]
            crossing = [(i, j) for i, j in links if (s <= i < e) != (t <= j < u)]
            if not inside or crossing:
                continue
            sources, targets = {i for i, _ in inside}, {j for _, j in inside}
            edges = s in sources and e - 1 in sources and t in targets and u - 1 in targets
            if edges or unaligned_edges:
                found.append((s, e, t, u))
    return found


def side_of(words, begin, end, spans):
    """The symbols of a side with gaps at these spans, and the place of each word among them."""
    symbols, place = [], {}
    for i in range(begin, end):
        inside = [k for k, (first, behind) in enumerate(spans) if first <= i < behind]
        if not inside:
            place[i] = len(symbols)
            symbols.append(words[i])
        elif i == spans[inside[0]][0]:
            symbols.append(f"[{inside[0] + 1}]")
    return tuple(symbols), place


def rules_of(source, target, links, *, max_length, max_symbols, max_gaps, unaligned_edges):
    """For each initial phrase the list of its rules, each with the links between its symbols."""
    initial = phrases(len(source), len(target), links, max_length, unaligned_edges)
    smaller = initial
    if unaligned_edges == "phrases":
        smaller = phrases(len(source), len(target), links, max_length, False)
    for s, e, t, u in initial:
        inner = [p for p in smaller if s <= p[0] and p[1] <= e and t <= p[2] and p[3] <= u]
        rules = []
        pairs = product(inner, inner)
        two = [(p, q) for p, q in pairs if p[1] < q[0] and (p[3] <= q[2] or q[3] <= p[2])]
        for gaps in [(), *((p,) for p in inner), *two]:
            side, place = side_of(source, s, e, [p[:2] for p in gaps])
            target_side, target_place = side_of(target, t, u, [p[2:] for p in gaps])
            inside = sorted((place[i], target_place[j]) for i, j in links if i in place)
            if len(gaps) <= max_gaps and len(side) <= max_symbols and inside:
                rules.append(((side, target_side), tuple(inside)))
        yield rules


def brute_force(sources, targets, alignments, *, share, **options):
    """Return the dictionary from rules to counts and feature values."""
    counts = defaultdict(Fraction)
    pairs = Counter()
    for source, target, links in zip(sources, targets, alignments, strict=True):
        links = sorted(set(map(tuple, links)))
        for rules in rules_of(source, target, links, **options):
            for rule, _ in rules:
                counts[rule] += Fraction(1, len(rules)) if share else 1
        pairs.update((source[i], target[j]) for i, j in links)
        pairs.update((w, None) for i, w in enumerate(source) if i not in {a for a, _ in links})
        pairs.update((None, w) for j, w in enumerate(target) if j not in {b for _, b in links})
    of_source, of_target = defaultdict(Fraction), defaultdict(Fraction)
    for (side, target_side), count in counts.items():
        of_source[side] += count
        of_target[target_side] += count
    f_total, e_total = Counter(), Counter()
    for (f, e), n in pairs.items():
        f_total[f] += n
        e_total[e] += n
    result = {}
    for (side, target_side), count in counts.items():
        f_words = [w for w in side if not w.startswith("[")]
        e_words = [w for w in target_side if not w.startswith("[")]
        factors = [count / of_source[side], count / of_target[target_side]]
        factors.append(
            math.prod(
                max(pairs[f, e] / f_total[f] for f in [*f_words, None] if f_total[f])
                for e in e_words
            )
        )
        factors.append(
            math.prod(
                max(pairs[f, e] / e_total[e] for e in [*e_words, None] if e_total[e])
                for f in f_words
            )
        )
        result[side, target_side] = float(count), [*map(math.log10, factors), 1.0]
    return result


def sentence_rules(grammar: Grammar, words, max_span=100, train_index=-1):
    """Return {rule: values} in the order of the sentence's trie, which is checked on the way."""
    local = grammar.sentence_grammar(grammar.source_words.lookup(words), max_span, train_index)
    found = {}

    def walk(node, path):
        rules = range(local.rule_begin[node], local.rule_begin[node + 1])
        for k in rules:
            side, target_side = grammar.rule_text(int(local.rule[k]))
            numbered, gaps = [], 0
            for symbol in path:
                gaps += symbol == "X"
                numbered.append(f"[{gaps}]" if symbol == "X" else symbol)
            assert numbered == side
            found[tuple(side), tuple(target_side)] = local.dense[k].tolist()
        edges = range(local.child_begin[node], local.child_begin[node + 1])
        symbols = local.child_symbol[edges.start : edges.stop].tolist()
        assert symbols == sorted(set(symbols))
        assert node == 0 or len(rules) or len(edges)
        for k in edges:
            symbol = local.child_symbol[k]
            label = "X" if symbol < 0 else grammar.source_words[int(symbol)]
            walk(int(local.child_node[k]), [*path, label])

    walk(0, [])
    assert local.rule_begin[-1] == local.rule.size == len(local.dense) == len(found)
    return found


def matches(side, words, max_span):
    """Whether a source side matches some span: from each start, all the ends it can have."""
    for start in range(len(words)):
        ends = {start}
        for symbol in side:
            if symbol in ("[1]", "[2]", -1):
                ends = set(range(min(ends) + 1, len(words) + 1)) if ends else ends
            else:
                ends = {e + 1 for e in ends if e < len(words) and words[e] == symbol}
        if any(e - start <= max_span for e in ends):
            return True
    return False


def random_pair(rng):
    """A sentence pair whose alignment is nearly monotone, with unaligned words and some noise."""
    n, m = rng.integers(1, 8, 2)
    order = np.sort(rng.integers(0, m, n))
    if rng.random() < 0.3:
        i, j = rng.integers(0, n, 2)
        order[[i, j]] = order[[j, i]]
    links = [(i, int(j)) for i, j in enumerate(order) if rng.random() < 0.7]
    links += [(int(rng.integers(n)), int(rng.integers(m))) for _ in range(rng.integers(0, 2))]
    return rng.choice(list("abcd"), n).tolist(), rng.choice(list("uvwx"), m).tolist(), links


@st.composite
def bitexts(draw, min_sentences=1):
    """Small bitexts with few words, so that rules repeat: any, and more likely ones."""
    pairs = []
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    for _ in range(draw(st.integers(min_sentences, 4))):
        if draw(st.integers(0, 3)):
            pairs.append(random_pair(rng))
            continue
        source = draw(st.lists(st.sampled_from("abcd"), max_size=7))
        target = draw(st.lists(st.sampled_from("uvwx"), max_size=7))
        links = []
        if source and target:
            ends = st.integers(0, len(source) - 1), st.integers(0, len(target) - 1)
            links = draw(st.lists(st.tuples(*ends), max_size=8))
        pairs.append((source, target, links))
    return tuple(list(side) for side in zip(*pairs, strict=True))


options = st.fixed_dictionaries(
    {
        "max_length": st.sampled_from([10, 3]),
        "max_symbols": st.sampled_from([5, 3]),
        "max_gaps": st.sampled_from([2, 2, 2, 1, 0]),
        "unaligned_edges": st.sampled_from([False, True, "phrases"]),
    }
)


def extracted(bitext, share=True, table_limit=1000, max_length=10, **options):
    return extract_grammar(
        *bitext,
        counts="shared" if share else "occurrences",
        table_limit=table_limit,
        max_phrase_length=max_length,
        **options,
    )


def without(bitext, *left_out):
    """Return the bitext without some of its sentences."""
    return tuple([one for i, one in enumerate(side) if i not in left_out] for side in bitext)


def texts_of(grammar):
    return [tuple(map(tuple, grammar.rule_text(rule))) for rule in range(len(grammar))]


def counts_of(grammar, train_index=-1):
    """In how many sentences rules occur, one left out; not those that are gone."""
    left_out = [train_index] * (train_index >= 0)
    count = grammar.rule_counts_without if left_out else grammar.rule_counts
    found = count(np.arange(len(grammar)), *left_out)
    return {t: n for t, n in zip(texts_of(grammar), found.tolist(), strict=True) if n}


def assert_close(found, expected, tolerance=1e-12):
    assert set(found) == set(expected)
    for rule, values in found.items():
        assert list(values) == pytest.approx(expected[rule], abs=tolerance), rule


@settings(max_examples=150)
@given(bitexts(), options, st.booleans())
def test_extraction_is_that_of_the_definition(bitext, options, share):
    """What min_count goes by are sentences, also where counts are shares."""
    grammar = extracted(bitext, share, **options).with_rule_counts()
    assert grammar.dense_names[-2:] == ["LogRuleCount", "UniqueRule"]
    # For each rule, the links that it has in each of its sentences.
    seen = defaultdict(list)
    for source, target, links in zip(*bitext, strict=True):
        here = defaultdict(set)
        for rule, own in chain(*rules_of(source, target, sorted(set(links)), **options)):
            here[rule].add(own)
        for rule, own in here.items():
            seen[rule].append(own)
    expected, counts = {}, {}
    for rule, (count, values) in brute_force(*bitext, share=share, **options).items():
        counts[rule] = count
        expected[rule] = [*values, math.log10(count), float(len(seen[rule]) == 1)]
    texts = texts_of(grammar)
    assert len(set(texts)) == len(texts)
    found = dict(zip(texts, grammar.values(np.arange(len(grammar))).tolist(), strict=True))
    assert_close(found, expected)
    assert counts_of(grammar) == {rule: len(sentences) for rule, sentences in seen.items()}
    for r, rule in enumerate(texts):
        assert grammar.counts.rule_count[r] == pytest.approx(counts[rule], rel=1e-12)
        # Links are those of most sentences; of one that has several for a rule, one counts.
        surely = Counter(one for own in seen[rule] if len(own) == 1 for one in own)
        perhaps = Counter(one for own in seen[rule] for one in own)
        assert perhaps[tuple(grammar.links(r))] >= max(surely.values(), default=1)


@settings(max_examples=100)
@given(bitexts(), st.lists(st.sampled_from("abcdz"), max_size=9), st.integers(1, 9), st.booleans())
def test_sentence_grammar_is_what_matches(bitext, words, max_span, share):
    options = {"max_length": 10, "max_symbols": 5, "max_gaps": 2, "unaligned_edges": False}
    every = brute_force(*bitext, share=share, **options).items()
    expected = {rule: values for rule, (_, values) in every if matches(rule[0], words, max_span)}
    assert_close(sentence_rules(extracted(bitext, share, **options), words, max_span), expected)


def with_twins(bitext):
    """A bitext with some pairs once more, and for each pair the numbers of all those like it."""
    sources, targets, links = ([*side, *side[::2]] for side in bitext)
    links[-1] = []
    pairs = [(tuple(s), tuple(t)) for s, t in zip(sources, targets, strict=True)]
    together = [[j for j, other in enumerate(pairs) if other == pair] for pair in pairs]
    return (sources, targets, links), together


@settings(max_examples=200)
@given(
    bitexts(min_sentences=2), options, st.booleans(), st.sampled_from([1, 2, 1000]), st.booleans()
)
def test_leave_one_out_is_extraction_without_the_sentence(bitext, options, share, limit, identical):
    """Or without all that are identical, also where their alignments differ."""
    bitext, together = with_twins(bitext)
    grammar = extracted(bitext, share, limit, **options).with_rule_counts()
    assert grammar.arrays["identical"].tolist() == [same[0] for same in together]
    if identical:
        grammar = grammar.leaving_out_identical()
    for i, same in enumerate(together if identical else [[i] for i in range(len(together))]):
        rest = extracted(without(bitext, *same), share, limit, **options).with_rule_counts()
        found = sentence_rules(grammar, bitext[0][i], train_index=i)
        expected = sentence_rules(rest, bitext[0][i])
        # The order counts, too: it is that of the table limit.
        by_side = defaultdict(list)
        for side, target_side in expected:
            by_side[side].append(target_side)
        for side, target_sides in by_side.items():
            assert [t for s, t in found if s == side] == target_sides
        assert_close(found, expected)
        assert counts_of(grammar, i) == counts_of(rest)
        assert grammar.left_out_first(i) == same[0]


def test_leave_one_out_with_counts_of_many_sizes():
    """A rule with a tiny share of what remains after a large count is taken away."""
    often = [("a b".split(), "u v".split(), [(0, 0), (1, 1)])] * 3000
    rare = [("a c d b".split(), "u w x v".split(), [(0, 0), (1, 2), (2, 1), (3, 3)])] * 2
    pairs = [*rare, *often]
    bitext = tuple(list(side) for side in zip(*pairs, strict=True))
    grammar = extracted(bitext)
    for i in (0, 1, 2, 3001):
        expected = sentence_rules(extracted(without(bitext, i)), bitext[0][i])
        assert_close(sentence_rules(grammar, bitext[0][i], train_index=i), expected, 0.0)
    # Of a sentence that occurs once nothing remains but what others have, too.
    alone = extracted(tuple(side[1:] for side in bitext))
    assert (("c", "d"), ("w", "x")) not in sentence_rules(alone, "a c d b".split(), 100, 0)
    assert (("a",), ("u",)) in sentence_rules(alone, "a c d b".split(), 100, 0)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=50), st.data())
def test_counts_do_not_depend_on_the_order_of_sums(divisors, data):
    taken = data.draw(st.integers(0, len(divisors) - 1))
    low = np.array([(UNIT + n // 2) // n * 1000 for n in divisors])
    added, left = low / UNIT, low[taken:]
    rest = exact_count(np.append(low, -low[:taken]).sum(), float(added.sum() - added[:taken].sum()))
    assert rest == exact_count(left.sum(), float(added[taken:].sum()))
    assert rest == pytest.approx(math.fsum(added[taken:]), rel=1e-14)
    assert exact_count(0, 1e-7) == 0.0


def test_bad_arguments():
    assert len(extract_grammar([], [], [])) == 0
    empty = extract_grammar([[], ["a"]], [["u"], []], [[], []])
    assert len(empty) == 0 and sentence_rules(empty, ["a"], train_index=1) == {}
    with pytest.raises(InputError, match=r"of one number, and not \(2, 1, 1\)"):
        extract_grammar([["a"], ["b"]], [["u"]], [[]])
    with pytest.raises(InputError, match="alignment 1 has a link out of its sentence pair"):
        extract_grammar([["a"]], [["u"]], [[(0, 1)]])
    grammar = extract_grammar([["a"]], [["u"]], [[(0, 0)]])
    for word, index, message in ((0, 1, "no training sentence 1"), (-1, 0, "has other words")):
        with pytest.raises(ValueError, match=message):
            grammar.sentence_grammar(np.array([word]), 10, index)


def test_a_sentence_of_one_word_many_times():
    """Its counts stay exact up to a bound, and beyond it there is an error."""
    words = ["a"] * 900
    bitext = ([words, ["a"]], [words, ["a"]], [[(i, i) for i in range(900)], [(0, 0)]])
    grammar = extracted(bitext, share=False)
    assert grammar.counts.rule_count.max() > 2**14
    assert list(sentence_rules(grammar, words, train_index=0)) == [(("a",), ("a",))]
    words = words * 3
    bitext = ([words], [words], [[(i, i) for i in range(2700)]])
    with pytest.raises(InputError, match="sentence pair 1 has one rule 32,768 times"):
        extracted(bitext, share=False)


def test_threads_change_nothing(monkeypatch):
    """Whichever is first: what another thread does, or what goes on meanwhile."""

    random = np.random.default_rng(0)
    sentences = [random.choice(list("abcdef"), size) for size in random.integers(1, 8, 1200)]
    links = [[(i, int(random.integers(s.size))) for i in range(s.size)] for s in sentences]
    results = [extract_grammar(sentences, sentences, links).arrays]
    for first in (True, False):

        def submit(function, *arguments, first=first):
            value = function(*arguments) if first else None
            return SimpleNamespace(result=lambda: value if first else function(*arguments))

        pool = nullcontext(SimpleNamespace(submit=submit))
        monkeypatch.setattr(extraction, "ThreadPoolExecutor", lambda threads, pool=pool: pool)
        results.append(extract_grammar(sentences, sentences, links).arrays)
    for other in results[1:]:
        assert list(other) == list(results[0])
        for name, array in other.items():
            assert array.tobytes() == results[0][name].tobytes(), name
