"""A bounded part of the fuzzing (`make fuzz` knows no end)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from campaign import Campaign
from targets import all_modules, load_targets

TARGETS = load_targets(all_modules())
# CPU seconds for the cases of all targets together.
BUDGET = 18.0


@pytest.fixture(scope="module")
def campaign() -> Iterator[Campaign]:
    with Campaign() as campaign:
        yield campaign


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_damage_is_refused_or_has_no_effect(campaign: Campaign, name: str) -> None:
    findings = campaign.run(name, range(TARGETS[name].cases), seconds=BUDGET / len(TARGETS))
    assert not findings.bad, findings.report()
    # The damage is neither so great that all is refused at once, nor without any effect.
    assert findings.counts["refused"] > 0
