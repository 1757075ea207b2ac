"""Rows that make a better system, on little of the bundled example: tuned, judged, in tables."""

import csv
from itertools import product

import better
import mbr
import pytest
import within_dev
from published import read_results
from tables import Result

from torchtune_smt.core.textio import read_lines
from torchtune_smt.metrics.corpus import corpus_bleu

SETTINGS = ["tuner.sentences=10", "regularizer.strength=0.001"]


def test_rows_are_tuned_judged_and_tabled(tmp_path, monkeypatch, capsys):
    given = ["--small", "--rows", "phrase", "--seeds", "1", "2", "--folder", str(tmp_path)]
    for more in (["--no-mbr"], []):
        monkeypatch.setattr("sys.argv", ["better.py", *given, *more, "--set", *SETTINGS])
        assert better.main() == 0
        if more:
            rows = {r.row for r in read_results(tmp_path / "table.csv", Result)}
            assert rows == {"phrase", "phrase_mean"}
    results = {(r.row, r.seed): r for r in read_results(tmp_path / "table.csv", Result)}
    assert set(results) == {
        *((f"phrase{how}", seed) for how in ("", "_mbr") for seed in (1, 2)),
        *((f"phrase_mean{how}", 0) for how in ("", "_mbr")),
    }
    place = tmp_path / "example" / "phrase"
    weights = [
        better.read_any_weights(place.with_name(name) / f"seed{seed}" / "weights.txt.gz")
        for name, seed in (("phrase", 1), ("phrase", 2), ("phrase_mean", 0))
    ]
    first, second, mean = (names.named(range(len(names)), values) for names, values in weights)
    assert first != second
    for name, value in mean.items():
        assert value == pytest.approx((first.get(name, 0.0) + second.get(name, 0.0)) / 2)
    table = (tmp_path / "table.md").read_text("utf-8")
    for r in results.values():
        assert f"| {r.row} | {r.method} | +PT+AL+LO |" in table and 0 < r.test < 100
        assert f"| {r.dev:.2f} | {r.devtest:.2f} |" in table
        assert (r.p_test is None) == (r.row == "phrase" or r.seed == 0)
    assert "; hiero (seed 1, 2, 3, 4, 5);" in table and "run: phrase (seed 3, 4, 5);" in table
    # Scales and metrics of minimum Bayes risk; BLEU+1 and scale 1 are those of the rows.
    monkeypatch.setattr(
        "sys.argv", ["mbr.py", *given[:1], *given[-2:], "--output", f"{tmp_path}/mbr.csv"]
    )
    assert mbr.main() == 0
    with open(tmp_path / "mbr.csv", encoding="utf-8") as file:
        tried = list(csv.DictReader(file))
    assert len(tried) == len(mbr.SETS) * (1 + len(mbr.METRICS) * (len(mbr.SCALES) + 1))
    for how, metric, scale in (("", "", ""), ("_mbr", "bleu_plus_one", "1")):
        for line in tried:
            if (line["metric"], line["scale"]) == (metric, scale):
                expected = getattr(results[f"phrase{how}", 1], line["set"])
                assert float(line["bleu"]) == pytest.approx(expected, abs=0.0051)
    on_dev = [line for line in tried if line["set"] == "dev" and line["scale"]]
    assert {line["share"] for line in on_dev if line["scale"] == "0"} == {"1.0"}
    assert float(on_dev[-1]["share"]) == pytest.approx(mbr.SHARE, abs=0.002)
    # What is done is not done again, and published rows stay.
    monkeypatch.setattr(better, "complete", lambda run: pytest.fail("tuned again"))
    published = ["--publish", str(tmp_path / "page"), "--corpora", "multi30k", "--rows", "hiero"]
    monkeypatch.setattr(better, "do_row", lambda *_: True)
    monkeypatch.setattr(better, "Corpus", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["better.py", *published, "--folder", str(tmp_path)])
    assert better.main() == 0
    assert (tmp_path / "page" / "table.csv").read_text() == (tmp_path / "table.csv").read_text()
    # A joint decoder starts from the weights of its parts.
    asked = better.parse(given)
    assert better.write_start("example", "joint_started", 1, asked) is None
    place.rename(tmp_path / "example" / "hiero")
    place.with_name("phrase_mean").rename(place)
    (place / "seed0").rename(place / "seed1")
    path = better.write_start("example", "joint_started", 1, asked)
    assert path is not None
    # Hiero has no limit of distortion, and phrases are those with the same one.
    place.rename(place.with_name("phrase_far"))
    far = better.write_start("example", "joint_started_far", 1, asked)
    assert far is not None and read_lines(far) == read_lines(path)
    assert better.write_start("example", "joint_started_near", 1, asked) is None
    names, values = better.read_any_weights(path)
    start = {f"hiero_{n}": v for n, v in first.items()} | {
        f"phrase_{n}": v for n, v in mean.items()
    }
    assert names.named(range(len(names)), values) == start


@pytest.mark.parametrize(
    ("option", "said"),
    [("regularizer.strength", "regularizer.strength=10"), ("min_count", "lexicalized:true,min_")],
)
def test_values_are_tried_within_dev(option, said, tmp_path, monkeypatch):
    monkeypatch.setattr(within_dev, "FOLDS", 2)
    given = ["--small", "--option", option, "--values", "10", "--folder", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["within_dev.py", *given, "--output", f"{tmp_path}/found.csv"])
    assert within_dev.main() == 0
    sets, place = {}, tmp_path / "example" / "within_dev"
    for fold, one in product((0, 1), ("dev", "test")):
        files = [place / f"fold{fold}" / f"{one}.{name}" for name in ("de", "en.0", "en.1")]
        sets[fold, one] = list(zip(*map(read_lines, files), strict=True))
    assert (sets[0, "dev"], sets[1, "dev"]) == (sets[1, "test"], sets[0, "test"])
    assert (
        len({*sets[0, "test"], *sets[1, "test"]}) == len(sets[0, "test"] + sets[1, "test"]) == 100
    )
    runs = [place / "phrase_lex" / f"{option}-10" / f"fold{fold}" for fold in (0, 1)]
    for run in runs:
        assert said in (run / ".hydra" / "overrides.yaml").read_text("utf-8")
    lines = [line for run in runs for line in read_lines(run / "test.translations.txt")]
    references = [list(row[1:]) for fold in (0, 1) for row in sets[fold, "test"]]
    expected = corpus_bleu(lines, references, lowercase=True).score
    with open(tmp_path / "found.csv", encoding="utf-8") as file:
        (line,) = csv.DictReader(file)
    assert float(line["bleu"]) == pytest.approx(expected, abs=0.0051)
    assert line | {"bleu": ""} == {
        **{"row": "phrase_lex", "corpus": "example", "seed": "1", "bleu": ""},
        **{"option": option, "value": "10"},
    }
