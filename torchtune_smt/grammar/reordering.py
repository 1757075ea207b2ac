"""Types of lexicalised reordering models, as Moses names them."""

from __future__ import annotations

from dataclasses import dataclass

ORIENTATIONS = {
    "msd": ["monotone", "swap", "discontinuous"],
    "mslr": ["monotone", "swap", "discontinuous left", "discontinuous right"],
    "monotonicity": ["monotone", "other"],
    "leftright": ["right", "left"],
}
"""Orientations of each kind of model, in the order of a table's columns."""

_PARTS = {
    "unit": ["wbe", "phrase", "hier"],
    "kind": list(ORIENTATIONS),
    "direction": ["bidirectional", "backward", "forward", "unidirectional"],
    "side": ["fe", "f"],
    "features": ["allff"],
}


@dataclass(frozen=True)
class ReorderingType:
    """What the scores of a reordering table mean, by Moses's name of its type.

    kind: a key of `ORIENTATIONS`.
    unit: what orientation is told by when scores are estimated: words (``wbe``), phrases
        (``phrase``) or blocks of phrases (``hier``; Galley & Manning 2008).
    backward, forward: whether there are scores for the orientation of a phrase towards what comes
        before it, and towards what comes behind it. A table has the former first.
    target: whether scores depend on the target side (``fe``), or on the source side alone (``f``).
    """

    name: str
    kind: str
    unit: str
    backward: bool
    forward: bool
    target: bool

    @property
    def hierarchical(self) -> bool:
        """Whether a decoder, too, looks at blocks; words or phrases are all the same to it."""
        return self.unit == "hier"

    @property
    def orientations(self) -> int:
        """Number of orientations in one direction."""
        return len(ORIENTATIONS[self.kind])

    @property
    def scores(self) -> int:
        """Number of scores of a phrase."""
        return self.orientations * (self.backward + self.forward)

    def check_target(self) -> None:
        """Raise ValueError if scores depend on the source side alone, as none are extracted."""
        if not self.target:
            raise ValueError(
                f"the reordering type {self.name} has scores of source sides alone (f), which are "
                "not extracted; write fe"
            )

    @classmethod
    def parse(cls, name: str) -> ReorderingType:
        """Return the type of a name such as ``wbe-msd-bidirectional-fe-allff``.

        Raises ValueError: it is no such name, or that of a type that is not supported.
        """
        words = name.split("-")
        if "collapseff" in words:
            raise ValueError(
                f"the reordering type {name} adds up the scores of a direction (collapseff), which "
                "is not supported; write allff, and give each score a weight"
            )
        parts = {part: [w for w in words if w in own] for part, own in _PARTS.items()}
        unit, kind, direction, side, _ = parts.values()
        once = all(len(own) == 1 for own in (kind, direction, side))
        if not once or sum(map(len, parts.values())) < len(words) or len(unit) > 1:
            raise ValueError(
                f"{name} is no type of a reordering model, with a kind, direction and side,"
                " such as wbe-msd-bidirectional-fe-allff or hier-msd-bidirectional-fe"
            )
        return cls(
            name,
            kind[0],
            unit[0] if unit else "wbe",
            direction[0] != "forward",
            direction[0] in ("bidirectional", "forward"),
            side[0] == "fe",
        )


def reordering_names(kind: ReorderingType, name: str = "LexicalReordering0") -> list[str]:
    """Return the names of reordering scores."""
    return [f"{name}_{i}" for i in range(kind.scores)]
