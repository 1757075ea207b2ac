"""Weights keep what they are given, wherever the numbers come from."""

import copy
import pickle

import pytest
import torch

from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.core.weights import Weights


def given(weights: Weights, values: list[float], how: str) -> Weights:
    """Return weights, or a copy of them, that have been given values in some way of torch."""
    new = torch.tensor(values, dtype=torch.float64)
    if how == "data":
        weights.parameter.data = new
    elif how == "vector_to_parameters":
        torch.nn.utils.vector_to_parameters(new, [weights.parameter])
    elif how == "float32":
        weights.parameter.data = new.float()
    else:
        weights.parameter.data[:] = new
        weights = (
            copy.deepcopy(weights) if how == "deepcopy" else pickle.loads(pickle.dumps(weights))
        )
    return weights


@pytest.mark.parametrize("how", ["data", "vector_to_parameters", "float32", "deepcopy", "pickle"])
def test_growing_keeps_the_numbers(how: str) -> None:
    old = Weights(["a", "b"])
    old.take(Vocabulary(["c"]))
    weights = given(old, [1.0, 2.0, 3.0], how)
    with torch.no_grad():
        weights.parameter += 1.0
    weights.take(Vocabulary(["d", *(f"more{i}" for i in range(40))]))
    assert weights.parameter[:3].tolist() == [2.0, 3.0, 4.0]
    assert len(weights) == 44 and not weights.parameter[3:].any()
    assert weights.parameter.dtype == (torch.float32 if how == "float32" else torch.float64)
    if how in ("deepcopy", "pickle"):
        assert old.parameter.tolist() == [1.0, 2.0, 3.0] and len(old.features) == 3


def test_growing_leaves_the_tensor_that_was_given_alone() -> None:
    whole = torch.arange(30, dtype=torch.float64)
    weights = Weights(["a"])
    weights.parameter.data = whole[:1]
    weights.take(Vocabulary(["b", "c"]))
    with torch.no_grad():
        weights.parameter += 7.0
    assert weights.parameter.tolist() == [7.0, 7.0, 7.0]
    assert whole.tolist() == list(range(30))
