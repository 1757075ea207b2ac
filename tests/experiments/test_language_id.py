"""The comparison on languages runs, small, on the bundled example."""

import gzip
import sys

import language_id

from torchtune_smt.core.resources import example_folder


def test_small(tmp_path, monkeypatch, capsys):
    (tmp_path / "multi30k-de-en").mkdir()
    for language in ("de", "en"):
        text = (example_folder() / f"train.{language}").read_bytes()
        (tmp_path / "multi30k-de-en" / f"train.{language}.gz").write_bytes(gzip.compress(text))
    chosen = ["AdaGrad, L1", "SGDClassifier, l1"]
    arguments = ["--small", "--data", str(tmp_path), "--methods", *chosen]
    monkeypatch.setattr(sys, "argv", ["language_id.py", *arguments])
    assert language_id.main() == 0
    first, *_, adagrad, sklearn = capsys.readouterr().out.splitlines()
    assert "pieces of de, en" in first
    for method, line in zip(chosen, (adagrad, sklearn), strict=True):
        name, accuracy, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        assert name == method and float(accuracy.rstrip("%")) > 80
