"""Mixing strategies against a loop over plain dicts and dense matrices, in one process."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_online import DENSE, START, GivenGains, ListDecoder, random_lists, sentences_of, values_of

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights
from torchtune_smt.losses import Hinge, Logistic, Perceptron
from torchtune_smt.optim import FOBOS, RDA, SGD, AdaGrad
from torchtune_smt.parallel.base import Work
from torchtune_smt.parallel.engine import InProcess
from torchtune_smt.parallel.mixing import (
    Columns,
    IterMix,
    IterSel,
    Mix,
    labelled_shards,
    random_shards,
)
from torchtune_smt.parallel.shard_worker import OwnFeatures, ShardWorker
from torchtune_smt.regularizers import L1, Oscar
from torchtune_smt.runs.rounds import Rounds
from torchtune_smt.samplers import ProSampler
from torchtune_smt.tuners.online import OnlineTuner

SEED, SHARDS, EPOCHS = 3, 4, 3
LISTS = random_lists(5, sentences=11)
SENTENCES = sentences_of(LISTS)
# A loss and an optimizer.
SETTINGS = {
    "adagrad": (Logistic("sum"), partial(AdaGrad, lr=0.2, regularizer=L1(0.05), unregularized=2)),
    "perceptron": (Perceptron("each"), partial(SGD, lr=0.1, average="none")),
    "oscar": (
        Hinge("mean"),
        partial(FOBOS, lr=0.2, regularizer=Oscar(1e-3, 1e-4, 40), unregularized=2),
    ),
    "rda": (Logistic("sum"), partial(RDA, lr=0.2, regularizer=L1(0.05), unregularized=2)),
    "torch": (Logistic("sum"), partial(torch.optim.SparseAdam, lr=0.1)),
}


def make(settings, weights, sentences, decoder):
    loss, optimizer = settings
    inner = decoder.decoder if isinstance(decoder, OwnFeatures) else decoder
    assert isinstance(inner, ListDecoder)
    return OnlineTuner(
        decoder,
        weights,
        sentences,
        GivenGains(inner),
        ProSampler(candidates=50, pairs=6),
        loss,
        optimizer([weights.parameter]),
        batch_size=2,
        seed=SEED,
    )


def start():
    weights = Weights(DENSE)
    weights.set(list(START), list(START.values()))
    return weights


def tuner_of(strategy, settings, engine=None):
    decoder = ListDecoder(LISTS)
    build = partial(make, settings)
    if engine is None:
        engine = InProcess()
        engine.serve(lambda: ShardWorker(build, decoder))
    lines = list(range(1, len(SENTENCES) + 1))
    return strategy.tuner(Work(build, start(), SENTENCES, decoder, engine, SEED, lines, len(lines)))


def rounds_of(tuner, **options):
    return Rounds(tuner, lambda: 0.0, rounds=EPOCHS, **{"result": "last", **options})


def reference(algorithm, settings, k=0):
    """What the shards have come to after each epoch: the algorithms as they are printed."""
    shards = random_shards(len(SENTENCES), SHARDS, SEED)
    tuners = []
    v = dict(START)
    mixed = []
    for epoch in range(1, EPOCHS + 1):
        if algorithm != 2 or epoch == 1:
            tuners = []
            for shard in shards:
                weights = Weights(DENSE)
                weights.set(list(v), list(v.values()))
                tuners.append(make(settings, weights, SENTENCES.part(shard), ListDecoder(LISTS)))
        for tuner in tuners:
            list(tuner.round(epoch))
        columns = [values_of(tuner.weights) for tuner in tuners]
        names = sorted({name for column in columns for name in column})
        matrix = np.array([[column.get(name, 0.0) for name in names] for column in columns])
        mean = dict(zip(names, matrix.mean(0).tolist(), strict=True))
        if algorithm == 4:
            norm = dict(zip(names, np.linalg.norm(matrix, axis=0).tolist(), strict=True))
            sparse = sorted(set(names) - set(DENSE), key=lambda name: (-norm[name], name))
            mean = {name: mean[name] for name in [*DENSE, *sparse[:k]]}
        v = mean
        mixed.append(v)
    return mixed


CASES = [
    *((IterMix(SHARDS), 3, 0, name) for name in SETTINGS),
    *((Mix(SHARDS), 2, 0, name) for name in SETTINGS),
    *((IterSel(features=k, shards=SHARDS), 4, k, "perceptron") for k in (1, 9)),
]


@pytest.mark.parametrize("result", ["last", "average"])
@pytest.mark.parametrize(("strategy", "algorithm", "k", "name"), CASES)
def test_algorithms(strategy, algorithm, k, name, result):
    """Mix goes on with the state of each shard."""
    tuner = tuner_of(strategy, SETTINGS[name])
    rounds_of(tuner, result=result).run()
    mixed = reference(algorithm, SETTINGS[name], k)
    expected = {}
    for weights in mixed[-1:] if result == "last" else mixed:
        for feature, value in weights.items():
            part = value if result == "last" else value / EPOCHS
            expected[feature] = expected.get(feature, 0.0) + part
    expected = {feature: value for feature, value in expected.items() if value}
    assert values_of(tuner.weights) == pytest.approx(expected, abs=1e-12)
    assert algorithm == 4 or len(expected) > 10
    assert algorithm != 4 or len(mixed[-1]) == len(DENSE) + k


class Fresh(InProcess):
    def map(self, common, tasks):
        for task in tasks:
            self._worker = None
            yield from super().map(common, [task])


@pytest.mark.parametrize("strategy", [Mix(SHARDS), IterSel(features=9, shards=SHARDS)])
def test_what_a_worker_has_done_before_has_no_part_in_it(strategy):
    """To the last bit, although its decoder has met features in another order."""
    settings = SETTINGS["adagrad"]
    engine = Fresh()
    build = partial(make, settings)
    engine.serve(lambda: ShardWorker(build, ListDecoder(LISTS)))
    found = []
    for tuner in (tuner_of(strategy, settings), tuner_of(strategy, settings, engine)):
        rounds_of(tuner).run()
        found.append(values_of(tuner.weights))
    assert found[0] == found[1]


def test_shards_without_pairs():
    """Some may have none; if all have none there is nothing to learn from."""
    same = [[(words, row, 0.5) for words, row, _ in hypotheses] for hypotheses in LISTS]
    shards = random_shards(len(LISTS), SHARDS, SEED)
    lists = [same[i] if i in shards[1] else LISTS[i] for i in range(len(LISTS))]
    settings = SETTINGS["adagrad"]
    for chosen, pairs in ((lists, True), (same, False)):
        decoder = ListDecoder(chosen)
        engine = InProcess()
        engine.serve(lambda d=decoder: ShardWorker(partial(make, settings), d))
        tuner = tuner_of(IterMix(SHARDS), settings, engine)
        if pairs:
            found = [report.numbers["train/pairs"] for report in tuner.round(1)]
            assert found[1] == 0 < min(found[0], *found[2:])
        else:
            with pytest.raises(InputError, match="no list has a pair"):
                list(tuner.round(1))


def columns_of(matrix, names, n_dense):
    """The columns of a matrix whose rows come as shards send them: without zeros."""
    columns = Columns(Vocabulary(names[:n_dense]), n_dense, len(matrix))
    for row in matrix:
        there = [i for i in range(len(names)) if i < n_dense or row[i]]
        columns.add(FrozenWeights(Vocabulary([names[i] for i in there]), row[there]))
    return columns


matrices = st.integers(1, 5).flatmap(
    lambda z: st.lists(
        st.lists(st.sampled_from([0.0, 0.0, 0.5, -1.0, 2.0, 3.25]), min_size=z, max_size=z),
        min_size=3,
        max_size=12,
    ).map(lambda columns: np.array(columns).T)
)


# A norm that is the threshold is not above it.
@given(matrices, st.integers(1, 6), st.sampled_from([0.5, 1, 2]) | st.floats(0, 4), st.floats(0, 4))
def test_selection_is_that_of_the_dense_matrix(matrix, k, threshold, strength):
    names = [f"f{(7 * i) % 13:02d}" for i in range(matrix.shape[1])]
    columns = columns_of(matrix, names, 2)
    norm = np.linalg.norm(matrix, axis=0)
    mean = dict(zip(names, matrix.mean(0).tolist(), strict=True))
    order = sorted(range(2, len(names)), key=lambda i: (-norm[i], names[i]))

    def check(strategy, expected):
        mixed = strategy.combine(columns).tolist()
        found = dict(zip(columns.features.names(range(len(mixed))), mixed, strict=True))
        expected = {name: value for name, value in expected.items() if value}
        found = {name: value for name, value in found.items() if value}
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-15)

    kept = {*range(2), *order[:k]}
    check(IterSel(k), {names[i]: mean[names[i]] for i in kept})
    kept = {*range(2), *(i for i in order if norm[i] > threshold)}
    check(IterSel(None, threshold=threshold), {names[i]: mean[names[i]] for i in kept})
    # argmin_V ½‖V - W‖² + strength · Σ_k ‖V[:, k]‖₂, column by column, and the mean of its rows
    shrunk = matrix.copy()
    for i in range(2, len(names)):
        shrunk[:, i] *= max(0, 1 - strength / norm[i]) if norm[i] else 0
    expected = dict(zip(names, shrunk.mean(0).tolist(), strict=True))
    check(IterSel(None, strength=strength), expected)


def test_random_shards():
    shards, same, other = (random_shards(103, 8, seed) for seed in (1, 1, 2))
    assert {shard.size for shard in shards} == {12, 13}
    assert sorted(np.concatenate(shards).tolist()) == list(range(103))
    assert [s.tolist() for s in shards] == [s.tolist() for s in same] != [s.tolist() for s in other]
    with pytest.raises(InputError, match="parallel.shards=5, and there are 4 sentences"):
        random_shards(4, 5, 1)
    # About 1,000 sentences each.
    assert len(tuner_of(IterMix(), SETTINGS["adagrad"]).shards) == 1


def test_labels_make_shards(tmp_path):
    path = tmp_path / "labels"
    path.write_text("news\ntalk\n\nnews\nlaw\n")
    # Line 3 is none of those that are tuned on.
    shards = labelled_shards(str(path), [1, 2, 4, 5], 5)
    found = {label: shard.tolist() for label, shard in shards.items()}
    assert found == {"law": [3], "news": [0, 2], "talk": [1]}
    with pytest.raises(InputError, match="labels:3: has no label"):
        labelled_shards(str(path), [1, 2, 3], 5)
    # Fewer than the text has, and more: the labels of another text.
    for total in (6, 4):
        with pytest.raises(InputError, match=f"has 5 lines, and the text .* has {total}: each"):
            labelled_shards(str(path), [1, 4], total)
    lines = "".join("ab"[i % 2] + "\n" for i in range(len(SENTENCES)))
    path.write_text(lines)
    tuner = tuner_of(IterMix(labels=str(path)), SETTINGS["adagrad"])
    texts = [report.text for report in tuner.round(1)]
    assert [text.split(":")[0].strip() for text in texts] == ["shard a", "shard b"]
    path.write_text(lines.replace("a", "c", 1))
    with pytest.raises(ValueError, match="its shards had other sentences"):
        tuner_of(IterMix(labels=str(path)), SETTINGS["adagrad"]).load_state_dict(tuner.state_dict())
