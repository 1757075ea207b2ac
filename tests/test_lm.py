"""Language models: ARPA files and copies; estimation; queries."""

import json
import os
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lm_reference import (
    BEGIN,
    END,
    DictModel,
    dict_models,
    kneser_ney,
    perplexity,
    to_dict,
    to_ngrams,
)
from small_lists import put

from torchtune_smt.core.archive import cache_path, file_checksum
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import read_lines
from torchtune_smt.lm import (
    DISCOUNT_FALLBACK,
    NgramModel,
    estimate,
    read_arpa,
    write_arpa,
)
from torchtune_smt.lm.folds import build_folds, load_folds
from torchtune_smt.lm.kernels import asked, match, recall, transition
from torchtune_smt.lm.tables import build_tables, write_cache

SMALL = """\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-2\t<unk>
0\t<s>\t-0.5
-1\t</s>
-1.5\ta\t-0.25
-1.25\tb\t0

\\2-grams:
-0.5\t<s> a
-0.75\ta b
-1\tb </s>

\\end\\
"""


def load(folder, text):
    return NgramModel.load(put(folder, {"model.arpa": text}), cache=False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\t", " "),
        ("<unk>", "<UNK>"),
        ("-1.5\t", "-0.00015E+4\t"),
        ("\\data\\", "made by hand\n\n\\data\\"),
        ("ngram 2=3", "ngram  2 = 3"),
        ("\\end\\\n", "\\end\\"),
        ("0\t<s>", "-INF  <s>"),
        ("0\t<s>", "-99\t<s>"),
        (" b\n", " b\t0.0 \n"),
        ("-2\t<unk>\n0\t<s>\t-0.5\n", "0\t<s>\t-0.5\n-2\t<unk>\n"),
    ],
)
def test_spellings_that_mean_the_same(tmp_path, old, new):
    assert old in SMALL
    model = load(tmp_path, SMALL.replace(old, new))
    assert (model.order, model.words[0], len(model.words)) == (2, "<unk>", 5)
    assert model.score(["a", "b"]) == (-0.5 - 0.75 - 1.0, 0)
    assert model.score(["b", "c"]) == (-0.5 - 1.25 - 2.0 - 1.0, 1)


def test_words_may_be_any_utf8_and_no_unknown_word_be_there(tmp_path):
    word = "größe日本\u00a0x"
    text = SMALL.replace("-2\t<unk>\n", "").replace("1=5", "1=4")
    model = load(tmp_path, text.replace("\tb", f"\t{word}").replace(" b", f" {word}"))
    assert model.words[0] == "<unk>"
    assert model.score(["a", word, "c"], eos=False) == (-0.5 - 0.75 - 100.0, 1)


ERRORS = [
    ("-0.75\ta b\n", "", 15, "the header counts 3 2-grams, and here they end after 2"),
    ("1=5", "1=4", 10, r"\\2-grams: was expected here"),
    ("2=3", "2=99999999", 3, "do not fit into a file of this size"),
    ("ngram 2=3", "ngram 3=3", 3, "a line like 'ngram 2=1000'"),
    ("\\end\\\n", "", 17, r"\\end\\ was expected here"),
    ("-1.5\t", "-1e30\t", 9, "no finite number"),
    ("-0.25", "-0.2.5", 9, "no finite number"),
    ("-1.5\t", "1.5\t", 9, "log probability above 0"),
    ("a\t-0.25", "a\t-0.25\t7", 9, "too many fields for a 1-gram"),
    ("a b", "a b\t-0.5", 14, "highest order, which has no back-off"),
    ("a b", "a", 14, "a 2-gram needs a log probability and 2 words"),
    ("a b", "a zebra", 14, "'zebra' of this 2-gram is not among the unigrams"),
    ("-1.25\tb\t0", "-1.25\ta\t0", 10, "'a' stands twice among the unigrams"),
    ("a b", "<s> a", 14, "'<s> a' stands twice"),
    ("<s>\t-0.5", "<t>\t-0.5", 6, "the unigrams lack <s>"),
    (SMALL, "\\data\\\n" + "".join(f"ngram {n}=1\n" for n in range(1, 8)), 8, "order 7: at most 6"),
    (SMALL, "\n\nhello\n", None, "no ARPA file"),
    (SMALL, "mmap lm http://kheafield.com/code format version 5\n\0", None, "binary of KenLM"),
]


@pytest.mark.parametrize(("old", "new", "line", "message"), ERRORS)
def test_errors_name_the_line(tmp_path, old, new, line, message):
    assert SMALL.count(old) >= 1
    with pytest.raises(InputError, match=message) as caught:
        load(tmp_path, SMALL.replace(old, new, 1))
    assert (caught.value.path, caught.value.line) == (tmp_path / "model.arpa", line)


@given(dict_models())
@settings(max_examples=50)
def test_what_is_written_is_read_back(tmp_path_factory, reference):
    folder = tmp_path_factory.mktemp("lm")
    ngrams = to_ngrams(reference)
    write_arpa(folder / "own.arpa.gz", ngrams)
    again = read_arpa(folder / "own.arpa.gz")
    assert to_dict(again) == to_dict(ngrams)


def test_words_longer_than_the_buffer_are_written(tmp_path):
    giant = "x" * (1 << 21)
    reference = DictModel({(w,): -1.0 for w in ("<s>", "</s>", "<unk>", giant, "y")})
    write_arpa(tmp_path / "own.arpa", to_ngrams(reference))
    assert to_dict(read_arpa(tmp_path / "own.arpa")) == reference


@pytest.fixture
def path(tmp_path):
    return put(tmp_path, {"model.arpa": SMALL})


def score_of_a(path, *options, **more):
    return NgramModel.load(path, *options, **more).score(["a"], eos=False)[0]


def test_cache_is_written_and_read(path):
    made = NgramModel.load(path)
    for model in (NgramModel.load(path), NgramModel.load(path, cache=False)):
        assert model.order == made.order
        assert [model.words[i] for i in range(5)] == [made.words[i] for i in range(5)]
        assert all(map(np.array_equal, model.tables, made.tables))
    # It is what is read: a copy with other numbers says so. What is read is private.
    changed = NgramModel.load(path)
    changed.tables.nodes["prob"][1:] -= 1
    assert score_of_a(path) == -0.5
    write_cache(path, file_checksum(path), changed.order, changed.words, changed.tables)
    assert score_of_a(path) == -1.5


def test_cache_of_other_content_is_not_read(path, monkeypatch):
    times, expected = path.stat(), file_checksum(path)
    for cache in (False, True, True):
        assert score_of_a(path, cache, expected=expected) == -0.5
    # In place, of equal size, with the old time.
    path.write_text(SMALL.replace("-0.5\t<s> a", "-0.1\t<s> a"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    for _ in range(2):
        assert score_of_a(path) == pytest.approx(-0.1)
    for cache in (False, True):
        with pytest.raises(InputError, match="is damaged or another file; remove the model's"):
            NgramModel.load(path, cache, expected=expected)

    def replaced(ngrams):
        """A file that is replaced while it is parsed leaves no wrong cache."""
        path.write_text(SMALL)
        return build_tables(ngrams)

    cache_path(path).unlink()
    with monkeypatch.context() as patch:
        patch.setattr("torchtune_smt.lm.model.build_tables", replaced)
        assert score_of_a(path) == pytest.approx(-0.1)
    assert score_of_a(path) == -0.5


corpora = st.lists(st.lists(st.sampled_from("abcde"), max_size=8), min_size=1, max_size=12)


def in_order(ngrams, ids):
    """Rows, probabilities and back-offs of each order, sorted, words replaced by `ids`."""
    result = []
    for rows, prob, backoff in zip(ngrams.rows, ngrams.prob, ngrams.backoff, strict=True):
        order = np.lexsort(ids[rows].T)
        result.append((ids[rows][order], prob[order], backoff[order]))
    return result


def test_numbers_are_those_of_lmplz(shared, tmp_path):
    oracle = read_arpa(shared / "oracles" / "lm" / "multi30k.en.5gram.arpa.gz")
    text = read_lines(shared / "data" / "multi30k-de-en" / "train.en.gz")
    own = estimate([line.split() for line in text])
    write_arpa(tmp_path / "own.arpa", own)
    ids = oracle.words.lookup(own.words.names(range(len(own.words))))
    assert len(own.words) == len(oracle.words)
    expected = in_order(oracle, np.arange(len(oracle.words)))
    # As estimated, and as written and read again; the words stand in one order in both.
    for ngrams in (own, read_arpa(tmp_path / "own.arpa")):
        for found, wanted in zip(in_order(ngrams, ids), expected, strict=True):
            np.testing.assert_array_equal(found[0], wanted[0])
            for numbers, own_numbers in zip(found[1:], wanted[1:], strict=True):
                np.testing.assert_allclose(numbers, own_numbers, rtol=0, atol=1e-6)


@given(corpora, st.integers(1, 5))
# The bigrams' first discount is 0 here, so that "d" leaves nothing to back-off.
@example([list("abbbed"), list("bebeb"), list("becbbd")], 4)
@settings(max_examples=80)
def test_numbers_are_those_of_the_definition(sentences, order):
    ngrams = estimate(sentences, order, DISCOUNT_FALLBACK)
    # Also where nothing is left to back off.
    assert all(np.isfinite(values).all() for values in (*ngrams.prob, *ngrams.backoff))
    # An order that no sentence is long enough for has no n-grams.
    for got, want in zip(
        to_dict(ngrams), kneser_ney(sentences, order, DISCOUNT_FALLBACK), strict=True
    ):
        assert got == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize("word", ["<s>", "<UNK>", "", "a\t"])
def test_words_that_arpa_cannot_hold_are_errors(word, tmp_path):
    sentences = [["a"], ["b", "a"], [], ["a", word, "b"], [word]]
    options = {"discount_fallback": DISCOUNT_FALLBACK, "path": "train.en"}
    for make in (estimate, partial(build_folds, tmp_path, n_folds=2)):
        with pytest.raises(InputError, match="cannot be a word of a language model") as caught:
            make(sentences=sentences, order=2, **options)
        assert (caught.value.path, caught.value.line) == ("train.en", 4)


@pytest.mark.parametrize("fallback", [(0, 1, 1.5), (1.5, 1, 1.5), (0.5, 1, -1), (0.5, 1), None])
def test_bad_fallbacks(fallback):
    with pytest.raises(ValueError, match="discount_fallback"):
        estimate([["a", "b"], ["b", "a"]], 2, fallback)


TEXT = "the dog sees the cat,the cat sees a bird,a bird sings,the dog sleeps,a zebra sleeps,the cat"
SENTENCES = [line.split() for line in f"{TEXT} sleeps,the bird sees the dog".split(",")]


def test_fold_errors(tmp_path):
    def refused(message, **expected):
        with pytest.raises(InputError, match=message):
            load_folds(tmp_path, **expected)

    digest = build_folds(tmp_path, SENTENCES, 3, 3, DISCOUNT_FALLBACK)
    assert len(load_folds(tmp_path, expected=digest)) == 3
    build_folds(tmp_path, SENTENCES[1:], 3, 3, DISCOUNT_FALLBACK)
    refused("folds.json: is of another model; remove the model's", expected=digest)
    # One model of them, in the place of another.
    fold = tmp_path / "fold-1.arpa.gz"
    fold.write_bytes((tmp_path / "fold-2.arpa.gz").read_bytes())
    refused("fold-1.arpa.gz: is damaged or another file")
    (tmp_path / "folds.json").write_text("[]")
    refused("is damaged")
    # A build that breaks off leaves nothing that could be taken for whole.
    for n_folds, message in ((8, "7 sentences are too few for 8 folds"), (3, "the discounts of")):
        build_folds(tmp_path, SENTENCES, 2, 2, DISCOUNT_FALLBACK)
        with pytest.raises(InputError, match=message):
            build_folds(tmp_path, SENTENCES, n_folds, 2)
        refused("no whole set of fold models")


DATA = Path(__file__).parent / "data" / "lm"

sentences = st.lists(st.sampled_from([*"abcd", "nowhere"]), max_size=9)


@given(dict_models(), sentences, st.booleans(), st.booleans())
@settings(max_examples=150)
def test_scores_are_those_of_back_off(reference, words, bos, eos):
    model = NgramModel.from_ngrams(to_ngrams(reference))
    total, unknown = model.score(words, bos, eos)
    assert total == pytest.approx(reference.score(words, bos, eos), abs=1e-5)
    assert unknown == sum((w,) not in reference.prob for w in words)
    for found in model.score_all([words, [], words], bos, eos):
        assert found[[0, 2]].tolist() == [total if found.dtype == float else unknown] * 2


def test_a_memo_remembers_what_the_model_says():
    """Of more pairs of a state and a word than it has places, which come again and again."""
    rng = np.random.default_rng(3)
    words = [BEGIN, END, "<unk>", *map(str, range(100))]
    pairs = [(words[a], words[b]) for a, b in rng.integers(3, 103, (900, 2))]
    prob = {ngram: float(-rng.random()) for ngram in [*((word,) for word in words), *pairs]}
    backoff = {(word,): float(-rng.random()) for word in words}
    model = NgramModel.from_ngrams(to_ngrams(DictModel(prob, backoff)))
    table, nodes = model.tables
    lm, pairs_asked = asked(table, nodes), set()
    for word in rng.integers(0, len(words), 30_000).tolist():
        state = int(rng.choice(nodes["state"]))
        pairs_asked.add((state, word))
        place = recall(lm, state, word)
        logp, node, _ = match(table, nodes, state, word)
        after = nodes["state"][node]
        found, wanted = lm.memo[place], nodes[node]
        assert (found["logp"], found["node"], found["state"]) == (logp, node, after)
        names = ["length", "extends_left"]
        assert found[names].tolist() == wanted[names].tolist()
        assert found["reach"] == nodes["length"][after]
    assert len(pairs_asked) > lm.memo.size


@given(dict_models(closed=True))
@settings(max_examples=100)
def test_states_are_the_shortest_that_tell_all(reference):
    """What the definition of the state of a node says, in words."""
    tables = NgramModel.from_ngrams(to_ngrams(reference)).tables
    names = to_ngrams(reference).words
    nodes = {(): 0}
    for ngram in sorted(reference.prob, key=len):
        nodes[ngram] = transition(tables.table, nodes[ngram[:-1]], names.id(ngram[-1]))

    def has_or_is(ngram):
        return reference.backoff.get(ngram, 0.0) != 0.0 or any(g[:-1] == ngram for g in nodes if g)

    kept = {
        g[i:] for g in nodes if 0 < len(g) < reference.order and has_or_is(g) for i in range(len(g))
    }
    for ngram, node in nodes.items():
        state = next((ngram[i:] for i in range(len(ngram)) if ngram[i:] in kept), ())
        assert tables.nodes["state"][node] == nodes[state]
        if ngram:
            _, _, behind = match(*tables, nodes[ngram[:-1]], names.id(ngram[-1]))
            assert behind == nodes[state]
        assert tables.nodes["extends_left"][node] == any(g[1:] == ngram for g in nodes if g)


def test_a_list_with_an_ngram_twice_is_an_error():
    """Also behind one that is missing."""
    grams = ["<s>", "</s>", "<unk>", "a", "b", "c", "a b", "b c", "a b c", "c a b", "b c a"]
    ngrams = to_ngrams(DictModel({tuple(gram.split()): -0.5 for gram in grams}))
    assert build_tables(ngrams) is not None
    for values in (ngrams.rows, ngrams.prob, ngrams.backoff):
        values[2] = values[2][[0, 1, 0, 2]]
    with pytest.raises(InputError, match="stands twice"):
        build_tables(ngrams)


def test_perplexity_counts_sentence_ends_and_unknown_words():
    reference = DictModel({(w,): -1.0 for w in (BEGIN, END, "a")} | {("<unk>",): -3.0})
    model = NgramModel.from_ngrams(to_ngrams(reference))
    assert perplexity(model, ["a a", "b"]) == pytest.approx(10 ** ((2 + 1 + 3 + 1) / 5))


@pytest.mark.parametrize("name", ["kneser-ney.arpa", "pruned.arpa"])
def test_scores_recorded_from_kenlm(name):
    model = NgramModel.load(DATA / name, cache=False)
    entries = json.loads((DATA / "scores.json").read_text())[name]
    assert len(entries) >= 100
    for text, bos, eos, total, unknown in entries:
        own_total, own_unknown = model.score(text.split(), bos, eos)
        assert own_total == pytest.approx(total, abs=2e-6 * (2 + len(text.split())))
        assert own_unknown == unknown


@given(dict_models(closed=True, min_order=2), st.lists(sentences, min_size=1, max_size=5))
@settings(max_examples=25)
def test_random_models_score_as_in_kenlm(tmp_path_factory, reference, texts):
    kenlm = pytest.importorskip("kenlm", reason="kenlm is not installed")
    path = put(tmp_path_factory.mktemp("lm"), {"random.arpa": reference.arpa()})
    model, oracle = NgramModel.load(path, cache=False), kenlm.Model(str(path))
    for words, bos, eos in product(texts, (True, False), (True, False)):
        expected = oracle.score(" ".join(words), bos=bos, eos=eos)
        assert model.score(words, bos, eos)[0] == pytest.approx(expected, abs=1e-5)


def test_multi30k_scores_as_in_kenlm(shared, multi30k_model):
    model = multi30k_model
    texts = [read_lines(shared / "data/multi30k-de-en" / name) for name in ("dev.en", "test.en")]
    perplexities = [perplexity(model, lines) for lines in texts]
    assert perplexities == [pytest.approx(36.12, abs=5e-3), pytest.approx(35.80, abs=5e-3)]
    kenlm = pytest.importorskip("kenlm", reason="kenlm is not installed")
    oracle = kenlm.Model(str(shared / "oracles" / "lm" / "multi30k.en.5gram.arpa.gz"))
    for line in [*texts[0], *texts[1]]:
        total, unknown = model.score(line.split())
        assert total == pytest.approx(oracle.score(line), abs=2e-5)
        assert unknown == sum(out for _, _, out in list(oracle.full_scores(line))[:-1])
