"""Matching of sentences by grammars of any form, against trying all spans."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.grammar import FileGrammar
from torchtune_smt.grammar.base import build_trie
from torchtune_smt.grammar.file_grammar import Side


def joined(sequences):
    begin = np.append(0, np.cumsum([len(s) for s in sequences])).astype(np.int64)
    return begin, np.array([x for s in sequences for x in s], np.int32)


def grammar_of(sides, targets, words="abc"):
    return FileGrammar(
        Side(Vocabulary(words), *joined(sides)),
        Side(Vocabulary(words), *joined(targets)),
        ["F"],
        np.arange(len(sides), dtype=float)[:, None],
    )


def matches(side, sentence, max_span):
    """Whether a source side matches some span: from each start, all the ends it can have."""
    for start in range(len(sentence)):
        ends = {start}
        for symbol in side:
            if symbol == -1:
                ends = set(range(min(ends) + 1, len(sentence) + 1)) if ends else ends
            else:
                ends = {e + 1 for e in ends if e < len(sentence) and sentence[e] == symbol}
        if any(e - start <= max_span for e in ends):
            return True
    return False


def matching(grammar, sentence, max_span):
    begin = grammar.source_begin
    sides = [grammar.source_symbols[begin[s] : begin[s + 1]].tolist() for s in grammar.rule_source]
    return [r for r, side in enumerate(sides) if matches(side, sentence, max_span)]


side = st.lists(st.integers(-1, 2), min_size=1, max_size=5)


@settings(max_examples=300)
@given(
    st.lists(st.tuples(side, st.lists(st.integers(-2, 2), max_size=3)), min_size=1, max_size=30),
    st.lists(st.integers(-1, 2), max_size=12),
    st.integers(1, 12),
)
def test_matching_rules(rules, sentence, max_span):
    """Adjacent gaps and more than two are matched, too, and unknown words (-1) by gaps only."""
    grammar = grammar_of([s for s, _ in rules], [t for _, t in rules])
    begin = grammar.source_begin
    sides = [tuple(grammar.source_symbols[b:e]) for b, e in pairwise(begin.tolist())]
    unknown = [w if w >= 0 else None for w in sentence]
    local = grammar.sentence_grammar(np.array(sentence, np.int32), max_span)
    assert sorted(local.rule.tolist()) == matching(grammar, unknown, max_span)
    assert (local.dense == grammar.dense[local.rule]).all()

    paths = {0: ()}
    for node in range(local.child_begin.size - 1):
        edges = slice(local.child_begin[node], local.child_begin[node + 1])
        symbols = local.child_symbol[edges].tolist()
        assert symbols == sorted(set(symbols))
        for symbol, child in zip(symbols, local.child_node[edges].tolist(), strict=True):
            paths[child] = (*paths[node], symbol)
        for r in local.rule[local.rule_begin[node] : local.rule_begin[node + 1]]:
            assert sides[grammar.rule_source[r]] == paths[node]
    assert len(paths) == local.child_begin.size - 1 == local.rule_begin.size - 1
    # The values tell where a rule stood: of equal rules the first is there.
    first = {}
    for i, (s, t) in enumerate(rules):
        first.setdefault((tuple(s), tuple(t)), i)
    assert sorted(grammar.dense[:, 0].astype(int).tolist()) == sorted(first.values())


@given(st.lists(st.lists(st.integers(-2, 3), max_size=5), max_size=20))
def test_trie(sequences):
    trie, node = build_trie(*joined(sequences))
    prefixes = sorted({tuple(s[:k]) for s in [[], *sequences] for k in range(len(s) + 1)},
                      key=lambda p: (len(p), p))  # fmt: skip
    assert [prefixes[n] for n in node] == [tuple(s) for s in sequences]
    for n, prefix in enumerate(prefixes):
        children = range(trie.child_begin[n], trie.child_begin[n + 1])
        expected = [p for p in prefixes if len(p) == len(prefix) + 1 and p[:-1] == prefix]
        assert [(*prefix, int(trie.symbol[c])) for c in children] == expected


def test_a_long_sentence_has_room():
    """More nodes, spans and rules than the kernels make room for at first."""
    rng = np.random.default_rng(1)
    sides = rng.integers(-1, 40, (1500, 4)).tolist() + [[-1, -1, -1, w] for w in range(40)]
    sides = list({tuple(s): s for s in sides}.values())
    grammar = grammar_of(sides, [[0]] * len(sides), [f"w{i}" for i in range(40)])
    sentence = rng.integers(0, 40, 150).astype(np.int32)
    local = grammar.sentence_grammar(sentence, 10)
    assert sorted(local.rule.tolist()) == matching(grammar, sentence.tolist(), 10)
