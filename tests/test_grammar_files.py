"""Extracted grammars on disk, alignment files, and the aligner."""

from __future__ import annotations

import gzip
import json
import os
import shutil

import numpy as np
import pytest

from torchtune_smt.errors import InputError
from torchtune_smt.grammar import (
    extract_grammar,
    load_grammar,
    read_alignments,
    save_grammar,
    write_alignments,
)
from torchtune_smt.grammar.alignment import align

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
            for name in (
                "child_begin",
                "child_symbol",
                "child_node",
                "rule_begin",
                "rule",
                "dense",
            ):
                assert np.array_equal(getattr(pair[0], name), getattr(pair[1], name)), name
            for r in pair[0].rule:
                assert first.rule_text(r) == second.rule_text(r)


def test_what_is_saved_is_loaded(grammar, tmp_path):
    folder = tmp_path / "models" / "grammar"
    save_grammar(folder, grammar)
    loaded = load_grammar(folder)
    assert loaded.table_limit == 7
    assert_same(grammar, loaded)
    assert load_grammar(folder, table_limit=1).table_limit == 1
    # A second time, over what is mapped into memory just now.
    save_grammar(folder, loaded)
    assert_same(load_grammar(folder), loaded)
    assert [path.name for path in folder.parent.iterdir()] == ["grammar"]


def test_an_empty_grammar_is_saved_too(tmp_path):
    save_grammar(tmp_path / "grammar", extract_grammar([[]], [[]], [[]]))
    assert len(load_grammar(tmp_path / "grammar")) == 0


def test_damaged_grammars(grammar, tmp_path):
    save_grammar(tmp_path / "whole", grammar)

    def damaged(name, content):
        folder = tmp_path / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "whole", folder)
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content)
        with pytest.raises(InputError) as caught:
            load_grammar(folder)
        return str(caught.value)

    rules = (tmp_path / "whole" / "own_rule.npy").read_bytes()
    meta = json.loads((tmp_path / "whole" / "grammar.json").read_text())
    assert "build the model" in damaged("grammar.json", None)
    assert "grammar.json: is damaged" in damaged("grammar.json", b"{}")
    assert "version 0" in damaged("grammar.json", json.dumps(meta | {"version": 0}).encode())
    assert "own_rule.npy: is missing" in damaged("own_rule.npy", None)
    assert "own_rule.npy: is missing or damaged" in damaged("own_rule.npy", rules[:-5])
    other = (tmp_path / "whole" / "own_low.npy").read_bytes()
    assert "own_begin.npy: has shape" in damaged("own_begin.npy", other)
    with pytest.raises(InputError, match="holds no grammar"):
        load_grammar(tmp_path / "nowhere")


def test_what_is_no_grammar_is_not_overwritten(grammar, tmp_path):
    (tmp_path / "thesis.txt").write_text("important")
    with pytest.raises(InputError, match="exists and is no grammar"):
        save_grammar(tmp_path, grammar)
    with pytest.raises(InputError, match="exists and is no grammar"):
        save_grammar(tmp_path / "thesis.txt", grammar)
    with pytest.raises(InputError, match="cannot be written"):
        save_grammar(tmp_path / "thesis.txt" / "grammar", grammar)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only(grammar, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot be written"):
        save_grammar(tmp_path / "grammar", grammar)


@pytest.mark.parametrize("name", ["alignment", "alignment.gz"])
def test_alignments_are_written_and_read_back(tmp_path, name):
    links = [np.array(points, np.int32).reshape(-1, 2) for points in (*LINKS, [])]
    write_alignments(tmp_path / name, links)
    for found, expected in zip(read_alignments(tmp_path / name), links, strict=True):
        assert found.dtype == np.int32
        assert np.array_equal(found, expected)


def test_bad_alignment_files(tmp_path):
    path = tmp_path / "alignment"
    for text, line, message in (
        ("0-0\n0-0\n", None, "has 2 lines, and the source text has 4"),
        ("0-0\n\n0-x\n\n", 3, "0-x is no alignment point"),
        ("0-0\n0\n\n\n", 2, "0 is no alignment point"),
        ("0-0\n-1-0\n\n\n", 2, "-1-0 is no alignment point"),
        ("0-0 2-1\n\n\n\n", 1, "2-1 is outside of the source sentence, which has 2 words"),
        ("\n\n\n0-2\n", 4, "0-2 is outside of the target sentence, which has 2 words"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=message) as caught:
            read_alignments(path, SOURCES, TARGETS)
        assert (caught.value.path, caught.value.line) == (path, line)
    path.write_text("0-0\n" * 4)
    with pytest.raises(InputError, match="the target text has 3"):
        read_alignments(path, SOURCES, TARGETS[:3])


@pytest.mark.parametrize("model", ["fast_align", "hmm"])
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


def test_bad_arguments_of_the_aligner():
    with pytest.raises(InputError, match="1 source and 0 target sentences"):
        align([["a"]], [])
    with pytest.raises(ValueError, match="model must be"):
        align([], [], model="giza")
    with pytest.raises(ValueError, match="iterations must be"):
        align([], [], iterations=0)


def test_the_aligner_agrees_with_fast_align(shared):
    """On the first sentences; fast_align itself saw all of them, and one run differs a little."""
    folder = shared / "data" / "multi30k-de-en"
    sides = []
    for language in ("de", "en"):
        with gzip.open(folder / f"train.{language}.gz", "rt", encoding="utf-8") as file:
            sides.append([line.split() for line in file][:3000])
    path = shared / "oracles" / "cdec" / "train.grow-diag-final-and.gz"
    oracle = [{(s, t) for s, t in links.tolist()} for links in read_alignments(path)[:3000]]
    found = [{(s, t) for s, t in links.tolist()} for links in align(*sides)]
    common = sum(len(a & b) for a, b in zip(oracle, found, strict=True))
    agreement = 2 * common / sum(len(a) + len(b) for a, b in zip(oracle, found, strict=True))
    assert agreement > 0.85
