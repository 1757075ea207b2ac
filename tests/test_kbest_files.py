"""Stored k-best lists as a decoder, and their oracles."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import yaml
from commands import run_command
from hypothesis import given, settings
from hypothesis import strategies as st
from small_lists import ON_LISTS, put

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import config_folder
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.weights import Weights
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.decoders.kbest_files import KBestFiles
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.metrics import BleuPlusOne, ExternalScores
from torchtune_smt.metrics.base import bind_metric
from torchtune_smt.models.moses_ini import read_any_weights
from torchtune_smt.runs.task import bind
from torchtune_smt.tuners.sentences import evaluate
from torchtune_smt.tuners.start import weights_of_file, weights_of_values

DEV = """\
0 ||| a b ||| LM=-1 id:x=1 ||| 0
0 ||| a c ||| LM=-2 id:y=1 ||| 0
0 ||| a d ||| LM=-1 id:y=1 ||| 0
1 ||| e ||| LM=-3 ||| 0
1 ||| f ||| LM=-3 id:z=2 ||| 0
"""
MOSES = """\
0 ||| a b ||| LM0= -1 TM0= 1 2 W_x= 1 ||| -7
0 ||| c d ||| LM0= -2 TM0= 0 1 W_y= 1 PL_1= 2 ||| -8
1 ||| e ||| LM0= -1 TM0= 0 0 ||| -1
1 ||| für uns ||| LM0= -2 TM0= 0 0 W_y= 2 ||| -2
"""


def names_of(decoder):
    return decoder.features.names(range(len(decoder.features)))


def corpus(*references, lines=()):
    """Sentences with one reference each, of all lines, or of some."""
    words = [[line.split()] for line in references]
    return Corpus([["x"]] * len(words), words, list(lines) or [*range(1, len(words) + 1)])


@pytest.fixture
def decoder(tmp_path):
    decoder = KBestFiles()
    decoder.read("dev", [put(tmp_path, {"dev": DEV})], for_tuning=True)
    decoder.read("test", [put(tmp_path, {"test": "0 ||| f g ||| LM=-1 id:new=1 ||| 0\n"})])
    return decoder


def test_lists_are_sorted_by_current_weights(decoder):
    weights = Weights(decoder.dense_names)
    assert decoder.dense_names == ["LM"]
    sources = decoder.sources("dev")
    first, second = decoder.decode(sources, weights)
    assert len(decoder.features) == 5
    # Equal scores leave the order of the file.
    assert [first.text(h) for h in range(3)] == ["a b", "a c", "a d"]
    weights.set(["LM", "id:y", "id:z"], [0.5, 0.25, -1.0])
    first, second = decoder.decode(sources, weights)
    assert [first.text(h) for h in range(3)] == ["a d", "a b", "a c"]
    assert first.score.tolist() == [-0.25, -0.5, -0.75]
    assert second.text(0) == "e"
    assert (first.index, second.index) == (0, 1)
    assert decoder.features.named(*first.row(0)) == {"LM": -1, "id:y": 1}
    (short,) = decoder.decode(sources[:1], weights, k=2)
    assert short.score.tolist() == [-0.25, -0.5]
    (other,) = decoder.decode(decoder.sources("test"), weights)
    assert other.text(0) == "f g"
    # Chosen sentences keep their lists.
    sentences = Sentences(list(sources), [[["a"]], [["f"]]]).subset([1])
    (kbest,) = decoder.decode(sentences.sources, Weights())
    assert (kbest.index, kbest.text(0)) == (0, "e")
    # Forks decode in threads: they share nothing that decoding writes to.
    fork = decoder.fork()
    assert fork.features is decoder.features and fork.sets is decoder.sets
    assert not np.shares_memory(fork._weight, decoder._weight)
    assert not np.shares_memory(fork._mark, decoder._mark)


def test_any_weights_may_come(decoder):
    """Of features that occur, and no others, the weights are read."""
    weights = Weights(["other", "id:z"])
    weights.set(["id:y"], [1.0])
    asked = []

    class Asked:
        version = 0

        def read(self, features, ids):
            asked.append(sorted(features.names(ids)))
            return weights.read(features, ids)

    (kbest,) = decoder.decode(decoder.sources("dev")[1:], Asked())
    assert kbest.score.tolist() == [0, 0]
    (kbest, _) = decoder.decode(decoder.sources("dev"), Asked())
    assert kbest.text(0) == "a c"
    assert asked == [["LM", "id:z"], ["LM", "id:x", "id:y", "id:z"]]


def test_lists_of_one_hypothesis(tmp_path):
    """Copies do not count: there is nothing to choose."""
    path = put(tmp_path, {"list": DEV.replace("1 ||| f ||| LM=-3 id:z=2 ||| 0\n", "")})
    with pytest.raises(InputError, match="list:4: sentence 1 has one hypothesis, and nothing"):
        KBestFiles().read("dev", [path], for_tuning=True)
    stored = KBestFiles(on_error="skip").read("dev", [path], for_tuning=True)
    assert stored.summary().endswith("1 lists of one hypothesis, of no use in tuning")
    first, _, _, second, _ = DEV.splitlines(keepends=True)
    put(tmp_path, {"list": first + first + second})
    with pytest.raises(InputError, match="list: every list has one hypothesis, which leaves"):
        KBestFiles(on_error="skip").read("dev", [path], for_tuning=True)
    assert len(KBestFiles().read("dev", [path]).lists) == 2


@pytest.mark.parametrize(
    ("options", "error", "word"),
    [
        ({"dense": ["LN"]}, InputError, "dense feature LN does not occur"),
        ({"tune_on": "dev", "dev": None}, InputError, "decoder.dev is null"),
        ({"dev_scores": ["s", "s"]}, ValueError, "1 files of features and 2 files of scores"),
        ({"dev": []}, ValueError, "0 files of features"),
        ({"columns": {"dv": {}}}, InputError, "has 'dv'"),
        ({"columns": {"dev": {"x": "list"}}, "dev": ["list", "list"]}, InputError, "one file"),
        ({"dev": "empty"}, InputError, "empty: has no features.*third field"),
    ],
)
def test_what_is_refused(options, error, word, tmp_path, monkeypatch):
    monkeypatch.chdir(put(tmp_path, {"list": MOSES, "empty": "0 ||| h ||| ||| -1.2\n"}))
    with pytest.raises(error, match=word):
        KBestFiles(**{"dev": "list", "report": str} | options)


# Features that are kept, dense ones first, and what has them in common.
COMMON = {"LM0_0": "LM0", "TM0_0": "TM0", "TM0_1": "TM0", "WT_a~b": "WT", "WT_c_d": "WT"}
COMMON |= {"PL_s1": "PL", "id:a_b": "id", "id:b:c_d": "id", "shape:1_2": "shape"}
NAMES = list(COMMON)


def lists_file(path, lists, line):
    rows = [(s, h, row) for s, rows in enumerate(lists) for h, row in enumerate(rows)]
    path.write_text("".join(f"{s} ||| w{h % 2} ||| {line(row)} ||| 0\n" for s, h, row in rows))
    return [path]


def described(decoder, weight_of):
    weights = Weights(decoder.dense_names)
    known = {name: value for name, value in weight_of.items() if name in decoder.features}
    weights.set(list(known), list(known.values()))
    found = [decoder.dense_names, len(decoder.features)]
    for kbest in decoder.decode(decoder.sources("dev"), weights):
        rows = [decoder.features.named(*kbest.row(h)) for h in range(len(kbest))]
        found.append((kbest.texts(len(kbest)), rows, np.round(kbest.score, 9).tolist()))
    return found


number = st.integers(1, 3).map(float)
row = st.builds(
    lambda dense, rest: dict(zip(NAMES, dense, strict=False)) | rest,
    st.tuples(number, number, number),
    st.dictionaries(st.sampled_from(NAMES[3:]), number),
)


@settings(max_examples=60)
@given(
    st.lists(st.lists(row, min_size=1, max_size=5), min_size=1, max_size=4),
    st.sets(st.sampled_from(["dense", *NAMES, *COMMON.values()]), min_size=1, max_size=3),
    st.fixed_dictionaries(dict.fromkeys(NAMES, number)),
)
def test_features_are_kept_as_if_the_files_had_no_others(tmp_path_factory, lists, keep, weights):
    path = tmp_path_factory.getbasetemp() / "lists"
    # Each feature occurs, so that each may be asked for.
    lists[0].append(dict.fromkeys(NAMES, 1.0))
    kept = [n for n in NAMES if {n, COMMON[n]} & keep or (n in NAMES[:3] and "dense" in keep)]
    decoder = KBestFiles(features=sorted(keep))

    def moses(row):
        own = f"LM0= {row['LM0_0']} TM0= {row['TM0_0']} {row['TM0_1']}"
        return " ".join([own, *(f"{n}= {row[n]}" for n in NAMES[3:] if n in row)])

    decoder.read("dev", lists_file(path, lists, moses))

    def cdec(row):
        return " ".join(f"{name}={row[name]}" for name in kept if name in row)

    # The values of a label of Moses's have no numbers in its files: cdec's format names them.
    expected = KBestFiles(format="cdec", dense=[name for name in kept if name in NAMES[:3]])
    expected.read("dev", lists_file(path, lists, cdec))
    assert described(decoder, weights) == described(expected, weights)


def test_sets_agree(tmp_path):
    """A feature is asked for in the first set; others may lack it, and have more of a template."""
    put(tmp_path, {"dev": MOSES, "test": "0 ||| a ||| LM0= -1 TM0= 1 2 W_z= 1 ||| 0\n"})
    decoder = KBestFiles(features=["TM0_1", "W", "PL_1"])
    decoder.read("dev", [tmp_path / "dev"])
    decoder.read("test", [tmp_path / "test"])
    assert decoder.dense_names == ["TM0_1"]
    assert names_of(decoder) == ["TM0_1", "W_x", "W_y", "PL_1", "W_z"]
    for text, message in (
        ("LM0= -1", "the dense feature TM0_0 is missing here"),
        ("LM0= -1 TM0= 1 2 3", "the dense feature TM0_2 is only here"),
    ):
        put(tmp_path, {"test": f"0 ||| a ||| {text} ||| 0\n"})
        with pytest.raises(InputError, match=message):
            decoder.read("other", [tmp_path / "test"])


def test_what_is_kept(tmp_path):
    options = {"dense": ["W_x", "LM0_0"], "features": ["dense", "PL"], "missing": 0.0}
    decoder = KBestFiles(dev=put(tmp_path, {"dev": MOSES}), report=str, **options)
    assert decoder.dense_names == ["W_x", "LM0_0"]
    assert sorted(names_of(decoder)) == ["LM0_0", "PL_1", "W_x"]
    for wanted in ("LM", "W_", "all"):
        message = (
            f"dev: has no feature '{wanted}', and no template or label of that name; there are the "
            "dense features LM0_0, TM0_0, TM0_1, and sparse ones of the templates W, PL"
        )
        with pytest.raises(InputError, match=message):
            KBestFiles(features=["dense", wanted], dev=tmp_path / "dev")


@pytest.mark.parametrize("form", ["F0= {}", "F0={}"])
@pytest.mark.parametrize("name", ["F0", "F0_0"])
def test_a_feature_of_one_value_has_one_name(form, name, tmp_path):
    lines = [f"0 ||| {word} ||| {form.format(-i)} ||| 0" for i, word in enumerate("abc")]
    put(tmp_path, {"list": lines, "weights": f"{name} -1\n"})
    outcome = run_command("rerank", "weights=weights", "input=list", folder=tmp_path).check()
    assert (outcome.out, outcome.err) == ("c\n", "")
    decoder = KBestFiles(dev=tmp_path / "list", report=str)
    weights = weights_of_file(str(tmp_path / "weights"), decoder)
    assert weights.features.names(range(len(weights.features))) == decoder.dense_names
    # Lists in the other form are of the same features.
    for other, line, score in (
        ("other", "0 ||| a ||| F0_0=-5 ||| 0\n", 5),
        ("third", "0 ||| a ||| F0= -6 ||| 0\n0 ||| b ||| F0= 0 ||| 0\n", 6),
    ):
        decoder.read(other, [put(tmp_path / other, {other: line})])
        assert len(decoder.dense_names) == 1
        (best,) = decoder.decode(decoder.sources(other), weights)
        assert best.score[0] == score


def test_weights_that_lists_start_from(tmp_path):
    """The default initial weights name Moses's, which is not in the order of our decoders'."""
    decoder = KBestFiles(dev=put(tmp_path, {"list": MOSES}), features=["LM0", "W"], report=str)
    values = yaml.safe_load((config_folder() / "init" / "default.yaml").read_text())["values"]
    assert weights_of_values(values, decoder).parameter.tolist() == [0.1]
    path = put(tmp_path, {"init": "W_y 1\n"})
    assert weights_of_file(str(path), decoder).parameter.tolist() == [0.0, 1.0]
    put(tmp_path, {"init": "other 1\n"})
    with pytest.raises(InputError, match="init: has no weight for any feature of the k-best lists"):
        weights_of_file(str(path), decoder)


def test_scores_are_found_by_the_number_in_the_lists(tmp_path):
    numbers = [0, 1, 3, 4, 5]
    lists = [f"{i} ||| {word} ||| F=1 ||| 0" for i in numbers for word in "ab"]
    scores = [f"{i} ||| {w} ||| {10 * i + (w == 'b')}" for i in range(6) for w in "ab"]
    put(tmp_path, {"list": lists, "scores": scores})
    # Sentence 1 has no source, 2 no list.
    given = replace(corpus(*"a" * 5, lines=[1, 3, 4, 5, 6]), dropped={"empty": 1})
    decoder = KBestFiles(dev=tmp_path / "list", on_error="skip", format="cdec", report=str)
    whole = decoder.sentences("dev", lambda: given, str)
    metric = ExternalScores(tmp_path / "scores")
    for sentences, expected in (
        (whole, [0, 30, 40, 50]),
        (whole.subset([1, 3]), [30, 50]),
        (whole.part([0, 2]), [0, 40]),
        (whole.part([3]), [50]),
    ):
        bound = bind(metric, decoder, sentences)
        found = decoder.decode(sentences.sources, Weights())
        assert [bound.gains(kbest).tolist() for kbest in found] == [[n, n + 1] for n in expected]


def test_lists_and_references_must_fit(tmp_path):
    path = put(tmp_path, {"list": MOSES})
    decoder = KBestFiles(dev=path, report=str)
    three = corpus("c d", "f u r", "g")
    with pytest.raises(InputError, match="decoder.dev has no list of sentence 2"):
        decoder.sentences("dev", lambda: three)
    skipping, messages = KBestFiles(dev=path, on_error="skip", report=str), []
    sentences = skipping.sentences("dev", lambda: three, messages.append)
    assert len(sentences) == 2 and messages == ["dev: 1 sentences without a list are left out"]
    with pytest.raises(InputError, match="decoder.dev has a list of sentence 1"):
        decoder.sentences("dev", lambda: corpus("c d"))


def test_a_run_on_lists_with_a_gap_can_be_compared(tmp_path):
    files = {"list": MOSES.replace("\n1 |||", "\n2 |||"), "dev.de": "x\ny\nz\n"}
    put(tmp_path, {**files, "dev.en": "c d\nf u r\nfür uns\n"})
    given = [*ON_LISTS, "data.dev=[dev.de,dev.en]", "decoder.dev=list", "decoder.on_error=skip"]
    given += ["tuner.epochs=1", "report=true", "init=zero", "hydra.run.dir=run"]
    run_command("train", *given, folder=tmp_path).check()
    first, gap, last = (tmp_path / "run" / "dev.translations.txt").read_text("utf-8").splitlines()
    assert first in ("a b", "c d") and gap == "" and last in ("e", "für uns")
    assert (tmp_path / "run" / "report.html").is_file()
    run_command("evaluate", "run", "split=dev", "samples=10", folder=tmp_path).check()


def tuning_files(folder, lists, values):
    """Moses's files of lists with one feature and statistics, by the number of the sentence."""
    features, scores, value = [], [], iter(values)
    for i, rows in lists.items():
        features += [f"FEATURES_TXT_BEGIN_0 {i} {len(rows)} 1 LM0_0"]
        features += [*(str(next(value)) for _ in rows), "FEATURES_TXT_END_0"]
        scores += [f"SCORES_TXT_BEGIN_0 {i} {len(rows)} 9 BLEU", *rows, "SCORES_TXT_END_0"]
    put(folder, {"f": features, "s": scores})
    return [folder / "f", folder / "s"]


WORSE, BETTER = "7 9 4 8 2 7 1 6 10", "8 9 5 8 3 7 1 6 10"


def test_lists_with_statistics(tmp_path):
    f, s = tuning_files(tmp_path, {0: [WORSE, BETTER, WORSE]}, [1, 2, 1])
    said = []
    decoder = KBestFiles(dev=f, dev_scores=s, report=said.append)
    assert said[0].endswith("2 hypotheses of 1 sentences; 1 copies of earlier entries")
    sentences = decoder.sentences("dev", lambda: None)
    weights = Weights(decoder.dense_names)
    score, lines = evaluate(decoder, weights, sentences)
    # BP * (7/9 * 4/8 * 2/7 * 1/6)^(1/4), BP = exp(1 - 10/9)
    assert score.score == pytest.approx(100 * np.exp(-1 / 9) * (1 / 54) ** 0.25)
    assert lines == ["0"]
    weights.set(["LM0_0"], [1.0])
    assert evaluate(decoder, weights, sentences)[1] == ["1"]
    (kbest,) = decoder.decode(sentences.sources, weights)
    gains = bind_metric(BleuPlusOne(), sentences.references, decoder.words).gains(kbest)
    expected = np.array([[8, 5, 3, 1, 9, 8, 7, 6, 9, 10], [7, 4, 2, 1, 9, 8, 7, 6, 9, 10]])
    assert gains.tolist() == BleuPlusOne().score(expected).tolist()
    # Sentence 1 has no list.
    f, s = tuning_files(tmp_path, {0: [WORSE], 2: [WORSE]}, [1, 1])
    decoder = KBestFiles(test=f, test_scores=s, on_error="skip", report=str)
    sentences = decoder.sentences("test", lambda: None)
    assert list(sentences.lines(["0", "0"])) == ["0\n", "\n", "0\n"]


@pytest.mark.parametrize(("name", "mean"), [("mira", -50.0506), ("sparse", -49.3122)])
def test_moses_totals(name, mean, shared, tmp_path):
    folder = shared / "oracles" / "moses"
    # A line for each value.
    values, text = {}, "[weight]\n"
    for line in (folder / "mira" / "run9.dense").read_text().splitlines():
        label, value = line.split("= ")
        values[label] = f"{values.get(label, '')} {value}"
    text += "".join(f"{label}= {own}\n" for label, own in values.items())
    if name == "sparse":
        text = (folder / "moses.sparse.tuned.best-dev.ini").read_text()
        shutil.copy(folder / "sparse-weights.txt", tmp_path / "run4.sparse-weights")
    (tmp_path / "moses.ini").write_text(text)
    weights = FrozenWeights(*read_any_weights(tmp_path / "moses.ini"))
    decoder = KBestFiles(unique=False)
    stored = decoder.read("dev", [folder / f"dev.100best.{name}.gz"], for_tuning=True)
    assert len(stored.lists) == 1014
    assert len(decoder.dense_names) == 14
    first = []
    for kbest in decoder.decode(decoder.sources("dev"), weights):
        totals = stored.lists.score[np.searchsorted(stored.lists.entry, kbest.entry)]
        first.append(totals.max())
        # 100 for each unknown word is in the total, but not among the features.
        rest = kbest.score - totals
        assert np.abs(rest - 100 * np.round(rest / 100)).max() < 1.5e-3
    assert np.mean(first) == pytest.approx(mean, abs=1e-4)


def test_cdec_scores(shared):
    folder = shared / "oracles" / "cdec"
    decoder = KBestFiles(unique=False, missing=0)
    stored = decoder.read("dev", [folder / "dev.k100.pop200.kbest.gz"])
    weights = FrozenWeights(*read_weights(folder / "weights"))
    best = []
    for kbest in decoder.decode(decoder.sources("dev"), weights):
        totals = stored.lists.score[kbest.entry - 1]
        assert np.abs(kbest.score - totals).max() < 7e-5
        best.append(totals.max())
    assert np.mean(best) == pytest.approx(-3.24358, abs=1e-5)


def test_nine_iterations_of_mira(shared):
    folder = shared / "oracles" / "moses" / "mira"
    decoder = KBestFiles()
    lists = [folder / f"run{i}.features.dat.gz" for i in range(1, 10)]
    scores = [folder / f"run{i}.scores.dat.gz" for i in range(1, 10)]
    stored = decoder.read("dev", lists, scores, for_tuning=True)
    copies = stored.skipped["copies of earlier entries"]
    assert stored.lists.n_hypotheses + copies == 658_172
    # kbmira takes those with equal features for the same, whatever their statistics.
    features_only = replace(stored.lists, statistics=None)
    assert features_only.without_copies().n_hypotheses == 222_437
