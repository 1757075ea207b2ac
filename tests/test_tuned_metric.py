"""Weights are chosen by the metric that is tuned; BLEU stands beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import run_command

from torchtune_smt import KBestLists, KBestMira, Mert, measured, tune
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.weights_io import read_weights

SENTENCES = 12


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lists whose hypothesis with the best score elsewhere has the worst BLEU."""
    folder = tmp_path_factory.mktemp("metric")
    words = "the dog sees a cat near our old house"
    lines, scores = [], []
    for i in range(SENTENCES):
        reference, other = f"{words} {i}", f"one pets {i} friendly dogs at home"
        lines += [f"{i} ||| {reference} ||| a= {1 + i % 3} b= 0 ||| 0\n"]
        lines += [f"{i} ||| {other} ||| a= 0 b= {1 + i % 2} ||| 0\n"]
        scores += [f"{i} ||| {reference} ||| 0.2\n", f"{i} ||| {other} ||| 0.7\n"]
    (folder / "dev.nbest").write_text("".join(lines))
    (folder / "comet.scores").write_text("".join(scores))
    (folder / "dev.en").write_text("".join(f"{words} {i}\n" for i in range(SENTENCES)))
    (folder / "start").write_text("a_0 1\nb_0 0\n")
    return folder


class Length:
    """A metric of one's own: shorter is better; its corpus form is the mean of its sentences."""

    def bind(self, references, words):
        return self

    def gains(self, kbest):
        return np.array([-float(kbest.hypothesis(h).size) for h in range(len(kbest))])


TUNERS = {"pro": [], "mert": [], "online": ["optimizer.lr=1"], "stochastic": ["optimizer.lr=1"]}


@pytest.mark.parametrize("tuner", TUNERS)
def test_what_is_tuned_decides(place: Path, tuner: str) -> None:
    given = [f"tuner={tuner}", "decoder=kbest_files", "decoder.dev=dev.nbest", "data=files"]
    given += ["data.name=x", "data.source_language=de", "data.target_language=en"]
    given += ["data.train=null", "data.dev=[dev.en,dev.en]", "data.test=null", "init=file"]
    given += [
        "init.file=start",
        "metric=external",
        "metric.path=comet.scores",
        "data.tokenize=false",
    ]
    outcome = run_command(
        "train", *given, *TUNERS[tuner], f"hydra.run.dir={tuner}", folder=place
    ).check()
    assert "before tuning: dev comet 0.2000, dev BLEU 100.00" in outcome.out
    assert "dev comet 0.7000, BLEU" in outcome.out
    assert "gained nothing" not in outcome.out
    lines = outcome.out.splitlines()
    table = lines.index(next(line for line in lines if line.startswith("comet ")))
    assert lines[table + 1].split() == ["dev", "0.2000", "0.7000", "+0.5000"]
    assert lines[table + 2].startswith("BLEU ")
    records = [json.loads(line) for line in read_lines(place / tuner / "metrics.jsonl")]
    scores = [record["metric/dev"] for record in records if "metric/dev" in record]
    assert scores[0] == pytest.approx(0.2) and max(scores) == pytest.approx(0.7)
    found = read_weights(place / tuner / "weights.txt.gz")
    weights = dict(zip(found[0].names(range(len(found[0]))), found[1].tolist(), strict=True))
    assert weights["b_0"] > weights.get("a_0", 0.0)


def lists(place: Path, metric: object = None) -> KBestLists:
    from torchtune_smt.kbest.formats import read_lists

    stored = read_lists(place / "dev.nbest", dense=[])
    references = [[line.split()] for line in read_lines(place / "dev.en")]
    return measured(stored.lists, references, metric)  # type: ignore[arg-type]


@pytest.mark.parametrize("solver", [Mert(), KBestMira(C=1)], ids=["mert", "mira"])
def test_solvers_of_a_corpus_score_take_that_of_the_metric(place: Path, solver: object) -> None:
    for metric, better in ((None, "a"), (Length(), "b")):
        given = lists(place, metric)
        weights = tune(given, solver)  # type: ignore[arg-type]
        found = dict(zip(weights.features.names(range(2)), weights.values.tolist(), strict=True))
        assert max(found, key=found.__getitem__)[0] == better
    with pytest.raises(InputError, match="statistics"):
        tune(replace(given, statistics=None), solver)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "references",
    [
        ["a b"] * SENTENCES,
        [["a b"]] * SENTENCES,
        [["a", "b"]] * SENTENCES,
        [[["a b"]]] * SENTENCES,
        [[[""]]] * SENTENCES,
        [[["a"]]] * (SENTENCES - 1),
        [[["a"]]] * (SENTENCES + 1),
    ],
    ids=["a text", "texts", "one level less", "one word", "no word", "one less", "one too many"],
)
def test_references_of_another_shape(place: Path, references: list) -> None:
    with pytest.raises(ValueError, match="references"):
        measured(lists(place), references)
