"""How a learning rate goes down."""

from __future__ import annotations

SCHEDULES = {"constant": 0.0, "inv_sqrt": 0.5, "1/t": 1.0}


def check_schedule(schedule: str) -> None:
    """Raise ValueError if a schedule is not known."""
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, not {schedule!r}")


def rate(lr: float, schedule: str, t: int) -> float:
    """Return lr · t^-p, with p = 0, ½ or 1 for "constant", "inv_sqrt" or "1/t"; t from 1.

    Raises ValueError where the schedule is another one.
    """
    check_schedule(schedule)
    return float(lr / t ** SCHEDULES[schedule])
