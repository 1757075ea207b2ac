"""What optimizers keep, as they declare it: it is made, lengthened, saved and checked by that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchtune_smt.core.archive import DAMAGED

State = dict[str, Any]
Group = dict[str, Any]


@dataclass(frozen=True)
class Vector:
    """An entry for each coordinate of the parameter, or for each of its rows.

    fill: what one has that is new and up to date: a number, or that of a name in the state.
    dtype: integers say at which step, or epoch, something was done. By default the parameter's.
    of_rows: whether it has one number for each row.
    """

    fill: float | str = 0.0
    dtype: torch.dtype | None = None
    of_rows: bool = False

    def value(self, state: State) -> float:
        """Return what it has for a coordinate that is new."""
        return float(state[self.fill]) if isinstance(self.fill, str) else self.fill

    def empty(self, weight: Tensor) -> Tensor:
        """Return one without entries, for a parameter as `rows_of` gives it."""
        shape = () if self.of_rows else weight.shape[1:]
        return weight.new_empty((0, *shape), dtype=self.dtype or weight.dtype)


Kept = dict[str, float | tuple[float, ...] | Vector]
"""What is kept of a parameter: a number that begins so, where a whole one counts steps or epochs;
vectors; or numbers that begin so, after each of the last steps: float64 [steps + 1, numbers]."""


def rows_of(parameter: Tensor) -> Tensor:
    """Return a parameter as rows (along its first dimension) in the same memory.

    A number is a row; rows of one number are entries of a vector.
    """
    shape = parameter.shape
    if len(shape) == 1:
        return parameter
    rows = parameter.detach()
    return rows.view(-1) if shape[1:].numel() == 1 else rows


def nonzero_rows(rows: Tensor) -> Tensor:
    """Say of rows which of them are not all 0."""
    return rows != 0 if rows.dim() == 1 else (rows != 0).flatten(1).any(1)


def beside(numbers: Tensor, rows: Tensor) -> Tensor:
    """Return one number a row in the shape that goes with the rows: [n, 1, ...]."""
    if rows.dim() == numbers.dim():
        return numbers
    return numbers.view(-1, *[1] * (rows.dim() - 1))


def add_rows(
    target: Tensor, indices: Tensor, rows: Tensor, *, alpha: float = 1, once: bool = True
) -> None:
    """Add rows times `alpha`; with `once` False, repeated ones are the same, and added once."""
    if once:
        target.index_add_(0, indices, rows, alpha=alpha)
    else:
        target.index_copy_(0, indices, target.index_select(0, indices).add_(rows, alpha=alpha))


def regularized_rows(new: Tensor, old: Tensor, indices: Tensor, settings: Group) -> Tensor:
    """Return new rows, and old ones where they are exempt from regularisation."""
    first = settings["unregularized"]
    return torch.where(beside(indices < first, new), old, new) if first else new


def new_state(kept: Kept, weight: Tensor) -> State:
    """Return the numbers of a state, and its vectors, of length 0; `weight` as `rows_of` has it."""
    state: State = {}
    for name, one in kept.items():
        if isinstance(one, Vector):
            state[name] = one.empty(weight)
        elif isinstance(one, tuple):
            state[name] = with_step(weight.new_empty((0, len(one)), dtype=torch.float64), *one)
        else:
            state[name] = one
    return state


def check_same(what: str, saved: Any, own: Any) -> None:
    """Raise ValueError if what is named in a saved state is another one."""
    if saved != plain(own):
        raise ValueError(
            f"the saved state is of the {what} {saved}, and this is {plain(own)}: resume with the "
            "same"
        )


def check_state(entry: Mapping[str, Any], kept: Kept, weight: Tensor) -> None:
    """Raise ValueError if what was saved of a parameter cannot be what is kept of it."""
    lengths = {0}
    for name, one in kept.items():
        found = entry[name]
        if isinstance(one, Vector):
            empty = one.empty(weight)
            check_same("dtype", plain(found.dtype), empty.dtype)
            sound = found.shape[1:] == empty.shape[1:]
            lengths.add(len(found))
        elif isinstance(one, tuple):
            sound = len(found) > 0 and found.shape[1:] == (len(one),)
        else:
            sound = isinstance(found, int | float)
        if not sound:
            raise ValueError(DAMAGED)
    if max(lengths) > len(weight):
        raise ValueError(
            f"the saved state has {max(lengths)} coordinates and the parameter {len(weight)}: load "
            "the weights and their features first"
        )


def lengthened(tensor: Tensor, length: int, fill: float) -> Tensor:
    """Return a tensor with its first rows those of `tensor`, its new ones `fill`.

    Room grows by a quarter at a time, so that growing costs O(1) an entry. Where there is room
    already, the result shares the memory of `tensor`. Room that is not in use is never
    written to, and takes no memory.
    """
    old, one = len(tensor), tensor.shape[1:]
    room = tensor.untyped_storage().nbytes() // (tensor.element_size() * max(one.numel(), 1))
    if length > room:
        larger = tensor.new_empty((max(length, room * 5 // 4), *one))
        larger[:old] = tensor
        tensor = larger
    longer = tensor.as_strided((length, *one), tensor.stride())
    longer[old:] = fill
    return longer


def with_step(path: Tensor, *numbers: float) -> Tensor:
    """Return a path that is longer by a step; O(1), and nothing waits for a device."""
    path = lengthened(path, len(path) + 1, numbers[0])
    for column, number in enumerate(numbers[1:], 1):
        path[-1, column] = number
    return path


def saved_value(value: Any) -> Any:
    """Return a copy of what a state has: of an object its tensors."""
    if hasattr(value, "to_tensors"):
        return value.to_tensors()
    return value.clone() if torch.is_tensor(value) else value


def plain(value: Any) -> Any:
    """Return a setting as a number or a string: a regulariser is named, not stored."""
    if value is None or isinstance(value, int | float | str):
        return value
    kind = type(value)
    has_own = any("__repr__" in vars(parent) for parent in kind.__mro__[:-1])
    # The one that all objects have names an address.
    return repr(value) if has_own else f"{kind.__module__}.{kind.__qualname__}"


def by_itself(value: Any) -> Any:
    """Return a setting as it is now: torch changes a learning rate that is a tensor in place."""
    return value.item() if torch.is_tensor(value) and value.numel() == 1 else value


def settings_like(saved: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return saved settings, of the types of those there are: a file knows fewer."""
    result = {}
    for name, value in saved.items():
        if torch.is_tensor(own.get(name)):
            value = own[name].new_tensor(value)
        elif isinstance(own.get(name), tuple):
            value = tuple(value)
        result[name] = value
    return result
