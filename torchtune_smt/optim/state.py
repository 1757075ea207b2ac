"""What optimizers keep, as they declare it: it is made, lengthened, saved and checked by that."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchtune_smt.core.archive import DAMAGED, real, whole
from torchtune_smt.core.state import vector

DOUBLE = torch.float64
State = dict[str, Any]
Group = dict[str, Any]


@dataclass(frozen=True)
class Count:
    """A whole number, of steps or epochs; it begins with 0."""


@dataclass(frozen=True)
class Number:
    """A finite number, with what it begins with and is at least."""

    start: float = 0.0
    least: float = float("-inf")


@dataclass(frozen=True)
class Vector:
    """An entry for each coordinate of the parameter, or for each of its rows.

    fill: what one has that is new and up to date: a number, or that of a name in the state.
    dtype: integers say at which step, or epoch, something was done. By default the parameter's.
    mark: whether it says up to when a row has been updated.
    of_rows: whether it has one number for each row; marks do.
    """

    fill: float | str = 0.0
    dtype: torch.dtype | None = None
    least: float = float("-inf")
    mark: bool = False
    of_rows: bool = False

    def value(self, state: State) -> float:
        """Return what it has for a coordinate that is new."""
        return float(state[self.fill]) if isinstance(self.fill, str) else self.fill

    def trailing(self, weight: Tensor) -> torch.Size:
        """Return the shape of an entry, for a parameter as `rows_of` gives it."""
        return weight.shape[1:] if not (self.mark or self.of_rows) else torch.Size()


@dataclass(frozen=True)
class Path:
    """Numbers of 0 or more after each of the last steps, and before the first of them.

    It is called "path": a float64 tensor [steps + 1, numbers].

    start: what they begin with.
    """

    start: tuple[float, ...]
    least: float = 0.0


Kept = dict[str, Count | Number | Vector | Path]
"""What is kept of a parameter."""


def rows_of(parameter: Tensor) -> Tensor:
    """Return a parameter as rows, in the same memory: a vector, or of more dimensions.

    Rows are what it has along its first dimension. A number is a row; rows of one number are
    entries of a vector.
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
            shape = (0, *one.trailing(weight))
            state[name] = weight.new_empty(shape, dtype=one.dtype or weight.dtype)
        elif isinstance(one, Path):
            state[name] = with_step(weight.new_empty((0, len(one.start)), dtype=DOUBLE), *one.start)
        else:
            state[name] = 0 if isinstance(one, Count) else one.start
    return state


def check_state(entry: Mapping[str, Any], kept: Kept, weight: Tensor) -> None:
    """Raise ValueError if what was saved of a parameter cannot be what is kept of it."""
    longest, counts, lengths = len(weight), [0], set()
    for name, one in kept.items():
        if isinstance(one, Count):
            counts.append(whole(entry[name], 0))
        elif isinstance(one, Number):
            real(entry[name])
        else:
            if not torch.is_tensor(entry[name]) or entry[name].dim() == 0:
                raise ValueError(DAMAGED)
            if isinstance(one, Vector):
                lengths.add(len(entry[name]))
            elif entry[name].shape[1:] != (len(one.start),) or not len(entry[name]):
                raise ValueError(DAMAGED)
            else:
                vector(entry[name].reshape(-1), DOUBLE, (max(counts) + 1) * len(one.start))
    if len(lengths) > 1:
        raise ValueError(f"{DAMAGED}: its parts differ in length")
    if max(lengths, default=0) > longest:
        raise ValueError(
            f"the saved state has {max(lengths)} coordinates and the parameter {longest}: load the "
            "weights and their features first"
        )
    for name, one in kept.items():
        if isinstance(one, Vector):
            found = entry[name]
            trailing = one.trailing(weight)
            if trailing and found.shape[1:] == trailing:
                found = found.reshape(-1)
            found = vector(found, one.dtype or weight.dtype, longest * trailing.numel())
            times = not found.is_floating_point() and found.numel() > 0
            if times and not 0 <= int(found.min()) <= int(found.max()) <= max(counts):
                raise ValueError(f"{DAMAGED}: it is of later steps than were taken")
        if not isinstance(one, Count) and bool((torch.as_tensor(entry[name]) < one.least).any()):
            raise ValueError(f"{DAMAGED}: its {name} is out of range")


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
    """Return saved settings; raise ValueError unless each is of the kind of the one there is."""
    result = {}
    for name, value in saved.items():
        kind = type(own[name])
        if kind in (int, float):
            # What is as this optimizer has it may be infinite: a bound that bounds nothing.
            if type(value) is not kind or value != own[name]:
                real(value)
            if kind is int and not float(value).is_integer():
                raise ValueError(DAMAGED)
        elif torch.is_tensor(own[name]) and type(value) in (int, float):
            value = own[name].new_tensor(real(value))
        elif kind is tuple and isinstance(value, list):
            # Files know no other sequences.
            value = tuple(value)
        elif type(value) is not kind:
            raise ValueError(DAMAGED)
        result[name] = value
    return result


def group_like(
    saved: Mapping[str, Any], own: Mapping[str, Any], needed: Set[str]
) -> dict[str, Any]:
    """Return the saved settings of a group, if they can be those of the one there is.

    It may have more than are needed: schedules keep in a group what they begin with.

    Raises ValueError: they cannot.
    """
    others = saved.keys() - own.keys()
    sound = needed <= saved.keys() and saved["params"] == own["params"]
    if not sound or "regularizer" in saved or not all(isinstance(name, str) for name in others):
        raise ValueError(f"{DAMAGED}: its groups of parameters have other members")
    known = settings_like({name: saved[name] for name in saved.keys() & own.keys()}, own)
    return copy.deepcopy({name: saved[name] for name in others}) | known
