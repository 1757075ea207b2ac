"""The reproduction of Simianer et al. (2012): options, resumption, the table; no tuning."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import domains
import measured
import pytest
import simianer2012
import simianer2012_results
import simianer2012_rows
from forecast import print_hours
from runs import Log, Run
from simianer2012_results import Result
from simianer2012_rows import ROWS
from tuned import TEST, Features, configuration


def options(tmp_path: Path, *arguments: str) -> simianer2012_rows.Options:
    given = simianer2012.parse(["--folder", str(tmp_path), *arguments])
    return simianer2012.as_options(given)


@pytest.mark.parametrize("key", ROWS)
def test_overrides_are_options_of_train(key: str, tmp_path: Path) -> None:
    row = ROWS[key]
    chosen = options(tmp_path, "--small", "--workers", "2", "--set", "decoder.max_span=9")
    cfg = configuration(simianer2012_rows.row_overrides("fisher", row, 3, chosen))
    assert (cfg.data.name, cfg.seed, cfg.decoder.max_span) == ("fisher", 3, 9)
    assert cfg.data.folders == [str(tmp_path / "fisher" / "data")]
    assert cfg.tuner.tune_on == row.tuning_set.split()[-1]
    assert len(cfg.features.templates) == (0 if row.features == "default" else 3)
    start = str(tmp_path / "fisher" / f"{row.start}-seed3" / "weights.txt.gz")
    assert cfg.init.file == (start if row.start else None)
    assert configuration(simianer2012_rows.corpus_overrides("fisher", chosen)).decoder.max_span == 9
    if row.algorithm in ("m", "4+m"):
        assert cfg.tuner.solver.C == 0.01
        assert (cfg.tuner.sparse == "scale") == (row.algorithm == "4+m")
        return
    assert cfg.tuner.epochs == 2
    if "a" in row.algorithm:
        assert cfg.optimizer._target_.endswith("AdaGrad") and cfg.tuner.result == "best"
        assert cfg.parallel._target_.endswith(".IterMix" if row.on_train else ".Serial")
        return
    assert cfg.decoder.k == 50
    assert cfg.loss.reduction == ("each" if row.algorithm == "1p" else "sum")
    algorithm = row.algorithm[-1] if "+" in row.algorithm else row.algorithm[0]
    strategy = {"1": "Serial", "2": "Mix", "3": "IterMix", "4": "IterSel"}[algorithm]
    assert cfg.parallel._target_.endswith(f".{strategy}")
    assert cfg.tuner.result == ("average" if algorithm in "12" else "last")
    if row.on_train:
        assert (cfg.tuner.sentences, cfg.engine.workers) == (60, 2)
        labels = str(tmp_path / "fisher" / "data" / "train.domains")
        shards = (None, labels) if row.by_domain else (2, None)
        assert (cfg.parallel.shards, cfg.parallel.labels) == shards


def test_rows_come_behind_those_that_they_start_from() -> None:
    keys = simianer2012_rows.with_starts(["4_then_dev_sparse", "4_started_sparse"])
    assert keys == ["1_dev_default", "4_train_sparse", "4_started_sparse", "4_then_dev_sparse"]
    assert simianer2012_rows.with_starts(list(ROWS)) == list(ROWS)


def test_paths_below_the_repository_are_relative(tmp_path: Path) -> None:
    chosen = simianer2012.as_options(simianer2012.parse([]))
    for key, row in ROWS.items():
        said = " ".join(simianer2012_rows.row_overrides("multi30k", row, 1, chosen))
        assert str(simianer2012.REPOSITORY) not in said, key


class FakeCorpus:
    """Stands for the corpus: BLEU is the number in a file, p a fifth of the difference of two."""

    def __init__(self) -> None:
        self.sizes = {"train": 29_000}
        self.tried: list[str] = []

    def score(self, name: str, overrides: object, folder: Path) -> float:
        (folder / f"{name}.translations.txt").write_text(f"{2.5 - 0.1 * len(self.tried)}\n")
        return 20.0 if name == "devtest" else 10.0

    def test(self, overrides: object, folder: Path, output: Path) -> Features:
        self.tried.append(folder.name)
        output.write_text(f"{0.25 * len(self.tried)}\n")
        return Features(1000, 10, 1000)

    def bleu(self, name: str, path: Path) -> float:
        return float(path.read_text())

    def p_value(self, name: str, one: Path, other: Path) -> float:
        return abs(float(one.read_text()) - float(other.read_text())) / 5


def test_rows_are_done_once_and_missing_ones_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def trained(run: Run) -> bool:
        run.folder.mkdir(parents=True, exist_ok=True)
        parts = '[{"begin": "2026-01-01", "end": "2026-01-02", "seconds": 240, "cpu": 120}]'
        overrides = str(list(run.overrides)).replace("'", '"')
        (run.folder / "run.json").write_text(f'{{"overrides": {overrides}, "parts": {parts}}}')
        return True

    monkeypatch.setattr(simianer2012, "complete", trained)
    monkeypatch.setattr(measured, "read_log", lambda folder: Log(2, 1, 31.0, 1000))
    corpus, chosen = FakeCorpus(), options(tmp_path, "--train-sentences", "500", "--epochs", "2")
    keys = ["2_train_sparse", "3_train_sparse", "4_train_sparse", "1_dev_default"]
    for _ in range(2):
        for key in keys:
            found = simianer2012.do_row(key, corpus, "multi30k", 1, chosen)  # type: ignore[arg-type]
            assert found is not None
    assert corpus.tried == [f"{key}-seed1" for key in keys]
    simianer2012_results.compare_rows(corpus, chosen.folder, "multi30k")  # type: ignore[arg-type]
    simianer2012_results.write_tables(chosen.folder, tmp_path / "out")
    lines = (tmp_path / "out" / "table.md").read_text().splitlines()
    heads = tuple(f"| {row.algorithm} |" for row in ROWS.values())
    rows = [line.split(" | ") for line in lines if line.startswith(heads)]
    assert len(rows) == len(ROWS)
    first = (
        "| 1 | dev | default | 1 | 2 | 1,000 | 20.00 | 1.00 | 10.00 | 2.00 | 1.00 | 12 | 28.00 |"
    )
    assert " | ".join(rows[0]) == first
    assert rows[1][3] == rows[2][3] == rows[3][3] == "not run"
    last = "| 4+m | train, then dev | +id,ng,shape | not run" + 9 * " | -" + " |"
    assert " | ".join(rows[11]) == last
    assert any(line.startswith("Multi30k, German-English") for line in lines)
    assert "Kept apart, as sentences of domain 4: " in "".join(lines)
    # p is 0.05 for neighbours, and 0.1 for 2 and 4: none is below 0.05.
    assert rows[4][:2] == ["| 2", "train (500 sentences)"]
    # Out of the domain it is 0.02 and 0.04.
    assert rows[4][7:9] == ["0.25", "10.00<sup>3,4</sup>"]
    result = Result.load(simianer2012_rows.place(chosen.folder, "multi30k", "4_train_sparse", 1))
    assert result is not None
    assert result.differs == pytest.approx({"2_train_sparse": 0.1, "3_train_sparse": 0.05})
    result.differs["2_train_sparse"] = 0.01
    result.save(simianer2012_rows.place(chosen.folder, "multi30k", "4_train_sparse", 1))
    simianer2012_results.write_tables(chosen.folder, tmp_path / "out")
    assert "| 0.75<sup>**2**</sup> |" in (tmp_path / "out" / "table.md").read_text()
    with (tmp_path / "out" / "table.csv").open(encoding="utf-8", newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["row"] for row in written] == sorted(keys)
    assert {row["out"] for row in written} == {"10.0"}
    assert json.loads(written[3]["differs"]) == result.differs
    # What is done takes no time; what was measured says how long others take.
    monkeypatch.setattr(simianer2012, "MEASURED", tmp_path / "out" / "table.csv")
    more = options(tmp_path, "--epochs", "10", "--seeds", "1", "2")
    rows = simianer2012.forecasts(["4_train_sparse"], ["multi30k", "fisher"], more)
    print_hours(rows, Path("out/table.csv"))
    *kept, _ = domains.read_split(domains.FOLDER / "multi30k.txt")["train"]
    expected = f"{10 * sum(lines.size for lines in kept) / 500 / 60:.2f}"
    assert capsys.readouterr().out.splitlines() == [
        "multi30k/4_train_sparse, seed 1: done",
        # A minute an epoch of 500 sentences.
        f"multi30k/4_train_sparse, seed 2: {expected} CPU hours",
        "fisher/4_train_sparse, seed 1: not known",
        "fisher/4_train_sparse, seed 2: not known",
        f"{expected} CPU hours at most, judged by out/table.csv, and 2 runs of which nothing is "
        "known",
    ]
    assert (simianer2012_rows.place(chosen.folder, "multi30k", keys[0], 1) / TEST).is_file()


def test_both_rows_have_the_same_p_when_one_is_done_again(tmp_path: Path) -> None:
    corpus, sets = FakeCorpus(), ("test", domains.OUT)
    keys = ("2_train_sparse", "3_train_sparse", "4_train_sparse")
    places = {key: simianer2012_rows.place(tmp_path, "fisher", key, 1) for key in keys}

    def do(key: str, bleu: float) -> None:
        places[key].mkdir(parents=True, exist_ok=True)
        for one in sets:
            (places[key] / f"{one}.translations.txt").write_text(f"{bleu}\n")
        Result(
            **dict.fromkeys(("method", "tuning_set", "features", "language_models"), ""),
            **dict.fromkeys(("begin", "end", "command"), ""),
            **dict.fromkeys(("training_sentences", "active", "reused", "atomic"), 0),
            **dict.fromkeys(("iterations", "best"), 0),
            **dict.fromkeys(("dev", "devtest", "minutes", "cpu_minutes"), 0.0),
            **{"row": key, "corpus": "fisher", "seed": 1, "test": bleu},
            **{"overrides": [], "versions": {}},
        ).save(places[key])

    def compared(key: str) -> dict[str, float]:
        simianer2012_results.compare_rows(corpus, tmp_path, "fisher")  # type: ignore[arg-type]
        result = Result.load(places[key])
        assert result is not None and result.differs == result.differs_out
        return result.differs

    for key, bleu in zip(keys, (0.0, 1.0, 2.0), strict=True):
        do(key, bleu)
    assert compared(keys[1]) == {keys[0]: 0.2, keys[2]: 0.2}
    do(keys[0], 0.5)
    assert compared(keys[1]) == {keys[0]: 0.1, keys[2]: 0.2}
    assert compared(keys[0]) == {keys[1]: 0.1, keys[2]: 0.3}
    assert compared(keys[2]) == {keys[0]: 0.3, keys[1]: 0.2}
    # Without the translations of the other one there is no p of it any more.
    for one in sets:
        (places[keys[2]] / f"{one}.translations.txt").unlink()
    do(keys[0], 0.0)
    assert compared(keys[2]) == {keys[1]: 0.2}
    assert compared(keys[0]) == {keys[1]: 0.2}


def test_the_command_says_nothing_of_the_machine(tmp_path: Path) -> None:
    arguments = ["--corpora", "fisher", "--epochs", "3", "--seeds", "1", "2", "--workers", "2"]
    assert options(tmp_path, *arguments, "--publish", str(tmp_path)).command == (
        "python scripts/experiments/reproduce/simianer2012.py --corpora fisher "
        "--epochs 3 --seeds 1 2 --workers 2"
    )
