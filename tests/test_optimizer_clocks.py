"""What optimizers add up over steps loses nothing in float32."""

import warnings
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from torchtune_smt.core.scoring import sparse_vector
from torchtune_smt.optim import FOBOS, SGD, CumulativeL1
from torchtune_smt.regularizers import L1, ElasticNet


@dataclass(frozen=True)
class Lazy:
    """An l1 norm that does not say of which form it is."""

    separable: ClassVar[bool] = True
    lazy: ClassVar[bool] = True

    def value(self, weights):
        """Return the penalty."""
        return weights.abs().sum()

    def prox(self, weights, step):
        """Return the soft threshold."""
        return L1(1.0).prox(weights, step)


@pytest.mark.parametrize(
    "build",
    [
        lambda p: FOBOS(p, 1.0, L1(1.0), schedule="constant", average="step"),
        lambda p: FOBOS(p, 1.0, ElasticNet(1.0, 0.01), schedule="constant", average="epoch"),
        lambda p: FOBOS(p, 1.0, Lazy(), schedule="constant"),
        lambda p: CumulativeL1(p, 1.0, L1(1.0)),
        lambda p: SGD(p, 1.0, average="step"),
    ],
    ids=["L1", "ElasticNet", "Lazy", "CumulativeL1", "SGD"],
)
def test_small_steps_after_a_large_one(build):
    found = []
    for dtype in (torch.float32, torch.float64):
        weight = torch.nn.Parameter(torch.zeros(2, dtype=dtype))
        optimizer = build([weight])

        def step(place, gradient, rate, weight=weight, optimizer=optimizer):
            optimizer.param_groups[0]["lr"] = rate
            values = torch.tensor([gradient], dtype=weight.dtype)
            weight.grad = sparse_vector(torch.tensor([place]), values, 2)
            optimizer.step()

        step(1, -1.0, 3e3)
        step(0, -1e5, 1e-5)
        for _ in range(300):
            step(0, 0.0, 1e-5)
        optimizer.end_epoch()
        optimizer.flush()
        averages = optimizer.param_groups[0].get("average")
        mean = optimizer.averaged() if averages not in (None, "none") else weight.detach()
        assert weight.dtype == mean.dtype == dtype
        found.append(torch.stack([weight.detach(), mean]).double())
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


def test_who_takes_a_state_while_updates_are_put_off_is_told():
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = FOBOS([weight], 0.1, L1(0.1))
    weight.grad = sparse_vector(torch.tensor([0]), torch.tensor([1.0]).double(), 3)
    optimizer.step()
    for take, what in ((optimizer.state_dict, "saved"), (lambda: deepcopy(optimizer), "copied")):
        with pytest.warns(UserWarning, match=f"FOBOS is {what} while .* call flush"):
            take()
    with pytest.warns(UserWarning, match="is shown while"):
        repr(optimizer)
    optimizer.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert deepcopy(optimizer).state_dict()["state"]
        assert "lr" in repr(optimizer)
        # Nothing is put off without a regularizer.
        other = SGD([weight], 0.1)
        other.step()
        other.state_dict()
