"""A binary max-heap of numbered candidates, in two arrays."""

from __future__ import annotations

from torchtune_smt.core.arrays import Float64, Int32
from torchtune_smt.core.compiled import inner


@inner
def heap_push(keys: Float64, values: Int32, first: int, size: int, key: float, value: int) -> None:
    """Add (key, value) to the heap of `size` entries that begins at `first`; there is room."""
    k = size
    while k > 0:
        parent = (k - 1) >> 1
        if keys[first + parent] >= key:
            break
        keys[first + k] = keys[first + parent]
        values[first + k] = values[first + parent]
        k = parent
    keys[first + k] = key
    values[first + k] = value


@inner
def heap_pop(keys: Float64, values: Int32, first: int, size: int) -> int:
    """Take the greatest entry out of a heap of `size` entries and return its value."""
    top: int = values[first]
    last = size - 1
    key = keys[first + last]
    value = values[first + last]
    k = 0
    while True:
        child = 2 * k + 1
        if child >= last:
            break
        if child + 1 < last and keys[first + child + 1] > keys[first + child]:
            child += 1
        if keys[first + child] <= key:
            break
        keys[first + k] = keys[first + child]
        values[first + k] = values[first + child]
        k = child
    keys[first + k] = key
    values[first + k] = value
    return top
