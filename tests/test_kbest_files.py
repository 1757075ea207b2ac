"""Stored k-best lists as a decoder, and their oracles."""

import gzip
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.weights import Weights
from torchtune_smt.data.bitext import read_corpus
from torchtune_smt.decoders.kbest_files import KBestFiles
from torchtune_smt.kbest.formats import OnError
from torchtune_smt.kbest.lists import Source
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.metrics import BleuPlusOne, ExternalScores
from torchtune_smt.metrics.base import bind_metric
from torchtune_smt.models.moses_ini import read_any_weights

DEV = """\
0 ||| a b ||| LM=-1 id:x=1 ||| 0
0 ||| a c ||| LM=-2 id:y=1 ||| 0
0 ||| a d ||| LM=-1 id:y=1 ||| 0
1 ||| e ||| LM=-3 ||| 0
1 ||| f ||| LM=-3 id:z=2 ||| 0
"""
TEST = "0 ||| f g ||| LM=-1 id:new=1 ||| 0\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def decoder(tmp_path: Path) -> KBestFiles:
    decoder = KBestFiles()
    decoder.read("dev", [write(tmp_path / "dev", DEV)], for_tuning=True)
    decoder.read("test", [write(tmp_path / "test", TEST)])
    return decoder


def test_lists_are_sorted_by_current_weights(decoder: KBestFiles) -> None:
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
    ids, values = first.row(0)
    assert dict(zip(decoder.features.names(ids), values, strict=True)) == {"LM": -1, "id:y": 1}
    (short,) = decoder.decode(sources[:1], weights, k=2)
    assert short.score.tolist() == [-0.25, -0.5]
    (other,) = decoder.decode(decoder.sources("test"), weights)
    assert other.text(0) == "f g"
    with pytest.raises(ValueError, match="k must be at least 1, not 0"):
        decoder.decode(sources, weights, k=0)


def test_forks_may_decode_in_threads(decoder: KBestFiles) -> None:
    """They share lists and features, and nothing that decoding writes to."""
    fork = decoder.fork()
    assert fork.features is decoder.features
    assert fork.sets is decoder.sets
    assert not np.shares_memory(fork._weight, decoder._weight)
    assert not np.shares_memory(fork._mark, decoder._mark)


def test_any_weights_may_come(decoder: KBestFiles) -> None:
    weights = Weights(["other", "id:z"])
    weights.set(["id:y"], [1.0])
    sources = decoder.sources("dev")
    for w in (weights, Weights(decoder.dense_names), weights):
        for kbest in decoder.decode(sources, w):
            values_of = w.read(decoder.features, np.arange(len(decoder.features)))
            for h in range(len(kbest)):
                ids, values = kbest.row(h)
                assert (np.diff(ids) > 0).all()
                assert kbest.score[h] == pytest.approx(float(values_of[ids] @ values))
            assert (np.diff(kbest.score) <= 0).all()
    (kbest, _) = decoder.decode(sources, weights)
    assert kbest.text(0) == "a c"


def test_only_up_to_date_weights_are_read(decoder: KBestFiles) -> None:
    weights = Weights(decoder.dense_names)
    decoder.decode(decoder.sources("dev"), weights)
    asked: list[list[str]] = []

    class Asked:
        version = 0

        def read(self, features, ids):  # type: ignore[no-untyped-def]
            asked.append(sorted(features.names(ids)))
            return weights.read(features, ids)

    decoder.decode(decoder.sources("dev")[1:], Asked())
    decoder.decode(decoder.sources("dev"), Asked())
    assert asked == [["LM", "id:z"], ["LM", "id:x", "id:y", "id:z"]]


def test_chosen_sentences_keep_their_lists(decoder: KBestFiles) -> None:
    sentences = Sentences(list(decoder.sources("dev")), [[["a"]], [["f"]]]).subset([1])
    (kbest,) = decoder.decode(sentences.sources, Weights())
    assert (kbest.index, kbest.text(0)) == (0, "e")
    with pytest.raises(ValueError, match="sentence 3 has no stored list"):
        decoder.decode([Source(3, ["x"])], Weights())


def test_lists_without_features(tmp_path: Path) -> None:
    path = write(tmp_path / "list", "0 ||| h ||| ||| -1.2\n0 ||| g ||| ||| -1.5\n")
    with pytest.raises(InputError, match="list: has no features.*third field"):
        KBestFiles().read("dev", [path])


def test_lists_of_one_hypothesis(tmp_path: Path) -> None:
    path = write(tmp_path / "list", DEV.replace("1 ||| f ||| LM=-3 id:z=2 ||| 0\n", ""))
    with pytest.raises(InputError, match="list:4: sentence 1 has one hypothesis, and nothing"):
        KBestFiles().read("dev", [path], for_tuning=True)
    assert len(KBestFiles().read("dev", [path]).lists) == 2
    stored = KBestFiles(on_error="skip").read("dev", [path], for_tuning=True)
    assert stored.summary().endswith("1 lists of one hypothesis, of no use in tuning")


@pytest.mark.parametrize("hole", [None, 2, 5])
def test_lists_that_are_counted_from_1(tmp_path: Path, hole: int | None) -> None:
    source = write(tmp_path / "source", "s\n" * 6)
    lines = ["\n" if i == hole else f"ref {i}\n" for i in range(6)]
    target = write(tmp_path / "target", "".join(lines))
    lists = "".join(f"{i} ||| h{h} ||| x={h} ||| 0\n" for i in range(1, 7) for h in range(2))
    decoder = KBestFiles(dev=[write(tmp_path / "list", lists)], on_error="skip")
    corpus = read_corpus(source, [target], empty="skip")
    with pytest.raises(InputError, match=r"a list of sentence 6 .*has 6 lines of references"):
        decoder.sentences("dev", lambda: corpus)


@pytest.mark.parametrize("on_error", ["error", "skip"])
def test_only_lists_of_one_hypothesis(on_error: OnError, tmp_path: Path) -> None:
    """Copies do not count: there is nothing to choose."""
    first, _, _, second, _ = DEV.splitlines(keepends=True)
    path = write(tmp_path / "list", first + first + second)
    with pytest.raises(InputError, match="list: every list has one hypothesis, which leaves"):
        KBestFiles(on_error=on_error).read("dev", [path], for_tuning=True)
    assert len(KBestFiles(on_error=on_error).read("dev", [path]).lists) == 2


def test_dense_features_of_all_sets_agree(tmp_path: Path) -> None:
    decoder = KBestFiles()
    decoder.read("dev", [write(tmp_path / "dev", "0 ||| a ||| LM0= 1 TM0= 1 2 ||| 0\n")])
    with pytest.raises(InputError, match="the dense feature TM0_2 is only here"):
        decoder.read("test", [write(tmp_path / "test", "0 ||| a ||| LM0= 1 TM0= 1 2 3 ||| 0\n")])
    with pytest.raises(InputError, match="the dense feature TM0_0 is missing here"):
        decoder.read("test", [write(tmp_path / "test", "0 ||| a ||| LM0= 1 ||| 0\n")])
    with pytest.raises(InputError, match="the dense feature LN does not occur"):
        KBestFiles(dense=["LN"]).read("dev", [tmp_path / "dev"])
    for options in ({"k": 0}, {"on_error": "ignore"}):
        with pytest.raises(ValueError, match="must be"):
            KBestFiles(**options).read("dev", [tmp_path / "dev"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="1 files of features and 2 files of scores"):
        decoder.read("dev", [tmp_path / "dev"], [tmp_path, tmp_path])
    with pytest.raises(ValueError, match="no files"):
        decoder.read("dev", [])


def test_gains_of_statistics(tmp_path: Path) -> None:
    features = "FEATURES_TXT_BEGIN_0 0 3 1 LM0_0\n1\n2\n1\nFEATURES_TXT_END_0\n"
    rows = "7 9 4 8 2 7 1 6 10\n8 9 5 8 3 7 1 6 10\n7 9 4 8 2 7 1 6 10\n"
    scores = f"SCORES_TXT_BEGIN_0 0 3 9 BLEU\n{rows}SCORES_TXT_END_0\n"
    decoder = KBestFiles()
    stored = decoder.read("dev", [write(tmp_path / "f", features)], [write(tmp_path / "s", scores)])
    assert stored.summary() == "2 hypotheses of 1 sentences; 1 copies of earlier entries"
    weights = Weights(decoder.dense_names)
    weights.set(["LM0_0"], [1.0])
    sentences = decoder.sentences("dev", lambda: None)
    assert sentences is not None
    (kbest,) = decoder.decode(sentences.sources, weights)
    assert kbest.text(0) == "1" and kbest.words is None
    gains = bind_metric(BleuPlusOne(), sentences.references, decoder.words).gains(kbest)
    expected = np.array([[8, 5, 3, 1, 9, 8, 7, 6, 9, 10], [7, 4, 2, 1, 9, 8, 7, 6, 9, 10]])
    assert gains.tolist() == BleuPlusOne().score(expected).tolist()
    external = ExternalScores(write(tmp_path / "e", "0 ||| a ||| 1\n"))
    with pytest.raises(InputError, match="ExternalScores needs the words of the hypotheses"):
        bind_metric(external, sentences.references, decoder.words)


def moses_weights(text: str) -> dict[str, float]:
    """Dense weights of moses.ini or run*.dense, sparse ones of a weights file."""
    weights: dict[str, float] = {}
    for label, values in re.findall(r"^(\w+)= ([-\d.e ]+)$", text, re.M):
        for value in values.split():
            i = 0
            while f"{label}_{i}" in weights:
                i += 1
            weights[f"{label}_{i}"] = float(value)
    return weights


@pytest.mark.parametrize(
    ("name", "files", "mean"),
    [
        ("mira", ["mira/run9.dense"], -50.0506),
        ("sparse", ["moses.sparse.tuned.best-dev.ini", "sparse-weights.txt"], -49.3122),
    ],
)
def test_moses_totals(
    name: str, files: list[str], mean: float, shared: Path, tmp_path: Path
) -> None:
    folder = shared / "oracles" / "moses"
    weights_of = moses_weights((folder / files[0]).read_text())
    for file in files[1:]:
        for line in (folder / file).read_text().splitlines():
            weights_of[line.split()[0]] = float(line.split()[1])
    if name == "sparse":
        # As they are read from both files.
        shutil.copy(folder / files[0], tmp_path / "moses.ini")
        shutil.copy(folder / files[1], tmp_path / "run4.sparse-weights")
        names, values = read_any_weights(tmp_path / "moses.ini")
        assert dict(zip(names, values.tolist(), strict=True)) == weights_of
    decoder = KBestFiles(unique=False)
    stored = decoder.read("dev", [folder / f"dev.100best.{name}.gz"], for_tuning=True)
    assert len(stored.lists) == 1014
    assert len(decoder.dense_names) == 14
    weights = Weights(decoder.dense_names)
    weights.set(list(weights_of), list(weights_of.values()))
    first = []
    for kbest in decoder.decode(decoder.sources("dev"), weights):
        totals = stored.lists.score[np.searchsorted(stored.lists.entry, kbest.entry)]
        first.append(totals.max())
        # 100 for each unknown word is in the total, but not among the features.
        rest = kbest.score - totals
        assert np.abs(rest - 100 * np.round(rest / 100)).max() < 1.5e-3
    assert np.mean(first) == pytest.approx(mean, abs=1e-4)


def test_cdec_scores(shared: Path) -> None:
    folder = shared / "oracles" / "cdec"
    decoder = KBestFiles(unique=False, missing=0)
    stored = decoder.read("dev", [folder / "dev.k100.pop200.kbest.gz"])
    weights = Weights(decoder.dense_names)
    pairs = [line.split() for line in (folder / "weights").read_text().splitlines()]
    weights.set([name for name, _ in pairs], [float(value) for _, value in pairs])
    best = []
    for kbest in decoder.decode(decoder.sources("dev"), weights):
        totals = stored.lists.score[kbest.entry - 1]
        assert np.abs(kbest.score - totals).max() < 7e-5
        best.append(totals.max())
    assert np.mean(best) == pytest.approx(-3.24358, abs=1e-5)


def test_nine_iterations_of_mira(shared: Path) -> None:
    folder = shared / "oracles" / "moses" / "mira"
    torch.set_num_threads(1)
    decoder = KBestFiles()
    lists = [folder / f"run{i}.features.dat.gz" for i in range(1, 10)]
    scores = [folder / f"run{i}.scores.dat.gz" for i in range(1, 10)]
    stored = decoder.read("dev", lists, scores, for_tuning=True)
    copies = stored.skipped["copies of earlier entries"]
    assert stored.lists.n_hypotheses + copies == 658_172
    # kbmira takes those with equal features for the same, whatever their statistics.
    features_only = replace(stored.lists, statistics=None)
    assert features_only.without_copies().n_hypotheses == 222_437


def test_list_and_features_of_one_run_agree(shared: Path) -> None:
    folder = shared / "oracles" / "moses"
    decoder = KBestFiles(unique=False)
    words = decoder.read("words", [folder / "dev.100best.default.gz"])
    run = folder / "mira"
    numbers = decoder.read("dev", [run / "run1.features.dat.gz"], [run / "run1.scores.dat.gz"])
    with gzip.open(run / "run1.features.dat.gz", "rt") as file:
        rows = [line.split() for line in file if not line.startswith("F")]
    assert numbers.lists.n_hypotheses == len(rows)
    dense = np.array([[float(v) for v in row] for row in rows[:2000]])
    parsed = np.zeros_like(dense)
    for i in range(len(dense)):
        ids, values = numbers.lists.row(i)
        names = numbers.lists.features.names(ids)
        parsed[i, [numbers.dense_names.index(n) for n in names]] = values
    assert (parsed == dense).all()
    assert words.dense_names == numbers.dense_names
