"""The online tuner, on a decoder that re-ranks fixed lists, against a loop over plain dicts."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from small_lists import listed

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.base import Decoder
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.losses import Logistic
from torchtune_smt.optim import AdaGrad
from torchtune_smt.regularizers import L1
from torchtune_smt.runs.rounds import Progress, Rounds
from torchtune_smt.samplers import ProSampler
from torchtune_smt.tuners.online import OnlineTuner

DENSE = ["model", "length"]
START = {"model": 0.3, "length": -0.1}
LR, STRENGTH = 0.2, 0.05

Hypothesis = tuple[str, dict[str, float], float]
"""Words, features, gain."""


def random_lists(seed, sentences=7, size=12):
    rng = np.random.default_rng(seed)
    lists = []
    for i in range(sentences):
        hypotheses = []
        for h in range(size):
            sparse = {f"s:{n}": 1.0 for n in rng.choice(30, rng.integers(0, 4), replace=False)}
            values = dict(zip(DENSE, rng.normal(size=2).tolist(), strict=True)) | sparse
            hypotheses.append((f"w{i} h{h}", values, float(rng.random())))
        lists.append(hypotheses)
    return lists


@dataclass
class ListDecoder(Decoder):
    """Re-ranks given lists by the weights of the moment, which it writes down."""

    lists: list[list[Hypothesis]]
    dense_names: list[str] = field(default_factory=lambda: list(DENSE))
    features: Vocabulary = field(default_factory=lambda: Vocabulary(DENSE))
    words: Vocabulary = field(default_factory=Vocabulary)
    batches: list[list[int]] = field(default_factory=list)
    weights_read: list[dict[str, float]] = field(default_factory=list)

    def decode(self, sources, snapshot, *, k=None):
        self.batches.append([source.index for source in sources])
        names = sorted({n for s in sources for _, row, _ in self.lists[s.index] for n in row})
        values = snapshot.read(self.features, self.features.intern(names)).tolist()
        self.weights_read.append(dict(zip(names, values, strict=True)))
        return KBestLists.of(
            [self._kbest(source.index, self.weights_read[-1], k) for source in sources]
        )

    def _kbest(self, index, weight, k):
        ranked = rank(self.lists[index], weight)[:k]
        return listed(
            index,
            [{self.features.id(n): v for n, v in row.items()} for _, row, _ in ranked],
            tokens=[self.words.intern(words.split()) for words, _, _ in ranked],
            score=np.array([dot(row, weight) for _, row, _ in ranked]),
            features=self.features,
            words=self.words,
        )


@dataclass
class GivenGains:
    decoder: ListDecoder

    def gains(self, kbest):
        gain = {words: gain for words, _, gain in self.decoder.lists[kbest.index]}
        names = self.decoder.words.names
        return np.array([gain[" ".join(names(kbest.hypothesis(h)))] for h in range(len(kbest))])


def dot(row, weight):
    return sum(value * weight.get(name, 0.0) for name, value in row.items())


def rank(hypotheses, weight):
    return sorted(hypotheses, key=lambda hypothesis: -dot(hypothesis[1], weight))


def sentences_of(lists):
    best = [max(hypotheses, key=lambda hypothesis: hypothesis[2])[0] for hypotheses in lists]
    return Sentences.of([["f"]] * len(lists), [[words.split()] for words in best])


SAMPLER = ProSampler(candidates=50, pairs=6)


def make_tuner(lists, *, sampler=SAMPLER, strength=STRENGTH, start=None, **options):
    decoder = ListDecoder(lists)
    weights = Weights(DENSE)
    first = start or START
    weights.set(list(first), list(first.values()))
    optimizer = AdaGrad([weights.parameter], LR, L1(strength), unregularized=len(DENSE))
    given = (sentences_of(lists), GivenGains(decoder), sampler, Logistic(), optimizer)
    options = {"batch_size": 3, "seed": 1, "towards": "start" if start else "zero", **options}
    return OnlineTuner(decoder, weights, *given, **options), decoder


def values_of(weights):
    """The weights that are not 0, as they lie in memory."""
    values = weights.parameter.detach().tolist()
    names = weights.features.names(range(len(values)))
    return {name: value for name, value in zip(names, values, strict=True) if value}


def run(tuner, epochs):
    return [r.numbers for epoch in range(1, epochs + 1) for r in tuner.round(epoch)]


@dataclass
class Reference:
    """The same by the book: every regularised weight is shrunk after every step."""

    lists: list[list[Hypothesis]]
    sampler: ProSampler
    seed: int
    weight: dict[str, float] = field(default_factory=lambda: dict(START))
    center: dict[str, float] = field(default_factory=dict)
    squares: dict[str, float] = field(default_factory=dict)

    def step(self, batch, epoch):
        gradient = {}
        losses = []
        for index in batch:
            ranked = rank(self.lists[index], self.weight)
            for better, worse in self.sampled(ranked, index, epoch):
                names = ranked[better][1].keys() | ranked[worse][1].keys()
                x = {n: ranked[better][1].get(n, 0) - ranked[worse][1].get(n, 0) for n in names}
                z = dot(x, self.weight)
                losses.append(math.log1p(math.exp(-z)))
                for name, value in x.items():
                    if value:
                        gradient[name] = gradient.get(name, 0) - value / (1 + math.exp(z))
        if not losses:
            return 0.0, 0
        for name, g in gradient.items():
            self.squares[name] = self.squares.get(name, 0) + g * g
            if g:
                self.weight[name] = self.weight.get(name, 0) - LR * g / self.squares[name] ** 0.5
        for name, square in self.squares.items():
            if name not in DENSE and square:
                start = self.center.get(name, 0.0)
                w, c = self.weight.get(name, 0) - start, LR * STRENGTH / square**0.5
                self.weight[name] = start + math.copysign(max(abs(w) - c, 0), w)
        return sum(losses) / len(losses), len(losses)

    def sampled(self, ranked, index, epoch):
        kbest = listed(index, [{}] * len(ranked), [gain for _, _, gain in ranked])
        return self.sampler.sample(kbest, (self.seed, epoch, index))


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 5, 6, 8])
def test_weights_are_those_of_the_eager_method(seed):
    """Pulled to 0, or to a start that some features have and others, which come later, not."""
    lists, start = random_lists(seed), None
    if seed > 4:
        names = sorted({name for hypotheses in lists for _, row, _ in hypotheses for name in row})
        start = START | {name: 0.3 - 0.1 * i for i, name in enumerate(names[::3]) if i != 3}
    tuner, decoder = make_tuner(lists, seed=seed, start=start)
    reference = Reference(lists, SAMPLER, seed)
    if start is not None:
        reference.weight, reference.center = dict(start), start
    for epoch in (1, 2, 3):
        for report in tuner.round(epoch):
            # What the decoder read before the step: nothing stale.
            for name, value in decoder.weights_read[-1].items():
                assert value == pytest.approx(reference.weight.get(name, 0), abs=1e-12)
            before = dict(reference.weight)
            loss, pairs = reference.step(decoder.batches[-1], epoch)
            assert report.numbers["train/pairs"] == pairs
            assert report.numbers["train/loss"] == pytest.approx(loss, abs=1e-12)
            assert report.sentences == len(decoder.batches[-1])
            assert report.numbers["train/lr"] == LR
            gains = [rank(lists[i], before)[0][2] for i in decoder.batches[-1]]
            assert report.numbers["train/gain"] == pytest.approx(sum(gains) / len(gains))
        # All of them are up to date where an epoch ends and is evaluated.
        expected = {name: value for name, value in reference.weight.items() if value}
        assert values_of(tuner.weights) == pytest.approx(expected, abs=1e-12)
    # Regularisation has both removed some features and left others.
    same = sum(value == (start or {}).get(name, 0.0) for name, value in tuner.weights.items())
    assert len(DENSE) < len(tuner.weights) - same < len(tuner.weights)


def test_without_pairs_no_step():
    lists = random_lists(0)
    tuner, _ = make_tuner(lists, sampler=ProSampler(threshold=1.5))
    # What of a first epoch was done before it was taken up again is not known.
    reports = [r.numbers for epoch in (1, 2) for r in tuner.round(epoch, done=epoch % 2)]
    assert [(r["train/pairs"], r["train/loss"]) for r in reports] == [(0, 0.0)] * 5
    assert values_of(tuner.weights) == START
    # Every feature has been met all the same.
    names = {name for hypotheses in lists for _, row, _ in hypotheses for name in row}
    assert len(tuner.weights.features) == len(names)


def test_every_sentence_once_an_epoch_in_another_order_each_time_or_as_given():
    lists = random_lists(0)
    tuner, decoder = make_tuner(lists)
    run(tuner, 3)
    assert [len(batch) for batch in decoder.batches] == [3, 3, 1] * 3
    orders = [[i for batch in decoder.batches[3 * e : 3 * e + 3] for i in batch] for e in range(3)]
    assert all(sorted(order) == list(range(7)) for order in orders)
    assert orders[0] != orders[1] != orders[2]
    tuner, decoder = make_tuner(lists, shuffle=False, batch_size=5)
    run(tuner, 2)
    assert decoder.batches == [[0, 1, 2, 3, 4], [5, 6]] * 2


def test_features_met_during_evaluation_have_weight_0_in_the_end():
    lists = random_lists(1)
    tuner, _ = make_tuner(lists)
    scores = iter([0.0, 2.0, 1.0])

    def evaluate():
        tuner.weights.features.intern([f"late:{len(tuner.weights.features)}"])
        tuner.weights.grow()
        return next(scores)

    Rounds(tuner, evaluate, rounds=2).run()
    late = [n for n in tuner.weights.features.names(range(len(tuner.weights))) if n[:5] == "late:"]
    assert len(late) == 3
    assert not values_of(tuner.weights).keys() & set(late)


def test_subsets_are_numbered_anew_and_keep_their_place_in_the_bitext():
    references = [[["x"]], [["y"], ["z"]], [["w"]]]
    subset = Sentences.of([["a"], ["b"], ["c"]], references, training=True).subset([1, 2])
    found = [(s.index, s.words, s.train_index) for s in subset.sources]
    assert found == [(0, ["b"], 1), (1, ["c"], 2)]
    assert subset.references == references[1:]


@pytest.mark.parametrize("learns", [False, True])
def test_no_pair_in_the_first_epoch(learns):
    """Lists of one hypothesis, and gains that differ by too little, whole or taken up again."""
    lists = random_lists(3)
    for bad in (random_lists(3, size=1), [[(w, f, 0.5) for w, f, _ in row] for row in lists]):
        some = [*lists[:3], *bad[3:]] if learns else bad
        first, _ = make_tuner(some, shuffle=False)
        next(iter(first.round(1)))
        for resumed in (False, True):
            tuner, _ = make_tuner(some, shuffle=False)
            rounds = Rounds(tuner, lambda: 0.0, rounds=1)
            if resumed:
                tuner.weights.take(first.weights.features)
                tuner.load_state_dict(first.state_dict())
                rounds.progress = Progress(done=1, sentences=3)
            if learns:
                assert rounds.run().round == 2
            else:
                with pytest.raises(InputError, match="no list has a pair of hypotheses to learn"):
                    rounds.run()
