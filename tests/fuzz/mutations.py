"""Damage to bytes, drawn at random."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

_PAGE = 4096
# At the ends of the ranges of integers, and numbers that are a little too large or too small.
_EXTREMES = (0, 1, -1, 127, 128, 255, 2**15, 2**31 - 1, 2**31, -(2**31), 2**32, 2**62, 2**63 - 1)


def mutated(
    data: bytes, draw: random.Random, others: Sequence[bytes] = (), tokens: Sequence[bytes] = ()
) -> bytes:
    """Return `data` after one to four pieces of damage.

    others: other inputs of the same kind: pieces of them are put in.
    tokens: strings that mean something in such inputs: they are put in, too.
    """
    kinds = ["bits", "bytes", "end", "removed", "inserted", "twice", "page", "zeros", "number"]
    kinds += ["spliced", "overwritten"] if others else []
    # As likely as all other damage together: little of that survives a parser's first look.
    kinds += ["token"] * len(kinds) if tokens else []
    text = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 4))):
        _damage(text, draw.choice(kinds), draw, others, tokens)
    return bytes(text)


def _piece(text: bytes, draw: random.Random) -> tuple[int, int]:
    """Return where a piece begins and ends; short ones are as likely as long ones."""
    first = draw.randrange(len(text) + 1)
    length = int(2 ** draw.uniform(0, max(1, len(text)).bit_length()))
    return first, min(len(text), first + length)


def _damage(
    text: bytearray,
    kind: str,
    draw: random.Random,
    others: Sequence[bytes],
    tokens: Sequence[bytes],
) -> None:
    first, last = _piece(text, draw)
    place = draw.randrange(len(text) + 1)
    if kind in ("bits", "bytes"):
        for _ in range(draw.choice((1, 1, 1, 8)) if text else 0):
            at = draw.randrange(len(text))
            text[at] = text[at] ^ 1 << draw.randrange(8) if kind == "bits" else draw.randrange(256)
    elif kind == "end":
        del text[place:]
    elif kind == "removed":
        del text[first:last]
    elif kind == "inserted":
        text[place:place] = draw.randbytes(draw.choice((1, 1, 2, 4, 8, 64)))
    elif kind == "twice":
        text[place:place] = text[first:last]
    elif kind == "token":
        text[place:place] = draw.choice(tokens)
    elif kind in ("page", "zeros"):
        if kind == "page":  # As a disk does that has lost one.
            first = place // _PAGE * _PAGE
            last = min(len(text), first + _PAGE)
        text[first:last] = bytes(last - first)
    elif kind == "number":
        width, code = draw.choice(((1, "B"), (2, "<H"), (4, "<I"), (8, "<Q")))
        if len(text) >= width:
            at = place // width * width % (len(text) // width * width)
            text[at : at + width] = struct.pack(code, draw.choice(_EXTREMES) % 2 ** (8 * width))
    else:
        other = draw.choice(others)
        first, last = _piece(other, draw)
        text[place : place + (last - first) * (kind == "overwritten")] = other[first:last]
