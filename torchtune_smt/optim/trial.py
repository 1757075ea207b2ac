"""Trying an optimizer out on a few numbers, before hours are spent on decoding."""

from __future__ import annotations

import inspect
import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchtune_smt.core.scoring import sparse_vector
from torchtune_smt.core.state import packed, unpacked
from torchtune_smt.optim.adapter import LazyOptimizer, adapted
from torchtune_smt.optim.sparse import with_updates_put_off


def check_optimizer(build: Callable[[list[Tensor]], object]) -> None:
    """Take some steps as tuners do, also with a state that was saved.

    Parameters
    ----------
    build : callable
        Returns a new optimizer of a list of parameters.

    Raises
    ------
    TypeError
        It is no optimizer of torch, or lacks a method.
    ValueError
        It fails, or goes on with a saved state in another way than without.
    """
    parameter = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    made = build([parameter])
    name = type(made).__name__
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(f"{name} is no torch.optim.Optimizer: derive it from that class")
    optimizer = adapted(made)
    with _trying(made, "take a step on a sparse gradient"):
        _step(optimizer, parameter, 2)
    with _trying(made, "take a step once there are more weights"):
        _step(optimizer, parameter, 3)
    with _trying(made, "be saved"):
        with with_updates_put_off():
            state = _through_file(optimizer.state_dict())
    weights = parameter.detach().clone()
    with _trying(made, "take a step once there are more weights"):
        _step(optimizer, parameter, 4)
    with _trying(made, "end an epoch"):
        optimizer.flush()
        optimizer.end_epoch()

    again = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    resumed = adapted(build([again]))  # type: ignore[arg-type]
    again.data = weights
    with _trying(made, "be resumed"):
        resumed.load_state_dict(state)
        _step(resumed, again, 4)
        resumed.flush()
    if not torch.allclose(parameter, again, rtol=0, atol=0, equal_nan=True):
        raise ValueError(
            f"{name} goes on in another way when it is resumed: keep all that its steps depend on "
            "in self.state[parameter], as numbers and tensors, or in the param group"
        )


def _step(optimizer: LazyOptimizer, parameter: torch.nn.Parameter, length: int) -> None:
    """Lengthen the parameter, and take a step that touches its first and its last coordinate."""
    longer = parameter.new_zeros(length)
    longer[: parameter.numel()] = parameter.detach()
    parameter.data = longer
    indices = torch.tensor([0, length - 1])
    optimizer.zero_grad()
    optimizer.catch_up(indices)
    parameter.grad = sparse_vector(indices, parameter.new_tensor([1.0, -0.5]), length)
    optimizer.step()


def _through_file(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state as it comes out of a checkpoint, from which no objects are made."""
    try:
        tree, arrays = packed(state)
    except TypeError:
        raise ValueError("its state_dict has something that is no number, text or tensor") from None
    copies = {part: array.copy() for part, array in arrays.items()}
    result: dict[str, Any] = unpacked(json.loads(json.dumps(tree)), copies)
    return result


@contextmanager
def _trying(optimizer: object, what: str) -> Iterator[None]:
    """Say in the error what an optimizer, of whatever class, cannot do, and where it failed."""
    try:
        yield
    except Exception as error:
        kind = type(optimizer)
        files = {inspect.getsourcefile(parent) for parent in kind.__mro__[:-1]}
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in files]
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}, " if frames else ""
        reason = str(error).partition("\n")[0] or "not written"
        raise ValueError(
            f"{kind.__name__} cannot {what} ({place}{type(error).__name__}: {reason})"
        ) from None
