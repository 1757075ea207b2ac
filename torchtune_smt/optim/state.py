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
    """An entry for each coordinate of the parameter.

    Attributes
    ----------
    fill : float or str
        What a coordinate has that is new and up to date: a number, or that of a name in the state.
    dtype : torch.dtype, optional
        Integers say at which step, or epoch, something was done. By default the parameter's.
    least : float
    mark : bool
        Whether it says up to when a coordinate has been updated.
    """

    fill: float | str = 0.0
    dtype: torch.dtype | None = None
    least: float = float("-inf")
    mark: bool = False

    def value(self, state: State) -> float:
        """Return what it has for a coordinate that is new."""
        return float(state[self.fill]) if isinstance(self.fill, str) else self.fill


Kept = dict[str, Count | Number | Vector]
"""What is kept of a parameter."""


def new_state(kept: Kept, parameter: Tensor) -> State:
    """Return the numbers of a state, and its vectors, of length 0."""
    state: State = {}
    for name, one in kept.items():
        if isinstance(one, Vector):
            state[name] = parameter.new_empty(0, dtype=one.dtype or parameter.dtype)
        else:
            state[name] = 0 if isinstance(one, Count) else one.start
    return state


def check_state(entry: Mapping[str, Any], kept: Kept, parameter: Tensor) -> None:
    """Raise ValueError if what was saved of a parameter cannot be what is kept of it."""
    longest, counts, lengths = parameter.numel(), [0], set()
    for name, one in kept.items():
        if isinstance(one, Count):
            counts.append(whole(entry[name], 0))
        elif isinstance(one, Number):
            real(entry[name])
        else:
            lengths.add(entry[name].numel())
    if len(lengths) > 1:
        raise ValueError(f"{DAMAGED}: its parts differ in length")
    if max(lengths, default=0) > longest:
        raise ValueError(
            f"the saved state has {max(lengths)} coordinates and the parameter {longest}: load the "
            "weights and their features first"
        )
    for name, one in kept.items():
        if isinstance(one, Vector):
            found = vector(entry[name], one.dtype or parameter.dtype, longest)
            times = not found.is_floating_point() and found.numel() > 0
            if times and not 0 <= int(found.min()) <= int(found.max()) <= max(counts):
                raise ValueError(f"{DAMAGED}: it is of later steps than were taken")
        if not isinstance(one, Count) and bool((torch.as_tensor(entry[name]) < one.least).any()):
            raise ValueError(f"{DAMAGED}: its {name} is out of range")


def lengthened(tensor: Tensor, length: int, fill: float) -> Tensor:
    """Return a vector with its first entries those of `tensor`, its new ones `fill`.

    Room grows by a quarter at a time, so that growing costs O(1) an entry. Where there is room
    already, the result shares the memory of `tensor`. Room that is not in use is never
    written to, and takes no memory.
    """
    old = tensor.numel()
    room = tensor.untyped_storage().nbytes() // tensor.element_size()
    if length > room:
        larger = torch.empty(max(length, room * 5 // 4), dtype=tensor.dtype, device=tensor.device)
        larger[:old] = tensor
        tensor = larger
    longer = tensor.as_strided((length,), (1,))
    longer[old:] = fill
    return longer


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

    Raises
    ------
    ValueError
        They cannot.
    """
    others = saved.keys() - own.keys()
    sound = needed <= saved.keys() and saved["params"] == own["params"]
    if not sound or "regularizer" in saved or not all(isinstance(name, str) for name in others):
        raise ValueError(f"{DAMAGED}: its groups of parameters have other members")
    known = settings_like({name: saved[name] for name in saved.keys() & own.keys()}, own)
    return copy.deepcopy({name: saved[name] for name in others}) | known
