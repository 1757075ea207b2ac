"""Lists as tensors: functions of segments, any loss with autograd, batches of a data loader."""

import doctest
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from torchtune_smt import lists as tl
from torchtune_smt import prox
from torchtune_smt.core import segments
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.losses import (
    ExpectedGain,
    Hinge,
    HopeFear,
    Logistic,
    Perceptron,
    Ramp,
    Softmax,
    is_listwise,
)
from torchtune_smt.losses import base as of_lists
from torchtune_smt.samplers import AllPairs, ProSampler
from torchtune_smt.tuners.gradient import gradient

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
LOSSES = [Softmax(), ExpectedGain(0.3, 0.2), Ramp(1), Ramp(2), Ramp(3, 2.0), HopeFear(3.0)]
LOSSES += [Hinge("sum"), Logistic(), Perceptron("mean")]
SIZES = [3, 1, 5, 3, 2]


def some_lists(seed=1, sizes=SIZES, d=9):
    generator = np.random.default_rng(seed)
    table = generator.normal(size=(sum(sizes), d)) * (generator.random((sum(sizes), d)) < 0.4)
    gain, begin = table @ generator.normal(size=d), np.cumsum([0, *sizes])
    return tl.KBestLists.of_arrays(begin, table, [f"f{i}" for i in range(d)], gain=gain)


@pytest.mark.parametrize("device", DEVICES)
def test_functions_of_segments_are_those_of_each_list(device):
    begin = torch.tensor([0, 3, 3, 4, 9], device=device)
    generator = torch.Generator().manual_seed(1)
    scores = (1e3 * torch.randn(9, dtype=torch.float64, generator=generator)).to(device)
    gains = torch.rand(9, dtype=torch.float64, generator=generator).to(device)
    spans = [slice(a, b) for a, b in pairwise(begin.tolist())]
    logs, expected = tl.log_softmax(scores, begin), tl.expected_gain(scores, gains, begin)
    for s, span in enumerate(spans):
        one = scores[span].log_softmax(0)
        torch.testing.assert_close(logs[span], one)
        torch.testing.assert_close(expected[s], (one.exp() * gains[span]).sum())
    small = (scores / 1e3).requires_grad_()
    pairs = torch.tensor([[0, 2], [8, 4], [8, 5]], device=device)
    for function in (
        lambda s: tl.log_softmax(s, begin),
        lambda s: tl.expected_gain(s, gains, begin),
        lambda s: tl.margins(s, pairs),
    ):
        assert torch.autograd.gradcheck(function, small)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_any_loss_on_tensors_is_that_of_the_lists(loss, device):
    """Against each list by itself, and against what tuners compute."""
    lists = some_lists()
    pairs = tl.list_pairs(lists, AllPairs(), ())
    batch = lists.to_torch(device, pairs=pairs)
    model = tl.LogLinear(9, torch.float64, device)
    weights = np.random.default_rng(2).normal(size=9)
    model.weight.data[:] = torch.from_numpy(weights)
    losses = tl.loss_of_lists(loss, model(batch), batch)
    scores, gains = torch.from_numpy(lists.rows.dense(9) @ weights), torch.from_numpy(lists.gain)
    spans = [slice(*lists.begin[s : s + 2]) for s in range(len(lists))]
    if is_listwise(loss):
        expected = [
            loss(scores[None, a], gains[None, a])[0] if a.stop - a.start > 1 else torch.tensor(0.0)
            for a in spans
        ]
    else:
        expected = loss(scores[pairs[:, 0]] - scores[pairs[:, 1]])
    assert losses.tolist() == pytest.approx([float(x) for x in expected])
    with torch.no_grad():
        assert torch.equal(tl.loss_of_lists(loss, model(batch), batch), losses)
    losses.sum().backward()
    assert model.weight.grad.is_sparse
    found = gradient(lists, FrozenWeights(lists.features, weights), loss, AllPairs())
    count = found.count if loss.reduction == "mean" else 1
    dense = np.zeros(9)
    dense[found.feature] = found.value * count
    np.testing.assert_allclose(model.weight.grad.to_dense().cpu(), dense, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_a_loader_brings_every_list_with_its_pairs(device):
    lists, sampler = some_lists(), ProSampler(candidates=50, threshold=0.0, pairs=4)
    whole = lists.to_torch(device, pairs=tl.list_pairs(lists, sampler, (7,)))
    loader = DataLoader(tl.ListDataset(lists), 2, collate_fn=tl.Collate(sampler, (7,)))
    model = tl.LogLinear(9, torch.float64, device)
    model.weight.data[:] = torch.arange(9)
    batches = [batch.to(device) for batch in loader]
    assert [len(batch) for batch in batches] == [2, 2, 1]
    for function in (
        model,
        lambda b: tl.margins(model(b), b.pairs),
        lambda b: tl.expected_gain(model(b), b.gain, b.begin),
    ):
        torch.testing.assert_close(torch.cat([function(b) for b in batches]), function(whole))


def test_a_batch_that_has_nothing_to_choose_from():
    model = tl.LogLinear(9)
    batch = tl.Collate(AllPairs())([some_lists()[1]])
    for loss in (Softmax(), Logistic()):
        model.zero_grad()
        tl.loss_of_lists(loss, model(batch), batch).sum().backward()
        assert not model.weight.grad.to_dense().any()


def test_bad_batches_are_refused():
    lists = some_lists()
    batch = lists.to_torch()
    scores = tl.LogLinear(9)(batch)
    with pytest.raises(ValueError, match="pairs"):
        tl.loss_of_lists(Logistic(), scores, batch)
    with pytest.raises(IndexError):
        tl.LogLinear(5)(batch)
    for bad in (scores[1:], scores[:, None]):
        with pytest.raises(ValueError, match="14 hypotheses"):
            tl.loss_of_lists(Softmax(), bad, batch)
    # What is done to tensors is not done to the lists.
    batch.gain.zero_()
    assert lists.gain.any()


@pytest.mark.parametrize("module", [tl, prox, segments, of_lists], ids=lambda m: m.__name__)
def test_examples_of_docstrings(module):
    names = {"torch": torch}
    assert doctest.testmod(module, extraglobs=names).attempted
    assert doctest.testmod(module, extraglobs=names).failed == 0
