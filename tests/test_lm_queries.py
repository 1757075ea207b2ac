"""Queries of n-gram models: against back-off by the book, and against KenLM."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lm_reference import BEGIN, END, DictModel, dict_models, to_ngrams

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import read_lines
from torchtune_smt.lm import NgramModel, build_tables
from torchtune_smt.lm.kernels import advance, match, transition

DATA = Path(__file__).parent / "data" / "lm"

sentences = st.lists(st.sampled_from([*"abcd", "nowhere"]), max_size=9)


@given(dict_models(), sentences, st.booleans(), st.booleans())
@settings(max_examples=150)
def test_scores_are_those_of_back_off(
    reference: DictModel, words: list[str], bos: bool, eos: bool
) -> None:
    model = NgramModel.from_ngrams(to_ngrams(reference))
    total, unknown = model.score(words, bos, eos)
    assert total == pytest.approx(reference.score(words, bos, eos), abs=1e-5)
    assert unknown == sum((w,) not in reference.prob for w in words)
    for found in model.score_all([words, [], words], bos, eos):
        assert found[[0, 2]].tolist() == [total if found.dtype == float else unknown] * 2


@given(dict_models(), sentences, st.booleans())
@settings(max_examples=100)
def test_minimised_states_score_as_the_full_history(
    reference: DictModel, words: list[str], bos: bool
) -> None:
    model = NgramModel.from_ngrams(to_ngrams(reference))
    state = model.begin_state if bos else 0
    history: tuple[str, ...] = (BEGIN,) if bos else ()
    for word, id in zip(words, model.word_ids(words), strict=True):
        # Every word that could come next, not only the one that does.
        for (other,) in (g for g in reference.prob if len(g) == 1):
            logp, _ = advance(*model.tables, state, model.words.id(other))
            assert logp == pytest.approx(reference.logp(history, other), abs=1e-5)
        _, state = advance(*model.tables, state, int(id))
        assert model.tables.nodes["length"][state] < model.order
        history += (word,)


@given(dict_models(closed=True))
@settings(max_examples=100)
def test_tables_mean_what_they_say(reference: DictModel) -> None:
    model = NgramModel.from_ngrams(to_ngrams(reference))
    table, t = model.tables
    size = len(reference.prob) + 1
    nodes: dict[tuple[str, ...], int] = {}
    for node in range(size):
        words: list[str] = []
        at = node
        while at:
            words.append(model.words[t["word"][at]])
            at = int(t["prefix"][at])
        nodes[tuple(reversed(words))] = node
    assert len(nodes) == t.size == size
    assert set(nodes) == {(), *reference.prob}
    assert table.size & (table.size - 1) == 0
    assert table.size >= 2 * np.count_nonzero(table["key"])
    used = table[table["key"] != 0]
    assert (used["state"] == t["state"][used["val"]]).all()

    # What the definition of LmTables.state says, in words.
    def has_or_is(ngram: tuple[str, ...]) -> bool:
        return reference.backoff.get(ngram, 0.0) != 0.0 or any(g[:-1] == ngram for g in nodes if g)

    kept = {
        g[i:] for g in nodes if 0 < len(g) < reference.order and has_or_is(g) for i in range(len(g))
    }
    for ngram, node in nodes.items():
        n = len(ngram)
        assert t["length"][node] == n
        assert t["suffix"][node] == nodes[ngram[1:]]
        assert t["prefix"][node] == nodes[ngram[:-1]]
        assert t["extends_left"][node] == any(g[1:] == ngram for g in nodes if g)
        backoffs = [reference.backoff.get(ngram[i:], 0.0) for i in range(n)]
        assert t["backoff_sum"][node] == sum(backoffs)
        if n:
            assert t["prob"][node] == reference.prob[ngram]
        state = next((ngram[i:] for i in range(n) if ngram[i:] in kept), ())
        assert t["state"][node] == nodes[state]
        for (word,) in (g for g in nodes if len(g) == 1):
            assert transition(table, node, model.words.id(word)) == nodes.get((*ngram, word), -1)
    assert [nodes[(w,)] for w in model.words.names(range(len(model.words)))] == list(
        range(1, len(model.words) + 1)
    )


@given(dict_models(closed=True), sentences, st.booleans())
@settings(max_examples=50)
def test_match_finds_the_longest_ngram(reference: DictModel, words: list[str], bos: bool) -> None:
    model = NgramModel.from_ngrams(to_ngrams(reference))
    nodes = model.tables.nodes
    state = model.begin_state if bos else 0
    history: tuple[str, ...] = (BEGIN,) if bos else ()
    for id in model.word_ids(words):
        history += (model.words[id],)
        suffixes = (history[i:] for i in range(len(history)))
        longest = next(ngram for ngram in suffixes if ngram in reference.prob)
        logp, node = match(*model.tables, state, int(id))
        assert nodes["length"][node] == len(longest)
        at = node
        for word in reversed(longest):
            assert model.words[nodes["word"][at]] == word
            at = nodes["prefix"][at]
        assert (logp, nodes["state"][node]) == advance(*model.tables, state, int(id))
        state = int(nodes["state"][node])


@pytest.mark.parametrize("missing", [False, True])
def test_a_list_with_an_ngram_twice_is_an_error(missing: bool) -> None:
    """Also behind one that is missing."""
    grams = ["<s>", "</s>", "<unk>", "a", "b", "c", "a b", "b c", "c a", "a b c", "c a b", "b c a"]
    prob = {tuple(gram.split()): -0.5 for gram in grams if not (missing and gram == "c a")}
    ngrams = to_ngrams(DictModel(prob))
    assert build_tables(ngrams) is not None
    for values in (ngrams.rows, ngrams.prob, ngrams.backoff):
        values[2] = values[2][[0, 1, 0, 2]]
    with pytest.raises(InputError, match="stands twice"):
        build_tables(ngrams)


def test_perplexity_counts_sentence_ends_and_unknown_words() -> None:
    reference = DictModel({(w,): -1.0 for w in (BEGIN, END, "a")} | {("<unk>",): -3.0})
    model = NgramModel.from_ngrams(to_ngrams(reference))
    assert model.perplexity(["a a", "b"]) == pytest.approx(10 ** ((2 + 1 + 3 + 1) / 5))
    assert model.perplexity([]) == 1.0


@pytest.mark.parametrize("name", ["kneser-ney.arpa", "pruned.arpa"])
def test_scores_recorded_from_kenlm(name: str) -> None:
    model = NgramModel.load(DATA / name, cache=False)
    entries = json.loads((DATA / "scores.json").read_text())[name]
    assert len(entries) >= 100
    for text, bos, eos, total, unknown in entries:
        own_total, own_unknown = model.score(text.split(), bos, eos)
        assert own_total == pytest.approx(total, abs=2e-6 * (2 + len(text.split())))
        assert own_unknown == unknown


@given(dict_models(closed=True, min_order=2), st.lists(sentences, min_size=1, max_size=5))
@settings(max_examples=25)
def test_random_models_score_as_in_kenlm(
    tmp_path_factory: pytest.TempPathFactory, reference: DictModel, texts: list[list[str]]
) -> None:
    kenlm = pytest.importorskip("kenlm", reason="kenlm is not installed")
    path = tmp_path_factory.mktemp("lm") / "random.arpa"
    path.write_text(reference.arpa())
    model, oracle = NgramModel.load(path, cache=False), kenlm.Model(str(path))
    for words in texts:
        for bos in (True, False):
            for eos in (True, False):
                expected = oracle.score(" ".join(words), bos=bos, eos=eos)
                assert model.score(words, bos, eos)[0] == pytest.approx(expected, abs=1e-5)


def test_multi30k_scores_as_in_kenlm(shared: Path, multi30k_model: NgramModel) -> None:
    kenlm = pytest.importorskip("kenlm", reason="kenlm is not installed")
    arpa = shared / "oracles" / "lm" / "multi30k.en.5gram.arpa.gz"
    model, oracle = multi30k_model, kenlm.Model(str(arpa))
    for part in ("dev", "test"):
        for line in read_lines(shared / "data" / "multi30k-de-en" / f"{part}.en"):
            total, unknown = model.score(line.split())
            words = oracle.full_scores(line)
            assert total == pytest.approx(oracle.score(line), abs=2e-5)
            assert unknown == sum(out for _, _, out in list(words)[:-1])


def test_multi30k_perplexity_is_the_recorded_one(shared: Path, multi30k_model: NgramModel) -> None:
    model = multi30k_model
    data = shared / "data" / "multi30k-de-en"
    assert model.perplexity(read_lines(data / "dev.en")) == pytest.approx(36.12, abs=5e-3)
    assert model.perplexity(read_lines(data / "test.en")) == pytest.approx(35.80, abs=5e-3)
