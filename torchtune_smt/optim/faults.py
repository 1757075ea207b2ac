"""What has gone wrong in steps on a device, which is told later: no step waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from torchtune_smt.core.errors import DivergenceError

GRADIENT, SQUARES, STALE = range(3)
_TOLD: Final = (
    (DivergenceError, "a gradient was not finite, or of rows that there are not"),
    (DivergenceError, "a sum of squared gradients was above what its type has"),
    (RuntimeError, "a gradient was of weights that were out of date when they were read"),
)


@dataclass
class _Found:
    """Faults on one device: a number for each kind, 0 where there is none; and a copy here."""

    there: Tensor
    here: Tensor
    event: Any
    sent: bool = False


class Faults:
    """Faults of the steps so far, on each device.

    From a fault on, gradients count as 0, until `known` has said it. A sum of squares that has
    become infinite stays so, and its weight where it is.
    """

    def __init__(self) -> None:
        self._found: dict[torch.device, _Found] = {}

    def of(self, device: torch.device) -> Tensor:
        """Return the numbers of a device, 0 where there is no fault: float32 [3], to be changed."""
        if device not in self._found:
            there, cuda = torch.zeros(3, device=device), device.type == "cuda"
            event: Any = torch.cuda.Event if cuda else lambda: None
            self._found[device] = _Found(there, torch.zeros(3, pin_memory=cuda), event())
        return self._found[device].there

    def note(self, kind: int, bad: Tensor) -> None:
        """Note a scalar that is 0 where there is no fault."""
        self.of(bad.device)[kind].add_(bad)

    def note_finite(self, kind: int, numbers: Tensor) -> None:
        """Note whether numbers are finite."""
        if numbers.numel():
            largest = torch.linalg.vector_norm(numbers.detach(), float("inf"))
            # 0, or NaN.
            self.note(kind, largest.mul_(0))

    def sound(self, gradient: Tensor) -> Tensor:
        """Return a gradient, or zeros where there was a fault."""
        found = self._found.get(gradient.device)
        return gradient if found is None else gradient.where(found.there.sum() == 0, 0)

    def send(self) -> None:
        """Let devices say what they have found, once they have found it."""
        for found in self._found.values():
            if not found.sent:
                found.here.copy_(found.there, non_blocking=True)
                if found.event is not None:
                    found.event.record()
                found.sent = True

    def known(self, *, wait: bool) -> tuple[type[Exception], str] | None:
        """Return what there is to raise, and forget it; with `wait`, what is not yet known, too."""
        for found in self._found.values():
            if wait:
                found.here.copy_(found.there)
            elif not found.sent or not (found.event is None or found.event.query()):
                continue
            found.sent = False
            kinds = [kind for kind, bad in enumerate(found.here.tolist()) if bad != 0]
            if kinds:
                found.there.zero_()
                return _TOLD[kinds[0]]
        return None
