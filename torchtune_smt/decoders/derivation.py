"""How a translation came about, to be looked at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Derivation:
    """A rule that was used, and what its gaps were filled with.

    Attributes
    ----------
    source, target : str
        The sides of the rule; gaps are ``[1]`` and ``[2]``, in source order.
    begin, end : int
        The source words that it covers, gaps among them: from `begin`, counted from 0, to before
        `end`.
    parts : tuple of Derivation
        Of its gaps, in source order; of the whole sentence all that was glued together.
    """

    source: str
    target: str
    begin: int
    end: int
    parts: tuple[Derivation, ...] = ()
