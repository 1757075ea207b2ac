"""Features of texts, expected errors, and weights pulled to where they started."""

import json
import math
from dataclasses import fields, replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from commands import run_command
from scipy.optimize import minimize
from small_lists import as_set, edits, put

from torchtune_smt import KBestLists, Pro, Stochastic, Vocabulary, tune_lists
from torchtune_smt.core.errors import InputError
from torchtune_smt.features.texts import NAMES, SHARES, TextFeatures, added_by
from torchtune_smt.kbest.order import scale_of
from torchtune_smt.losses import ExpectedGain, Logistic
from torchtune_smt.metrics import WordErrorRate
from torchtune_smt.optim import FOBOS, AdaGrad
from torchtune_smt.regularizers import L1, L2, ElasticNet, GroupLasso, Oscar
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
            pairs = zip(words, wrong, strict=True)
            text = [f"x{generator.integers(99)}" if x else w for w, x in pairs]
            good = -(1 - voting) * wrong.sum() + generator.standard_normal()
            own = generator.standard_normal()
            features, score = {"good": good, "own": own}, 0.7 * good + 0.3 * own
            hypotheses.append({"text": " ".join(text), "features": features, "score": score})
        hypotheses.sort(key=lambda one: -one["score"])
        id, references = f"s{seed}-{number}", [" ".join(words)]
        found.append({"id": id, "hypotheses": hypotheses, "references": references})
    return found


def table_of(lists):
    return lists.rows.dense(len(lists.features))[:, lists.features.lookup(NAMES)]


@pytest.mark.parametrize("most", [1, 3, 100])
def test_dense_features_by_brute_force(most, monkeypatch):
    monkeypatch.setattr("torchtune_smt.features.texts.MOST", most)
    some = records(3, 40)
    some[1]["hypotheses"][0]["text"] = "w1 w1 w1 w2 w2"
    lists = KBestLists.of_records(some)
    text = TextFeatures.of(lists, np.array([0.7, 0.3]))
    # New lists, with words and features in other vocabularies; and these themselves.
    other = KBestLists.of_records(records(4, 9), names=Vocabulary(["x", "own"]))
    there = [{w for h in r["hypotheses"] for w in h["text"].split()} for r in some]
    for given, source in ((lists, some), (other, records(4, 9))):
        rows = iter(table_of(text.added(given)))
        for one in source:
            texts = [hypothesis["text"] for hypothesis in one["hypotheses"]]
            score = np.array([hypothesis["score"] for hypothesis in one["hypotheses"]])
            for mine in texts:
                expected, words = [], mine.split()
                for scale in text.scales:
                    p = np.exp(scale * (score - max(score)))
                    p[np.argsort(-score, kind="stable")[most:]] = 0
                    expected.append(p @ [edits(mine, theirs) for theirs in texts] / p.sum())
                count = [max(1, sum(w in known for known in there)) for w in words]
                expected += [edits(mine, texts[0]), len(words), sum(map(math.log, count))]
                expected += [sum(n <= 3 for n in count), sum(a == b for a, b in pairwise(words))]
                assert next(rows) == pytest.approx(expected), mine
    assert list(SHARES) == list(NAMES[:3])


def test_the_scale_gives_lists_a_share_of_their_entropy():
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


def test_the_spread_by_its_definition():
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


def test_expected_errors_are_those_of_the_loss():
    """By autograd, on features and gains that have a spread of 1, from a start at its scale."""
    lists, start = planted(1), np.array([0.3, 0.0, -0.2])
    size, gains = spread(lists.begin, lists.rows, 3), lists.gain.reshape(-1, 5)
    gains = np.std(gains - gains.mean(axis=1, keepdims=True))
    found = ExpectedErrors(passes=3, batch_size=30).solve(lists, start, (5,))
    scaled = replace(lists, rows=lists.rows.scaled(1 / size), gain=lists.gain / gains)
    loss, optimizer = ExpectedGain(reduction="mean"), partial(AdaGrad, lr=0.1)
    slow = Stochastic(AllPairs(), loss, optimizer, 3, 30, towards="start")
    slow = slow.solve(scaled, found.report["scale"] * start * size, (5,))
    assert found.weights == pytest.approx(slow.weights / size / found.report["scale"])
    # Units are nobody's.
    factor = np.array([1e3, 1e-3, 7.0])
    units = replace(lists, rows=lists.rows.scaled(factor), gain=1e4 * lists.gain)
    other = ExpectedErrors(passes=3, batch_size=30).solve(units, 50 * start / factor, (5,))
    assert other.weights * factor == pytest.approx(50 * found.weights, rel=1e-6)


def test_expected_errors_find_what_is_true_and_leave_noise():
    lists, start = planted(2, 1500, more=300), np.zeros(303)
    start[0] = 0.5
    free = ExpectedErrors(lr=1.0).solve(lists, start, (0,)).weights
    pulled = ExpectedErrors(lr=1.0, strength=0.02).solve(lists, start, (0,)).weights
    assert np.count_nonzero(free[3:]) == 300 > 30 > np.count_nonzero(pulled[3:])
    assert -pulled[1] > 0.8 * pulled[0] > 50 * abs(pulled[2])
    # As few at any size of a step, where the strength is more than noise's.
    for size in (10, 400):
        held = ExpectedErrors(strength=0.06, batch_size=size).solve(lists, start, (0,)).weights
        assert np.count_nonzero(held[3:]) < 30
    test = planted(3, more=300)
    gain = [test.gain[test.best(weights)].mean() for weights in (start, free, pulled)]
    assert gain[0] < gain[1] < gain[2] - 0.2
    # Those without a colon are exempt, unless others are named.
    some = ExpectedErrors(strength=1e3, passes=1).solve(lists, start, (0,)).weights
    assert not some[3:].any() and some[:2].all()
    named = ExpectedErrors(strength=1e3, passes=1, exempt=["n:7"]).solve(lists, start, (0,)).weights
    assert np.flatnonzero(named).tolist() == [0, 10] and named[0] == 0.5


PULLED = [(AdaGrad, L1(0.1)), (AdaGrad, L2(0.3)), (FOBOS, ElasticNet(0.1, 0.2))]
PULLED += [(FOBOS, GroupLasso(0.05)), (FOBOS, Oscar(0.02, 0.03))]


@pytest.mark.parametrize(("kind", "regularizer"), PULLED)
def test_weights_are_pulled_to_the_start(kind, regularizer, monkeypatch):
    """A step on the difference, along the gradient by autograd; and a pull that holds all."""
    lists, start = planted(4, 40), np.array([0.5, 0.4, 0.3])
    loss = ExpectedGain(reduction="mean")
    w = torch.tensor(start, requires_grad=True)
    scores = (torch.tensor(lists.rows.dense(3)) @ w).reshape(-1, 5)
    loss(scores, torch.tensor(lists.gain.reshape(-1, 5))).mean().backward()
    difference = torch.nn.Parameter(torch.zeros_like(w))
    eager = kind([difference], lr=0.1, regularizer=regularizer)
    difference.grad = w.grad
    eager.step()
    eager.flush()
    hand = start + difference.detach().numpy()
    assert np.any(hand != start)
    optimizer = partial(kind, lr=0.1, regularizer=regularizer)
    solver = Stochastic(AllPairs(), loss, optimizer, 1, 40, towards="start")
    assert solver.solve(lists, start, (0,)).weights == pytest.approx(hand)
    with monkeypatch.context() as patch:
        # As on a device, where all that steps need stays.
        patch.setattr(Stochastic, "_stays", True)
        assert solver.solve(lists, start, (0,)).weights == pytest.approx(hand)
    most = {one.name: 1e9 for one in fields(regularizer) if one.name != "dimension"}
    strong = partial(kind, lr=0.1, regularizer=replace(regularizer, **most))
    # Steps of pairs are compiled where they need no center.
    for other in (loss, Logistic("each")):
        kept = Stochastic(AllPairs(), other, strong, 1, towards="start").solve(lists, start, (0,))
        assert kept.weights == pytest.approx(start, abs=1e-6)


def test_pro_has_its_prior_at_the_start():
    lists, start = planted(5, 60), np.array([0.5, 2.0, -1.0])
    pairs = [(a, b) for s in range(0, 300, 5) for a in range(s, s + 5) for b in range(s, s + 5)]
    pairs = np.array([(a, b) for a, b in pairs if lists.gain[a] > lists.gain[b]])
    differences = lists.rows.differences(pairs).dense(3)

    def objective(w):
        pull = ((w - start) ** 2).sum() / (2 * 0.1**2)
        return 2 * np.logaddexp(0, -differences @ w).sum() + pull

    for sigma, best, near in ((0.1, minimize(objective, start).x, 1e-3), (1e-6, start, 1e-6)):
        found = Pro(AllPairs(), sigma=sigma, towards="start").solve(lists, start, (0,)).weights
        assert found == pytest.approx(best, abs=near)


def test_texts_that_tell_errors_are_found(tmp_path):
    """Features know little, and the others of a list much; on new lists, too, and in rerank."""
    made = {name: records(seed, 600, voting=0.9) for name, seed in (("d", 1), ("t", 2))}
    names = Vocabulary(), Vocabulary()
    dev, test = (as_set(name, some, names) for name, some in made.items())
    options = {"metric": WordErrorRate(), "samples": 20}
    plain, dense = (tune_lists(dev, test, **options, folds=2, texts=t) for t in ("none", "auto"))
    assert plain.text_features is None and "risk_sharp" in dense.text()
    for before, after in zip(plain.judged[1:], dense.judged[1:], strict=True):
        assert after.after < before.after - 1
    few = tune_lists(as_set("d", records(1, 60)), **options, folds=0)
    assert few.text_features is None
    # Weights that were tuned on all folds say nothing of one.
    again = tune_lists(as_set("d", records(1, 60)), **options, start=few.weights, folds=2)
    assert any("start" in note for note in again.notes)
    assert not any("start" in note for note in plain.notes)
    put(tmp_path, {name: map(json.dumps, some) for name, some in made.items()})
    run_command("tune", "dev=d", "metric=wer", "folds=0", "samples=20", folder=tmp_path).check()
    for (name, source), judged in zip(made.items(), dense.judged[::2], strict=True):
        given = ["weights=tuned.weights.txt", f"input={name}", f"output={name}.out"]
        run_command("rerank", *given, folder=tmp_path).check()
        lines = [line.split()[1:] for line in (tmp_path / f"{name}.out").read_text().splitlines()]
        references = [one["references"][0].split() for one in source]
        errors = sum(map(edits, lines, references)) / sum(map(len, references))
        assert 100 * errors == pytest.approx(judged.after)


def test_texts_that_tell_nothing_do_no_harm():
    """On lists whose texts are noise, what folds expect is no worse than the start by much."""
    lost = []
    for seed in range(4):
        some, generator = records(seed, 500), np.random.default_rng(seed)
        for one in some:
            *texts, reference = generator.integers(0, 30, (len(one["hypotheses"]) + 1, 6)).tolist()
            one["references"] = [" ".join(map(str, reference))]
            for hypothesis, words in zip(one["hypotheses"], texts, strict=True):
                hypothesis["text"] = " ".join(map(str, words))
        tuned = tune_lists(as_set("d", some), metric=WordErrorRate(), samples=20, folds=3)
        lost.append(tuned.judged[1].after - tuned.judged[1].before)
    assert np.mean(lost) < 0.5


def test_what_is_refused(tmp_path):
    lists, path = KBestLists.of_records(records(1, 5)), tmp_path / "w"
    text = TextFeatures.of(lists, np.array([0.7, 0.3]))
    other = KBestLists.of_records([{"hypotheses": [{"text": "a", "features": {"z": 1}}]}])
    for some, word in ((text.added(lists), "risk_sharp"), (other, "good")):
        with pytest.raises(InputError, match=word):
            text.added(some)
    path.write_text(f"good 1\n# {text.comment()[:-5]}\n")
    with pytest.raises(InputError, match="whole"):
        TextFeatures.read(path)
    for lines in (f"good 1\n# {text.comment()}\n", f"#{text.comment()}\r\ngood 1\r\n"):
        path.write_bytes(lines.encode())
        assert TextFeatures.read(path) == text
    # The line is lost.
    path.write_text("good 1\nrisk_flat 1\n")
    assert added_by(path, ["good"]) is None
    check = added_by(path, ["good", "risk_flat"])
    some = records(1, 5)
    with pytest.raises(InputError, match="risk_flat"):
        check(KBestLists.of_records(some))
    # Lists of Moses have another name for a feature of one value.
    for hypothesis in (h for one in some for h in one["hypotheses"]):
        hypothesis["features"] = {f"{n}_0": v for n, v in hypothesis["features"].items()}
    moses = KBestLists.of_records(some)
    assert (table_of(text.added(moses)) == table_of(text.added(lists))).all()
    # Exempt features are there, and not all.
    lists, start = planted(1, 20, more=2), np.zeros(5)
    for exempt, match in ((["lm"], "lm"), (["a", "b", "c", "n:0", "n:1"], "nothing")):
        with pytest.raises(InputError, match=match):
            ExpectedErrors(strength=0.1, exempt=exempt).solve(lists, start, (0,))
