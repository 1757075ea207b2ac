"""How far to go along a direction."""

import math

import numpy as np
import pytest

from torchtune_smt.minimizer import Logistic, SquaredHinge
from torchtune_smt.minimizer.line_search import line_minimum


def searched(loss, margins, direction):
    """Return the step, and how often the loss was looked at."""
    margins, direction = np.array(margins), np.array(direction)
    steps = []

    def along(step):
        steps.append(step)
        return loss.along(margins, direction, step)

    return line_minimum(along, *loss.along(margins, direction, 0.0)), len(steps)


@pytest.mark.parametrize("power", [0, 3, 10, 13, 25, 100])
def test_a_step_that_is_too_long_by_any_order_of_magnitude(power):
    """Two pairs without curvature, one of them told wrongly: the minimum is between them."""
    size = 10.0**power
    step, looks = searched(Logistic(), [-1000.0, 3000.0], [size, -size])
    # From 1000 to 3000 both are told right, and next to nothing is left.
    assert 990.0 <= step * size <= 3010.0 or (power == 0 and step == 1.0)
    assert looks < 100


def test_a_good_step_is_taken_whole_and_none_where_nothing_falls():
    assert searched(SquaredHinge(), [0.0], [1.0])[0] == 1.0
    # At the minimum, and uphill.
    assert searched(Logistic(), [0.0, 0.0], [1.0, -1.0])[0] == 0.0
    assert searched(Logistic(), [0.0], [-1.0]) == (0.0, 0)


def test_what_rounding_promises_is_no_step():
    """The slope says that it falls, and no value does."""
    assert line_minimum(lambda step: (1.0 + step, 1.0), 1.0, -1e-3) == 0.0
    assert line_minimum(lambda step: (1.0, math.copysign(1.0, step - 1e-80)), 1.0, -1e-3) == 0.0
