"""Extraction of phrase tables: against the definition, and against the tables that Moses wrote."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_grammar_extraction import bitexts, brute_force, phrases, sentence_rules, with_twins

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import iterate_lines, read_lines
from torchtune_smt.grammar import load_grammar, save_grammar
from torchtune_smt.grammar.alignment import read_alignments
from torchtune_smt.grammar.extracted_grammar import ExtractedPhrases
from torchtune_smt.grammar.extraction import extract_phrases

# Monotone, swap, discontinuous right and left, as columns of each kind.
COLUMNS = {"msd": [0, 1, 2, 2], "mslr": [0, 1, 2, 3], "monotonicity": [0, 1, 1, 1]}
UNITS = ["wbe", "phrase", "hier"]


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


def expected_table(bitext, unit, kind, max_length):
    """All features of all phrases, by the definition."""
    counts = defaultdict(lambda: np.zeros((2, 4)))
    for source, target, links in zip(*bitext, strict=True):
        for (s, e, t, u), *classes in orientations(
            unit, len(source), len(target), links, max_length
        ):
            for direction, c in enumerate(classes):
                counts[tuple(source[s:e]), tuple(target[t:u])][direction, c] += 1
    scores = brute_force(
        *bitext,
        share=False,
        max_length=max_length,
        max_symbols=max_length,
        max_gaps=0,
        unaligned_edges=True,
    )
    assert set(scores) == set(counts)
    table = {}
    for pair, (count, (e_f, f_e, lex_e_f, lex_f_e, _)) in scores.items():
        logs = [x * np.log(10) for x in (f_e, lex_f_e, e_f, lex_e_f)]
        k = 1 + max(COLUMNS[kind])
        merged = np.zeros((2, k))
        for c in range(4):
            merged[:, COLUMNS[kind][c]] += counts[pair][:, c]
        assert (merged.sum(axis=1) == float(count)).all()
        reordering = np.log((merged + 0.5) / (float(count) + 0.5 * k)).ravel()
        table[pair] = [*logs, np.log(float(count)), float(count == 1), *reordering]
    return table


def assert_close(found, expected):
    assert set(found) == set(expected)
    for pair, values in found.items():
        assert list(values) == pytest.approx(expected[pair], abs=1e-12), pair


@settings(max_examples=100)
@given(bitexts(), st.sampled_from(UNITS), st.sampled_from(sorted(COLUMNS)), st.sampled_from([2, 7]))
def test_extraction_is_that_of_the_definition(bitext, unit, kind, max_length):
    table = extract_phrases(
        *bitext, max_phrase_length=max_length, reordering=f"{unit}-{kind}-bidirectional-fe"
    )
    texts = [tuple(map(tuple, table.rule_text(r))) for r in range(len(table))]
    found = dict(zip(texts, table.values(np.arange(len(table))), strict=True))
    assert_close(found, expected_table(bitext, unit, kind, max_length))


@settings(max_examples=75)
@given(bitexts(min_sentences=2), st.sampled_from(UNITS), st.sampled_from([1, 1000]))
def test_leave_one_out_is_extraction_without_the_sentence(bitext, unit, table_limit):
    options = {"reordering": f"{unit}-mslr-bidirectional-fe", "table_limit": table_limit}
    table = extract_phrases(*bitext, **options)
    for i in range(len(bitext[0])):
        without = tuple([*side[:i], *side[i + 1 :]] for side in bitext)
        again = extract_phrases(*without, **options)
        found = sentence_rules(table, bitext[0][i], train_index=i)
        assert_close(found, sentence_rules(again, bitext[0][i]))


@settings(max_examples=40)
@given(bitexts(min_sentences=2), st.sampled_from(UNITS))
def test_identical_pairs_are_left_out_together(bitext, unit):
    options = {"reordering": f"{unit}-mslr-bidirectional-fe"}
    bitext, together = with_twins(bitext)
    table = extract_phrases(*bitext, **options).leaving_out_identical()
    for i, same in enumerate(together):
        without = tuple([one for j, one in enumerate(s) if j not in same] for s in bitext)
        again = extract_phrases(*without, **options)
        found = sentence_rules(table, bitext[0][i], train_index=i)
        assert_close(found, sentence_rules(again, bitext[0][i]))


TEXT = [["ein", "haus"]] * 3, [["a", "house"]] * 3, [[(0, 0), (1, 1)], [(0, 0)], [(0, 0)]]


@pytest.mark.parametrize("unit", UNITS)
def test_a_long_pair_with_one_link(unit):
    # Its phrases of any length are n^4.
    n, middle = 400, 200
    sides = [[f"{name}{i}" for i in range(n)] for name in "st"]
    links = [np.array([[middle, middle]], np.int32)]
    grammar = extract_phrases(
        [sides[0]],
        [sides[1]],
        links,
        max_phrase_length=1,
        reordering=f"{unit}-mslr-bidirectional-fe",
    )
    assert [" ".join(side) for side in grammar.rule_text(0)] == ["s200", "t200"]


def test_links_are_those_of_most_sentences():
    table = extract_phrases(*TEXT)
    texts = map(table.rule_text, range(len(table)))
    names = [" ".join([*source, *target]) for source, target in texts]
    begin = table.point_begin
    links = {name: table.points[begin[r] : begin[r + 1]].tolist() for r, name in enumerate(names)}
    assert links["ein a"] == [[0, 0]]
    # With one link twice, with both once.
    assert links["ein haus a house"] == [[0, 0]]
    assert table.rule_counts(np.array([names.index("ein a")])) == [3.0]


def test_bad_types_of_reordering():
    for name, message in (
        ("wbe-msd-bidirectional-f", "has scores of source sides alone"),
        ("msd", "the reordering type msd has no direction"),
    ):
        with pytest.raises(ValueError, match=message):
            extract_phrases(*TEXT, reordering=name)
    with pytest.raises(ValueError, match="max_phrase_length"):
        extract_phrases(*TEXT, max_phrase_length=0)


@pytest.mark.parametrize(("direction", "first"), [("backward", 6), ("forward", 9)])
def test_one_direction(direction, first):
    both = extract_phrases(*TEXT, reordering="wbe-msd-bidirectional-fe")
    one = extract_phrases(*TEXT, reordering=f"wbe-msd-{direction}-fe")
    every = np.arange(len(both))
    expected = both.values(every)[:, first : first + 3]
    np.testing.assert_array_equal(one.values(every)[:, 6:], expected)


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
    # A damaged one is refused.
    table.arrays["point"] = table.arrays["point"] - 1
    save_grammar(tmp_path / "table", table)
    with pytest.raises(InputError, match="is damaged"):
        load_grammar(tmp_path / "table")


def test_moses_counts_and_reordering_scores(shared: Path) -> None:
    """All counts and all word-based orientations of Moses's tables, from the same alignment."""
    text, oracles = shared / "data" / "multi30k-de-en", shared / "oracles"
    sources = [line.split() for line in read_lines(text / "train.de.gz")]
    targets = [line.split() for line in read_lines(text / "train.en.gz")]
    lines = list(range(1, len(sources) + 1))
    alignments = read_alignments(
        oracles / "cdec" / "train.grow-diag-final-and.gz", sources, targets, lines
    )
    table = extract_phrases(
        sources, targets, alignments, reordering="wbe-msd-bidirectional-fe-allff"
    )
    rule = {}
    for r in range(len(table)):
        source, target = table.rule_text(r)
        rule[" ".join(source), " ".join(target)] = r
    found, wanted = [], []
    for line in iterate_lines(oracles / "moses" / "phrase-table.dev.gz"):
        source, target, _, _, counts, *_ = (part.strip() for part in line.split("|||"))
        r = rule[source, target]
        found.append(
            [
                table.counts.target_count[table.counts.rule_target[r]],
                table.counts.source_count[table.rule_source[r]],
                table.counts.rule_count[r],
            ]
        )
        wanted.append([float(count) for count in counts.split()])
    np.testing.assert_array_equal(found, wanted)
    rules, wanted = [], []
    for line in iterate_lines(oracles / "moses" / "reordering-table.dev.gz"):
        source, target, scores = (part.strip() for part in line.split("|||"))
        rules.append(rule[source, target])
        wanted.append([float(score) for score in scores.split()])
    scores = np.exp(table.values(np.array(rules))[:, -6:])
    # Numbers of six digits.
    np.testing.assert_allclose(scores, wanted, rtol=1e-5)
