"""Damage to bytes, drawn at random."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

_PAGE = 4096
# At the ends of the ranges of integers, and numbers that are a little too large or too small.
_EXTREMES = (0, 1, -1, 127, 128, 255, 2**15, 2**31 - 1, 2**31, -(2**31), 2**32, 2**62, 2**63 - 1)


def mutated(
    data: bytes,
    draw: random.Random,
    others: Sequence[bytes] = (),
    tokens: Sequence[bytes] = (),
) -> bytes:
    """Return `data` after one to four pieces of damage.

    others: other inputs of the same kind: pieces of them are put in.
    tokens: strings that mean something in such inputs: they are put in, too.
    """
    kinds: list[Callable[[bytearray, random.Random], bytearray]] = list(_KINDS)
    if others:
        kinds.append(lambda text, draw: _spliced(text, draw, draw.choice(others)))
    if tokens:
        # As likely as all other damage together: little of that survives a parser's first look.
        kinds += [lambda text, draw: _put_in(text, draw, draw.choice(tokens))] * len(kinds)
    text = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 4))):
        text = draw.choice(kinds)(text, draw)
    return bytes(text)


def _place(text: bytearray, draw: random.Random) -> int:
    return draw.randrange(len(text) + 1)


def _piece(text: bytes, draw: random.Random) -> tuple[int, int]:
    """Return where a piece begins and ends; short ones are as likely as long ones."""
    first = draw.randrange(len(text) + 1)
    length = int(2 ** draw.uniform(0, max(1, len(text)).bit_length()))
    return first, min(len(text), first + length)


def _flip_bits(text: bytearray, draw: random.Random) -> bytearray:
    for _ in range(draw.choice((1, 1, 1, 8)) if text else 0):
        text[draw.randrange(len(text))] ^= 1 << draw.randrange(8)
    return text


def _change_bytes(text: bytearray, draw: random.Random) -> bytearray:
    for _ in range(draw.choice((1, 1, 4)) if text else 0):
        text[draw.randrange(len(text))] = draw.randrange(256)
    return text


def _truncate(text: bytearray, draw: random.Random) -> bytearray:
    return text[: _place(text, draw)]


def _remove(text: bytearray, draw: random.Random) -> bytearray:
    first, last = _piece(text, draw)
    del text[first:last]
    return text


def _insert(text: bytearray, draw: random.Random) -> bytearray:
    return _put_in(text, draw, draw.randbytes(draw.choice((1, 1, 2, 4, 8, 64))))


def _duplicate(text: bytearray, draw: random.Random) -> bytearray:
    first, last = _piece(text, draw)
    return _put_in(text, draw, bytes(text[first:last]))


def _zero(text: bytearray, draw: random.Random) -> bytearray:
    """Do what a disk does that has lost a page."""
    first = _place(text, draw) // _PAGE * _PAGE
    if draw.random() < 0.5:
        first, last = _piece(text, draw)
    else:
        last = min(len(text), first + _PAGE)
    text[first:last] = bytes(last - first)
    return text


def _extreme(text: bytearray, draw: random.Random) -> bytearray:
    """Overwrite an aligned integer."""
    width, code = draw.choice(((1, "B"), (2, "<H"), (4, "<I"), (8, "<Q")))
    if len(text) < width:
        return text
    first = draw.randrange(len(text) - width + 1) // width * width
    number = draw.choice(_EXTREMES) % 2 ** (8 * width)
    text[first : first + width] = struct.pack(code, number)
    return text


def _spliced(text: bytearray, draw: random.Random, other: bytes) -> bytearray:
    """Put a piece of another input in, or in the place of as long a piece."""
    first, last = _piece(other, draw)
    if draw.random() < 0.5:
        return _put_in(text, draw, other[first:last])
    place = _place(text, draw)
    text[place : place + last - first] = other[first:last]
    return text


def _put_in(text: bytearray, draw: random.Random, piece: bytes) -> bytearray:
    place = _place(text, draw)
    text[place:place] = piece
    return text


_KINDS: tuple[Callable[[bytearray, random.Random], bytearray], ...] = (
    _flip_bits,
    _change_bytes,
    _truncate,
    _remove,
    _insert,
    _duplicate,
    _zero,
    _extreme,
)
