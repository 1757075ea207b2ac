"""Random numbers that are a function of key and counter."""

from __future__ import annotations

import numpy as np

from torchtune_smt.core.arrays import Int64
from torchtune_smt.core.compiled import kernel

GAMMA = np.uint64(0x9E3779B97F4A7C15)


@kernel
def mix(x: np.uint64) -> np.uint64:
    """Return the 64 bits of `x` scrambled (the finisher of splitmix64; a bijection)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@kernel
def make_key(parts: Int64) -> np.uint64:
    """Return the key of a random stream that is named by some integers."""
    key = np.uint64(0)
    for part in parts:
        key = mix(key + GAMMA + np.uint64(part))
    return key


@kernel
def draw(key: np.uint64, counter: int) -> np.uint64:
    """Return number `counter` (64 random bits) of the stream `key`."""
    return mix(key + GAMMA * np.uint64(counter + 1))


@kernel
def below(bits: np.uint64, n: int) -> np.int64:
    """Return an integer in 0..n-1 from 32 random bits; its bias is below n / 2^32."""
    return np.int64(((bits & np.uint64(0xFFFFFFFF)) * np.uint64(n)) >> np.uint64(32))
