"""What stands in for training and corpora where reproductions are tested, and results."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import liu2013
from liu2013_results import Result
from liu2013_rows import ROWS, Options
from runs import Run
from tuned import Features


class FakeTrain:
    """Stands for train.py: writes what it would; dies, or tunes nothing, where it is told to."""

    pid = -1

    def __init__(
        self, *, dies: Sequence[str] = (), keeps: bool = True, untuned: Sequence[str] = ()
    ) -> None:
        self.commands: list[list[str]] = []
        self.dies = set(dies)
        self.keeps = keeps
        self.untuned = untuned
        self.code = 0

    def __call__(self, arguments: Sequence[str], log: IO[bytes]) -> FakeTrain:
        self.commands.append(list(arguments))
        log.write(b"begun\n")
        self.code = 0
        words = dict(a.partition("=")[::2] for a in arguments)
        if "-m" in arguments:
            option = words["hydra.sweep.subdir"].removeprefix("${").removesuffix("}")
            folders = [Path(words["hydra.sweep.dir"], v) for v in words[option].split(",")]
        else:
            folders = [Path(words.get("resume") or words["hydra.run.dir"])]
        for folder in folders:
            if not self.train(folder):
                self.code = 1
        return self

    def train(self, folder: Path) -> bool:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.name in self.dies:
            self.dies.remove(folder.name)
            if self.keeps:
                (folder / "checkpoint.pt").touch()
            (folder / "metrics.jsonl").write_text("half\n")
            return False
        best = 0 if folder.name in self.untuned else 1
        lines = [
            {"step": 0, "bleu/dev": 30.0},
            {"step": 1, "bleu/dev": 30.0 + best},
            {"step": 2, "bleu/dev": 30.0 + best / 2},
            {"step": 2, "bleu/dev_tuned": 30.0 + best, "best_iteration": best},
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        (folder / "checkpoint.pt").unlink(missing_ok=True)
        (folder / "weights.txt").write_text("LanguageModel 0.5\nrule_id:a 0.25\n")
        subprocess.run(["gzip", "-f", folder / "weights.txt"], check=True)
        return True

    def wait(self, timeout: float | None = None) -> int:
        return self.code

    def terminate(self) -> None:
        raise AssertionError("it has ended")


def options(tmp_path: Path, *arguments: str) -> Options:
    given = liu2013.parse(["--folder", str(tmp_path), *arguments])
    return liu2013.as_options(given)


def result(row: str, **changes: object) -> Result:
    described = ROWS[row]
    values = {
        "row": row,
        "corpus": "multi30k",
        "method": described.method,
        "tuning_set": described.tuning_set,
        "features": described.features,
        "language_models": described.language_models,
        "training_sentences": 2000 if "train" in described.tuning_set else 0,
        "active": 10,
        "reused": 9,
        "atomic": 10,
        "iterations": 7,
        "best": 4,
        "dev": 41.0,
        "devtest": 30.125,
        "test": 40.5,
        "minutes": 3.25,
        "cpu_minutes": 2.0,
        "begin": "2026-01-01",
        "end": "2026-01-02",
        "command": "python scripts/experiments/reproduce/liu2013.py --corpora multi30k",
        "seed": 1,
        "overrides": ["data=multi30k"],
        "versions": {"torch": "2.13.0"},
    }
    return Result(**(values | changes))


class FakeCorpus:
    """Stands for the corpus: BLEU is the number in a file, p the difference of two."""

    def __init__(self) -> None:
        self.sizes = {"train": 29_000}
        self.tried: list[str] = []

    def score(self, name: str, overrides: object, folder: Path) -> float:
        (folder / f"{name}.translations.txt").write_text(f"{2.5 - 0.1 * len(self.tried)}\n")
        return 30.0 + len(self.tried)

    def test(self, overrides: object, folder: Path, output: Path) -> Features:
        self.tried.append(f"{folder.parent.name}/{folder.name}")
        output.write_text(f"{0.25 * len(self.tried)}\n")
        return Features(1234, 10, 1234)

    def bleu(self, name: str, path: Path) -> float:
        return float(path.read_text())

    def p_value(self, name: str, baseline: Path, path: Path) -> float:
        return abs(float(baseline.read_text()) - float(path.read_text()))


def trained(run: Run) -> bool:
    """Write what is read of a run that has been done."""
    run.folder.mkdir(parents=True, exist_ok=True)
    parts = [{"begin": "2026-01-01", "end": "2026-01-02", "seconds": 240, "cpu": 120}]
    record = {"overrides": list(run.overrides), "parts": parts}
    (run.folder / "run.json").write_text(json.dumps(record))
    lines: list[dict[str, float]] = [{"step": 0, "bleu/dev": 30.0}]
    for epoch in (1, 2):
        lines.append({"step": 100 * epoch, "speed/sentences_per_second": 10.0 * epoch})
        lines.append({"step": 100 * epoch, "bleu/dev": 30.0 + epoch})
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    return True
