"""The picture of what rows of Liu et al. (2013) gain: differences, seeds, what is filled."""

import numpy as np
import pytest
from liu2013_gains import PANELS, RESULTS, Gain, gains, shown
from liu2013_results import Result
from stand_ins import result
from tables import Group

BASE = 40.5


def rows(key: str, *test: float, **more: object) -> list[Result]:
    """Return results of a row with as many seeds as values, and the same on devtest but for 10."""
    return [result(key, seed=1 + i, test=x, devtest=x - 10, **more) for i, x in enumerate(test)]


def test_the_gain_of_one_run_has_its_own_p():
    base = rows("pro_dev", BASE)
    group = Group("", rows("oscar", 41.0, p_test=0.049, p_devtest=0.051), base)
    assert gains(group, "test") == Gain(0.5, 0.0, True)
    assert gains(group, "devtest") == Gain(0.5, 0.0, False)
    assert gains(Group("", rows("oscar", 41.0), base), "test") == Gain(0.5, 0.0, False)
    assert gains(Group("", rows("oscar", 41.0), []), "test") is None


def test_the_gain_over_seeds_is_that_of_means():
    base, own = (40.5, 40.4, 40.6, 40.5, 40.5), (41.5, 42.5, 41.0, 43.0, 42.0)
    group = Group("", rows("oscar", *own, p_test=1.0), rows("pro_dev", *base))
    gain = gains(group, "test")
    assert gain is not None and gain.significant
    assert gain.mean == pytest.approx(1.5)
    assert gain.spread == pytest.approx(np.sqrt(np.var(own) * 5 / 4))
    mixed = Group("", rows("oscar", 39.0, 42.0, 40.5, 40.6, 40.4, p_test=0.0), group.baseline)
    same = gains(mixed, "test")
    assert same is not None and not same.significant
    # A mean is not compared with a single run.
    assert gains(Group("", group.results, group.baseline[:1]), "test") is None


def test_all_published_rows_are_there():
    for panel in PANELS:
        found = shown(RESULTS, panel)
        assert len(found) >= 3
        assert all(both.keys() == {"devtest", "test"} for both in found.values())
    # What the page says of these.
    seeds = shown(RESULTS, PANELS[0])
    assert seeds["OSCAR"]["test"].mean == pytest.approx(-0.13, abs=0.01)
    assert seeds["OSCAR"]["test"].significant
    assert not any(both["devtest"].significant for both in seeds.values())
