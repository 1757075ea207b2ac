"""Extraction of phrase tables: against the definition, and against the tables that Moses wrote."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_grammar_extraction import (
    assert_close,
    bitexts,
    brute_force,
    phrases,
    sentence_rules,
    texts_of,
    with_twins,
    without,
)

from torchtune_smt.core.textio import iterate_lines, read_lines
from torchtune_smt.grammar import load_grammar, save_grammar
from torchtune_smt.grammar.alignment import read_alignments
from torchtune_smt.grammar.extracted_grammar import ExtractedPhrases
from torchtune_smt.grammar.extraction import extract_phrases

# Monotone, swap, discontinuous right and left, as columns of each kind.
COLUMNS = {"msd": [0, 1, 2, 2], "mslr": [0, 1, 3, 2], "monotonicity": [0, 1, 1, 1]}
UNITS = ["wbe", "phrase", "hier"]
DIRECTIONS = {"backward": [0], "forward": [1], "bidirectional": [0, 1]}


def towards_before(unit, boxes, links, n, m, phrase):
    """The orientation of a phrase towards what is before it on the target side."""
    s, e, t, _ = phrase
    linked = {*links, (-1, -1), (n, m)}
    monotone, swap = (s - 1, t - 1) in linked, (e, t - 1) in linked
    neighbours = [(a, b) for a, b, _, d in boxes if d == t]
    left, right = any(b < s for _, b in neighbours), any(a > e for a, _ in neighbours)
    if unit == "wbe":
        if monotone != swap:
            return 0 if monotone else 1
        left, right = left or monotone, right or swap
    else:
        if (monotone and not swap) or any(b == s for _, b in neighbours):
            return 0
        if (swap and not monotone) or any(a == e for a, _ in neighbours):
            return 1
    return 3 if right and not left else 2


def orientations(unit, n, m, links, max_length):
    """Each phrase with its orientations; towards what is behind it is before it, mirrored."""
    links = set(links)
    if unit == "wbe":
        boxes = [(i, i + 1, j, j + 1) for i, j in links]
    else:
        boxes = phrases(n, m, links, max_length if unit == "phrase" else max(n, m), True)
    turned = [(n - e, n - s, m - u, m - t) for s, e, t, u in boxes]
    turned_links = {(n - 1 - i, m - 1 - j) for i, j in links}
    for s, e, t, u in phrases(n, m, links, max_length, True):
        before = towards_before(unit, boxes, links, n, m, (s, e, t, u))
        place = (n - e, n - s, m - u, m - t)
        yield (s, e, t, u), before, towards_before(unit, turned, turned_links, n, m, place)


def expected_table(bitext, unit, kind, directions, max_length):
    """All features of all phrases, by the definition."""
    counts = defaultdict(lambda: np.zeros((2, 4)))
    for source, target, links in zip(*bitext, strict=True):
        found = orientations(unit, len(source), len(target), links, max_length)
        for (s, e, t, u), *classes in found:
            for direction, c in enumerate(classes):
                counts[tuple(source[s:e]), tuple(target[t:u])][direction, c] += 1
    options = {"max_symbols": max_length, "max_gaps": 0, "unaligned_edges": True}
    scores = brute_force(*bitext, share=False, max_length=max_length, **options)
    assert set(scores) == set(counts)
    table = {}
    for pair, (count, (e_f, f_e, lex_e_f, lex_f_e, _)) in scores.items():
        logs = [x * np.log(10) for x in (f_e, lex_f_e, e_f, lex_e_f)]
        k = 1 + max(COLUMNS[kind])
        merged = np.zeros((2, k))
        for c in range(4):
            merged[:, COLUMNS[kind][c]] += counts[pair][:, c]
        assert (merged.sum(axis=1) == float(count)).all()
        reordering = np.log((merged + 0.5) / (float(count) + 0.5 * k))[directions].ravel()
        table[pair] = [*logs, np.log(float(count)), float(count == 1), *reordering]
    return table


@settings(max_examples=70)
@given(bitexts(), *map(st.sampled_from, (UNITS, sorted(COLUMNS), sorted(DIRECTIONS), [2, 7])))
def test_extraction_is_that_of_the_definition(bitext, unit, kind, direction, max_length):
    options = {"max_phrase_length": max_length, "reordering": f"{unit}-{kind}-{direction}-f"}
    table = extract_phrases(*bitext, **options | {"reordering": f"{options['reordering']}e"})
    found = dict(zip(texts_of(table), table.values(np.arange(len(table))), strict=True))
    assert_close(found, expected_table(bitext, unit, kind, DIRECTIONS[direction], max_length))
    with pytest.raises(ValueError, match="source sides alone"):
        extract_phrases(*bitext, **options)


@settings(max_examples=50)
@given(bitexts(min_sentences=2), st.sampled_from(UNITS), st.sampled_from([1, 1000]), st.booleans())
def test_leave_one_out_is_extraction_without_the_sentence(bitext, unit, table_limit, identical):
    """Or without all that are identical."""
    options = {"reordering": f"{unit}-mslr-bidirectional-fe", "table_limit": table_limit}
    together = [[i] for i in range(len(bitext[0]))]
    if identical:
        bitext, together = with_twins(bitext)
    table = extract_phrases(*bitext, **options)
    if identical:
        table = table.leaving_out_identical()
    for i, same in enumerate(together):
        again = extract_phrases(*without(bitext, *same), **options)
        found = sentence_rules(table, bitext[0][i], train_index=i)
        assert_close(found, sentence_rules(again, bitext[0][i]))


TEXT = [["ein", "haus"]] * 3, [["a", "house"]] * 3, [[(0, 0), (1, 1)], [(0, 0)], [(0, 0)]]


@pytest.mark.parametrize("unit", UNITS)
def test_a_long_pair_with_one_link(unit):
    """Its phrases of any length are n^4."""
    sides = [[[f"{name}{i}" for i in range(400)]] for name in "st"]
    options = {"max_phrase_length": 1, "reordering": f"{unit}-mslr-bidirectional-fe"}
    grammar = extract_phrases(*sides, [np.array([[200, 200]], np.int32)], **options)
    assert [" ".join(side) for side in grammar.rule_text(0)] == ["s200", "t200"]


def test_a_table_on_disk(tmp_path):
    table = extract_phrases(*TEXT, reordering="wbe-msd-bidirectional-fe", table_limit=3)
    save_grammar(tmp_path / "table", table)
    again = load_grammar(tmp_path / "table")
    assert isinstance(again, ExtractedPhrases)
    assert again.reordering == table.reordering and again.table_limit == 3
    for train_index in (-1, 0, 1):
        found = sentence_rules(again, ["ein", "haus"], train_index=train_index)
        assert_close(found, sentence_rules(table, ["ein", "haus"], train_index=train_index))
    np.testing.assert_array_equal(again.points, table.points)


def test_moses_counts_and_reordering_scores(shared):
    """All counts and all word-based orientations of Moses's tables, from the same alignment."""
    text, oracles = shared / "data" / "multi30k-de-en", shared / "oracles"
    sources, targets = (
        [line.split() for line in read_lines(text / f"train.{language}.gz")]
        for language in ("de", "en")
    )
    path = oracles / "cdec" / "train.grow-diag-final-and.gz"
    alignments = read_alignments(path, sources, targets, list(range(1, len(sources) + 1)))
    table = extract_phrases(
        sources, targets, alignments, reordering="wbe-msd-bidirectional-fe-allff"
    )
    rule = {tuple(map(" ".join, text)): r for r, text in enumerate(texts_of(table))}

    def lines(name, field):
        """Our rules, and the numbers of a field, of all lines of a table."""
        found = [line.split("|||") for line in iterate_lines(oracles / "moses" / name)]
        rules = [rule[source.strip(), target.strip()] for source, target, *_ in found]
        return rules, [list(map(float, fields[field].split())) for fields in found]

    counts = table.counts
    rules, wanted = lines("phrase-table.dev.gz", 4)
    columns = counts.target_count[counts.rule_target], counts.source_count[table.rule_source]
    np.testing.assert_array_equal(np.array([*columns, counts.rule_count]).T[rules], wanted)
    rules, wanted = lines("reordering-table.dev.gz", 2)
    scores = np.exp(table.values(np.array(rules))[:, -6:])
    # Numbers of six digits.
    np.testing.assert_allclose(scores, wanted, rtol=1e-5)
