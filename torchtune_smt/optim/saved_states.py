"""What optimizers save of their settings and states, and its checks."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Set
from typing import Any

import torch

from torchtune_smt.core.archive import DAMAGED, real, whole
from torchtune_smt.core.state import vector


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


def check_entry(
    entry: Mapping[str, Any],
    expected: Mapping[str, Any],
    longest: int,
    least: Mapping[str, float],
) -> None:
    """Raise ValueError if the saved numbers and vectors of a parameter cannot be its own.

    Parameters
    ----------
    entry : mapping
        What was saved.
    expected : mapping
        Numbers and vectors of the same names and kinds.
    longest : int
        Coordinates of the parameter.
    least : mapping of str to float
        What some of them are at least.
    """
    vectors = {name for name, value in expected.items() if torch.is_tensor(value)}
    counts = [0]
    for name in expected.keys() - vectors:
        if isinstance(expected[name], int):
            counts.append(whole(entry[name], 0))
        else:
            real(entry[name])
    shapes = {getattr(entry[name], "shape", None) for name in vectors}
    if len(shapes) > 1 or any(shape is None or len(shape) != 1 for shape in shapes):
        raise ValueError(f"{DAMAGED}: its parts differ in length")
    for name in vectors:
        if entry[name].numel() > longest:
            raise ValueError(
                f"the saved state has {entry[name].numel()} coordinates and the parameter "
                f"{longest}: load the weights and their features first"
            )
        found = vector(entry[name], expected[name].dtype, longest)
        # Integers say at which step, or epoch, something was done.
        times = not found.is_floating_point() and found.numel() > 0
        if times and not 0 <= int(found.min()) <= int(found.max()) <= max(counts):
            raise ValueError(f"{DAMAGED}: it is of later steps than were taken")
    for name in least.keys() & expected.keys():
        if bool((torch.as_tensor(entry[name]) < least[name]).any()):
            raise ValueError(f"{DAMAGED}: its {name} is out of range")
