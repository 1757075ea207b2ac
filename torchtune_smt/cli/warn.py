"""What a user is told and a command goes on after."""

from __future__ import annotations

import sys
from collections.abc import Iterable


def warn(sentences: Iterable[str]) -> None:
    """Print warnings on the standard error output, a line each."""
    for sentence in sentences:
        print(f"warning: {sentence}", file=sys.stderr, flush=True)
