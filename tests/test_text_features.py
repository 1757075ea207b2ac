"""Features of texts, expected errors, and weights pulled to where they started."""

import json
import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import run_command
from scipy.optimize import minimize

from torchtune_smt import KBestLists, Pro, Stochastic, Vocabulary, tune_lists
from torchtune_smt.core.errors import InputError
from torchtune_smt.evaluation.tuned import ListSet
from torchtune_smt.features.texts import NAMES, SHARES, TextFeatures, added_by
from torchtune_smt.kbest.order import scale_of
from torchtune_smt.losses import ExpectedGain, Logistic
from torchtune_smt.metrics import WordErrorRate
from torchtune_smt.optim import AdaGrad
from torchtune_smt.regularizers import L1, L2
from torchtune_smt.samplers import AllPairs
from torchtune_smt.tuners.expected import ExpectedErrors, spread


def records(seed, n, k=5, voting=0.0):
    """Lists in which wrong words differ; `own` is noise beside `good`, which counts errors."""
    generator = np.random.default_rng(seed)
    found = []
    for number in range(n):
        words = [f"w{w}" for w in generator.integers(0, 30, generator.integers(0, 7))]
        hypotheses = []
        for _ in range(k if number else 1):
            wrong = generator.random(len(words)) < 0.3
            text = [
                f"x{generator.integers(99)}" if x else w for w, x in zip(words, wrong, strict=True)
            ]
            good = -(1 - voting) * wrong.sum() + generator.standard_normal()
            own = generator.standard_normal()
            hypotheses.append({"text": " ".join(text), "features": {"good": good, "own": own}})
            hypotheses[-1]["score"] = 0.7 * good + 0.3 * own
        hypotheses.sort(key=lambda one: -one["score"])
        found.append(
            {"id": f"s{seed}-{number}", "hypotheses": hypotheses, "references": [" ".join(words)]}
        )
    return found


def as_set(name, some, vocabularies):
    lists = KBestLists.of_records(some, words=vocabularies[0], names=vocabularies[1])
    return ListSet(name, lists, [[one["references"][0].split()] for one in some])


def edits(a, b):
    """The edit distance, by its definition."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


def test_dense_features_by_brute_force() -> None:
    some = records(3, 40)
    some[1]["hypotheses"][0]["text"] = "w1 w1 w1 w2 w2"
    lists = KBestLists.of_records(some)
    start = np.array([0.7, 0.3])
    text = TextFeatures.of(lists, start)
    # New lists, with words and features in other vocabularies; and these themselves.
    other = KBestLists.of_records(records(4, 9), names=Vocabulary(["x", "own"]))
    for given, source in ((lists, some), (other, records(4, 9))):
        added = text.added(given)
        table = added.rows.dense(len(added.features))[:, added.features.lookup(NAMES)]
        h = 0
        for one in source:
            texts = [hypothesis["text"] for hypothesis in one["hypotheses"]]
            score = [hypothesis["score"] for hypothesis in one["hypotheses"]]
            for mine in texts:
                expected = []
                for scale in text.scales:
                    p = np.exp(scale * (np.array(score) - max(score)))
                    expected.append(p @ [edits(mine, theirs) for theirs in texts] / p.sum())
                there = [
                    max(1, sum(any(w in t["text"].split() for t in r["hypotheses"]) for r in some))
                    for w in mine.split()
                ]
                words = mine.split()
                expected += [edits(mine, texts[0]), len(words), sum(map(math.log, there))]
                expected.append(sum(n <= 3 for n in there))
                expected.append(sum(a == b for a, b in pairwise(words)))
                assert table[h] == pytest.approx(expected), (h, mine)
                h += 1
    assert list(SHARES) == list(NAMES[:3])


def test_the_scale_gives_lists_a_share_of_their_entropy() -> None:
    generator = np.random.default_rng(0)
    begin, score = np.array([0, 1, 5, 9, 20]), generator.standard_normal(20)
    for share in (0.05, 0.5, 0.9):
        scale = scale_of(begin, score, share)
        parts = []
        for a, b in ((1, 5), (5, 9), (9, 20)):
            p = np.exp(scale * score[a:b])
            p /= p.sum()
            parts.append(-(p @ np.log(p)) / math.log(b - a))
        assert np.mean(parts) == pytest.approx(share)
        # In whatever units.
        assert scale_of(begin, 1e-6 * score + 5, share) == pytest.approx(1e6 * scale, rel=1e-6)
    assert scale_of(begin, np.ones(20), 0.5) == 0


def test_the_spread_by_its_definition() -> None:
    lists = KBestLists.of_records(records(5, 20))
    table = lists.rows.dense(2)
    table[:, 1] = 1e9 / 3
    own = KBestLists.of_arrays(lists.begin, table, ["a", "b"])
    parts = [table[a:b] - table[a:b].mean(axis=0) for a, b in pairwise(lists.begin.tolist())]
    found = spread(own.begin, own.rows, 2)
    assert found[0] == pytest.approx(np.sqrt((np.vstack(parts)[:, 0] ** 2).mean()))
    assert found[1] == 0


def planted(seed, n=400, more=0):
    """Lists of which two features tell the gain, with noise, and others nothing."""
    generator = np.random.default_rng(seed)
    table = generator.standard_normal((5 * n, 3 + more))
    gain = table[:, 0] - table[:, 1] + 0.5 * generator.standard_normal(5 * n)
    names = ["a", "b", "c", *(f"n:{i}" for i in range(more))]
    return KBestLists.of_arrays(np.arange(0, 5 * n + 1, 5), table, names, gain=gain)


def test_expected_errors_are_those_of_the_loss() -> None:
    """By autograd, on features and gains that have a spread of 1, from a start at its scale."""
    lists = planted(1)
    size, gains = (
        spread(lists.begin, lists.rows, 3),
        np.std(lists.gain.reshape(-1, 5) - lists.gain.reshape(-1, 5).mean(axis=1, keepdims=True)),
    )
    start = np.array([0.3, 0.0, -0.2])
    found = ExpectedErrors(passes=3, batch_size=30).solve(lists, start, (5,))
    scaled = replace(lists, rows=lists.rows.scaled(1 / size), gain=lists.gain / gains)
    slow = Stochastic(
        AllPairs(),
        ExpectedGain(reduction="mean"),
        partial(AdaGrad, lr=0.1),
        3,
        30,
        towards="start",
    ).solve(scaled, found.report["scale"] * start * size, (5,))
    assert found.weights == pytest.approx(slow.weights / size / found.report["scale"])
    # Units are nobody's.
    factor = np.array([1e3, 1e-3, 7.0])
    units = replace(lists, rows=lists.rows.scaled(factor), gain=1e4 * lists.gain)
    other = ExpectedErrors(passes=3, batch_size=30).solve(units, 50 * start / factor, (5,))
    assert other.weights * factor == pytest.approx(50 * found.weights, rel=1e-6)


def test_expected_errors_find_what_is_true_and_leave_noise() -> None:
    lists, start = planted(2, 1500, more=300), np.zeros(303)
    start[0] = 0.5
    free = ExpectedErrors(lr=1.0).solve(lists, start, (0,)).weights
    pulled = ExpectedErrors(lr=1.0, strength=0.02).solve(lists, start, (0,)).weights
    assert np.count_nonzero(free[3:]) == 300
    assert np.count_nonzero(pulled[3:]) < 30
    assert -pulled[1] > 0.8 * pulled[0] > 50 * abs(pulled[2])
    test = planted(3, more=300)
    gain = [test.gain[test.best(weights)].mean() for weights in (start, free, pulled)]
    assert gain[0] < gain[1] < gain[2] - 0.2
    # Those without a colon are exempt, unless others are named.
    some = ExpectedErrors(strength=1e3, passes=1).solve(lists, start, (0,)).weights
    assert not some[3:].any()
    assert some[:2].all()
    named = ExpectedErrors(strength=1e3, passes=1, exempt=["n:7"]).solve(lists, start, (0,)).weights
    assert np.flatnonzero(named).tolist() == [0, 10]
    assert named[0] == 0.5


@pytest.mark.parametrize("regularizer", [L1(0.1), L2(0.3)])
def test_weights_are_pulled_to_the_start(regularizer) -> None:
    """A step of AdaGrad by hand, of a mean over all lists; and a pull that holds all."""
    lists, start = planted(4, 40), np.array([0.5, 0.4, 0.3])
    loss = ExpectedGain(reduction="mean")
    w = torch.tensor(start, requires_grad=True)
    scores = (torch.tensor(lists.rows.dense(3)) @ w).reshape(-1, 5)
    loss(scores, torch.tensor(lists.gain.reshape(-1, 5))).mean().backward()
    slope = w.grad.numpy()
    moved = torch.tensor(-0.1 * np.sign(slope))
    hand = start + regularizer.prox(moved, torch.tensor(0.1 / np.abs(slope))).numpy()
    optimizer = partial(AdaGrad, lr=0.1, regularizer=regularizer)
    solver = Stochastic(AllPairs(), loss, optimizer, 1, 40, towards="start")
    assert solver.solve(lists, start, (0,)).weights == pytest.approx(hand)
    strong = partial(AdaGrad, lr=0.1, regularizer=replace(regularizer, strength=1e9))
    # Steps of pairs are compiled where they need no center.
    for other in (loss, Logistic("each")):
        kept = Stochastic(AllPairs(), other, strong, 1, towards="start").solve(lists, start, (0,))
        assert kept.weights == pytest.approx(start, abs=1e-6)


def test_pro_has_its_prior_at_the_start() -> None:
    lists, start = planted(5, 60), np.array([0.5, 2.0, -1.0])
    differences = lists.rows.differences(
        np.array(
            [
                [a, b]
                for s in range(60)
                for a in range(5 * s, 5 * s + 5)
                for b in range(5 * s, 5 * s + 5)
                if lists.gain[a] > lists.gain[b]
            ]
        )
    ).dense(3)

    def objective(w):
        pull = ((w - start) ** 2).sum() / (2 * 0.1**2)
        return 2 * np.logaddexp(0, -differences @ w).sum() + pull

    best = minimize(objective, start).x
    found = Pro(AllPairs(), sigma=0.1, towards="start").solve(lists, start, (0,)).weights
    assert found == pytest.approx(best, abs=1e-3)
    assert Pro(AllPairs(), sigma=1e-6, towards="start").solve(lists, start, (0,)).weights == (
        pytest.approx(start, abs=1e-6)
    )


def test_texts_that_tell_errors_are_found(tmp_path: Path) -> None:
    """Features know little, and the others of a list much; on new lists, too, and in rerank."""
    names = Vocabulary(), Vocabulary()
    dev, test = (as_set(n, records(s, 600, voting=0.9), names) for n, s in (("d", 1), ("t", 2)))
    plain, dense = (
        tune_lists(dev, test, metric=WordErrorRate(), folds=2, samples=20, texts=texts)
        for texts in ("none", "auto")
    )
    assert plain.text_features is None
    assert "risk_sharp" in dense.text()
    for before, after in zip(plain.judged[1:], dense.judged[1:], strict=True):
        assert after.after < before.after - 1
    few = tune_lists(
        as_set("d", records(1, 60), (Vocabulary(), Vocabulary())),
        metric=WordErrorRate(),
        folds=0,
        samples=20,
    )
    assert few.text_features is None
    # Weights that were tuned on all folds say nothing of one.
    again = tune_lists(
        as_set("d", records(1, 60), (Vocabulary(), Vocabulary())),
        metric=WordErrorRate(),
        start=few.weights,
        folds=2,
        samples=20,
    )
    assert any("start" in note for note in again.notes)
    assert not any("start" in note for note in plain.notes)
    for name, seed in (("d", 1), ("t", 2)):
        lines = [json.dumps(one) + "\n" for one in records(seed, 600, voting=0.9)]
        (tmp_path / name).write_text("".join(lines))
    options = ["dev=d", "metric=wer", "folds=0", "samples=20"]
    run_command("tune", *options, folder=tmp_path).check()
    for name, judged in (("d", dense.judged[0]), ("t", dense.judged[2])):
        given = ["weights=tuned.weights.txt", f"input={name}", f"output={name}.out"]
        run_command("rerank", *given, folder=tmp_path).check()
        lines = (tmp_path / f"{name}.out").read_text().splitlines()
        source = records(1 if name == "d" else 2, 600, voting=0.9)
        references = [one["references"][0].split() for one in source]
        wrong = sum(
            edits(line.split()[1:], words) for line, words in zip(lines, references, strict=True)
        )
        assert 100 * wrong / sum(map(len, references)) == pytest.approx(judged.after)


def test_texts_that_tell_nothing_do_no_harm() -> None:
    """On lists whose texts are noise, what folds expect is no worse than the start by much."""
    lost = []
    for seed in range(4):
        some = records(seed, 500)
        generator = np.random.default_rng(seed)
        for one in some:
            for hypothesis in one["hypotheses"]:
                words = [f"w{w}" for w in generator.integers(0, 30, 6)]
                hypothesis["text"] = " ".join(words)
            one["references"] = [" ".join(f"w{w}" for w in generator.integers(0, 30, 6))]
        dev = as_set("d", some, (Vocabulary(), Vocabulary()))
        tuned = tune_lists(dev, metric=WordErrorRate(), samples=20, folds=3)
        lost.append(tuned.judged[1].after - tuned.judged[1].before)
    assert np.mean(lost) < 0.5


def test_what_is_refused(tmp_path: Path) -> None:
    lists = KBestLists.of_records(records(1, 5))
    text = TextFeatures.of(lists, np.array([0.7, 0.3]))
    with pytest.raises(InputError, match="risk_sharp"):
        text.added(text.added(lists))
    with pytest.raises(InputError, match="good"):
        text.added(KBestLists.of_records([{"hypotheses": [{"text": "a", "features": {"z": 1}}]}]))
    (tmp_path / "w").write_text(f"good 1\n# {text.comment()[:-5]}\n")
    with pytest.raises(InputError, match="whole"):
        TextFeatures.read(tmp_path / "w")
    for old, new in (
        (repr(text.scales[0]), "NaN"),
        ('"good": 0.7', '"good": 1e999'),
        ('"frequency": {', '"frequency": {"a": 1e999, '),
        ('"frequency": {', '"frequency": {"a": 0, '),
    ):
        assert old in text.comment()
        (tmp_path / "w").write_text(f"good 1\n# {text.comment().replace(old, new)}\n")
        with pytest.raises(InputError, match="whole"):
            TextFeatures.read(tmp_path / "w")
    for lines in (f"good 1\n# {text.comment()}\n", f"#{text.comment()}\r\ngood 1\r\n"):
        (tmp_path / "w").write_bytes(lines.encode())
        assert TextFeatures.read(tmp_path / "w") == text
    # The line is lost.
    (tmp_path / "w").write_text("good 1\nrisk_flat 1\n")
    assert added_by(tmp_path / "w", ["good"]) is None
    check = added_by(tmp_path / "w", ["good", "risk_flat"])
    with pytest.raises(InputError, match="risk_flat"):
        check(KBestLists.of_records(records(1, 5)))
    # Lists of Moses have another name for a feature of one value.
    some = records(1, 5)
    for one in some:
        for hypothesis in one["hypotheses"]:
            hypothesis["features"] = {f"{n}_0": v for n, v in hypothesis["features"].items()}
    moses, own = text.added(KBestLists.of_records(some)), text.added(lists)
    there = [
        one.rows.dense(len(one.features))[:, one.features.lookup(NAMES)] for one in (moses, own)
    ]
    assert (there[0] == there[1]).all()


def test_exempt_features_are_there_and_not_all() -> None:
    lists, start = planted(1, 20, more=2), np.zeros(5)
    for exempt, match in ((["lm"], "lm"), (["a", "b", "c", "n:0", "n:1"], "nothing")):
        with pytest.raises(InputError, match=match):
            ExpectedErrors(strength=0.1, exempt=exempt).solve(lists, start, (0,))
