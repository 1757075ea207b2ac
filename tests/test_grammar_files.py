"""Extracted grammars on disk, alignment files, and the aligner; matching by any grammar."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_grammar_extraction import matches

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.grammar import (
    FileGrammar,
    extract_grammar,
    load_grammar,
    read_alignments,
    save_grammar,
    write_alignments,
)
from torchtune_smt.grammar.alignment import ALIGNERS, align, mean_distortion
from torchtune_smt.grammar.file_grammar import Side

SOURCES = [s.split() for s in ("das haus", "ein kleines haus", "das kleine buch", "ein ß")]
TARGETS = [s.split() for s in ("the house", "a small house", "the small book", "a ß")]
LINKS = [[(0, 0), (1, 1)], [(0, 0), (1, 1), (2, 2)], [(0, 0), (1, 1), (2, 2)], [(0, 0)]]


@pytest.fixture
def grammar():
    return extract_grammar(SOURCES, TARGETS, LINKS, table_limit=7)


def assert_same(first, second):
    assert first.arrays.keys() == second.arrays.keys()
    for i, words in enumerate(SOURCES):
        ids = first.source_words.lookup(words)
        assert (ids == second.source_words.lookup(words)).all()
        for train_index in (-1, i):
            pair = [g.sentence_grammar(ids, 10, train_index) for g in (first, second)]
            for one, other in zip(*pair, strict=True):
                assert np.array_equal(one, other)
            for r in pair[0].rule:
                assert first.rule_text(r) == second.rule_text(r)


def test_what_is_saved_is_loaded(grammar, tmp_path):
    path = tmp_path / "models" / "grammar"
    digest = save_grammar(path, grammar)
    loaded = load_grammar(path, expected=digest)
    assert loaded.table_limit == 7
    assert_same(grammar, loaded)
    # A second time, over what is mapped into memory just now.
    assert save_grammar(path, loaded) == digest
    assert_same(load_grammar(path), loaded)
    assert [file.name for file in path.parent.iterdir()] == ["grammar"]
    save_grammar(path, extract_grammar([[]], [[]], [[]]))
    assert_same(grammar, loaded)
    assert len(load_grammar(path)) == 0


CURE = "remove the model's folder and build it again"


def test_damaged_grammars(grammar, tmp_path):
    path = tmp_path / "grammar"
    digest = save_grammar(path, grammar)
    other = extract_grammar(SOURCES[:1], TARGETS[:1], LINKS[:1])
    assert save_grammar(path, other) != digest
    with pytest.raises(InputError, match=f"is the grammar of another model; {CURE}"):
        load_grammar(path, expected=digest)
    # Every other damage is in test_archive.py.
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(InputError, match=f"is damaged.*; {CURE}"):
        load_grammar(path)


# What has a checksum that is right, and leads out of an array, or nowhere: a place, and what is
# written there.
IMPOSSIBLE = {
    "trie_child_begin": (1, 0),
    "node_source": (-1, 9999),
    "source_begin": (1, 9999),
    "source_symbols": (0, -2),
    "rule_source": (0, 1),
    "target_symbols": (0, 9999),
    "counts_rule_begin": (-1, 9999),
    "counts_rule_target": (0, -1),
    "counts_log_p": (0, np.nan),
    "lexicon_begin": (0, 1),
    "lexicon_target": (-1, 9999),
    "own_rule": (0, 9999),
    "own_link": ((0, 1), -1),
    "own_link_begin": (1, -1),
    "rule_alignment": (0, 9999),
    "identical": (0, 9999),
    "point_begin": (1, 0),
    "point": (slice(None), 5),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_grammars(grammar, tmp_path, name):
    place, value = IMPOSSIBLE[name]
    grammar.arrays[name][place] = value
    save_grammar(tmp_path / "grammar", grammar)
    with pytest.raises(InputError, match=f"is damaged: it is no whole grammar; {CURE}"):
        load_grammar(tmp_path / "grammar")


def test_what_is_no_grammar_is_not_overwritten(grammar, tmp_path):
    (tmp_path / "thesis.txt").write_text("important")
    for path in (tmp_path, tmp_path / "thesis.txt", tmp_path / "thesis.txt" / "grammar"):
        with pytest.raises(InputError, match="exists and is no grammar|cannot be written"):
            save_grammar(path, grammar)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    assert (tmp_path / "thesis.txt").read_text() == "important"


def test_bad_alignment_files(tmp_path):
    path = tmp_path / "alignment"
    for text, line, message in (
        ("0-0\n0-0\n", None, "has 2 lines, and the bitext 4 pairs"),
        ("0-0\n\n0-x\n\n", 3, "0-x is no alignment point"),
        ("0-0\n-1-0\n\n\n", 2, "-1-0 is no alignment point"),
        ("0-0 2-1\n\n\n\n", 1, "a link out of its sentence pair .2 and 2 words"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=message) as caught:
            read_alignments(path, SOURCES, TARGETS)
        assert (caught.value.path, caught.value.line) == (path, line)


@pytest.mark.parametrize("count", range(3, 9))
def test_alignments_are_of_the_bitext_or_of_its_files(tmp_path, count):
    path, kept = tmp_path / "alignment.gz", [1, 2, 3, 5]
    links = [[[0, 0]] * (1 + i % 2) for i in range(count)]
    write_alignments(path, [np.array(points, np.int32) for points in links])
    if count in (4, 7):
        found = read_alignments(path, SOURCES, TARGETS, kept, 7)
        lines = kept if count == 7 else range(1, 5)
        assert [points.tolist() for points in found] == [links[line - 1] for line in lines]
    else:
        with pytest.raises(InputError, match=f"has {count} lines, and the bitext 4 pairs of 7 lin"):
            read_alignments(path, SOURCES, TARGETS, kept, 7)


@pytest.mark.parametrize("model", ALIGNERS)
def test_the_aligner_finds_what_is_plain_and_the_same_again(model):
    rng = np.random.default_rng(3)
    numbers = [rng.permutation(8)[: rng.integers(2, 6)] for _ in range(200)]
    sources = [[f"s{n}" for n in sentence] for sentence in numbers]
    targets = [[f"t{n}" for n in sentence] for sentence in numbers]
    # Empty sides, and words that the aligner has a meaning of its own for.
    sources[5:7], targets[5:7] = [[], ["a"]], [["b"], []]
    sources += [["NULL", "UNKNOWN_WORD"]] * 9
    targets += [["N", "U"]] * 9
    links = align(sources, targets, model=model)
    assert [len(x) for x in links[5:7]] == [0, 0]
    plain = [i for i in range(209) if i not in (5, 6)]
    right = sum(
        x.tolist() == [[k, k] for k in range(len(sources[i]))] for i in plain for x in [links[i]]
    )
    assert right > 0.95 * len(plain)
    again = align(sources, targets, model=model)
    assert all(np.array_equal(a, b) for a, b in zip(links, again, strict=True))


def test_the_aligner_agrees_with_fast_align(shared):
    """On the first sentences; fast_align itself saw all of them, and one run differs a little."""
    folder = shared / "data" / "multi30k-de-en"
    texts = [read_lines(folder / f"train.{language}.gz")[:3000] for language in ("de", "en")]
    path = shared / "oracles" / "cdec" / "train.grow-diag-final-and.gz"
    both = (
        [set(map(tuple, links.tolist())) for links in some]
        for some in (read_alignments(path)[:3000], align(*[[t.split() for t in s] for s in texts]))
    )
    pairs = list(zip(*both, strict=True))
    assert 2 * sum(len(a & b) for a, b in pairs) / sum(len(a) + len(b) for a, b in pairs) > 0.85


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
    """Adjacent gaps, too, and unknown words (-1) by gaps only."""
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


def test_a_long_sentence_has_room():
    """More nodes, spans and rules than the kernels make room for at first."""
    rng = np.random.default_rng(1)
    sides = rng.integers(-1, 40, (1500, 4)).tolist() + [[-1, -1, -1, w] for w in range(40)]
    sides = list({tuple(s): s for s in sides}.values())
    grammar = grammar_of(sides, [[0]] * len(sides), [f"w{i}" for i in range(40)])
    sentence = rng.integers(0, 40, 150).astype(np.int32)
    local = grammar.sentence_grammar(sentence, 10)
    assert sorted(local.rule.tolist()) == matching(grammar, sentence.tolist(), 10)


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=9), max_size=4))
def test_the_mean_distortion_is_that_of_a_translation_word_by_word(pairs):
    shares = []
    for links in pairs:
        phrases = [{s for s, t in links if t == target} for target in range(10)]
        phrases = [range(min(p), max(p) + 1) for p in phrases if p]
        for before, phrase in pairwise([range(-1, 0), *phrases]):
            between = range(*sorted((before[-1] + 1, phrase[0])))
            jumped = 0 if phrase[0] in before else len(between)
            shares.append(jumped / (max(s for s, _ in links) + 1))
    found = mean_distortion([np.array(links, np.int32).reshape(-1, 2) for links in pairs])
    assert found == pytest.approx(np.mean(shares or [0]))
