"""A bounded part of the fuzzing (`make fuzz` knows no end), and the fuzzer's own tests."""

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
    with Campaign(all_modules()) as campaign:
        yield campaign


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_damage_is_refused_or_has_no_effect(campaign: Campaign, name: str) -> None:
    findings = campaign.run(name, range(TARGETS[name].cases), seconds=BUDGET / len(TARGETS))
    assert not findings.bad, findings.report(name)
    # The damage is neither so great that all is refused at once, nor without any effect.
    assert findings.counts["refused"] > 0


def test_what_can_happen_is_told_apart() -> None:
    with Campaign(["misbehaving"], for_a_case=1) as campaign:
        findings = campaign.run("misbehaving", range(9))
        # A process that was started anew gives the same answers.
        assert campaign.run_case("misbehaving", 2)[:2] == ("different", "2 instead of 1")
    assert findings.counts == {
        "same": 2, "refused": 2, "different": 1, "traceback": 1, "crash": 2, "hang": 1
    }  # fmt: skip
    what = {case: (kind, detail) for case, kind, detail in findings.bad}
    assert what[2] == ("different", "2 instead of 1")
    assert what[3][0] == "traceback" and "KeyError: 'b'" in what[3][1]
    assert what[4][0] == "crash" and "SIGSEGV" in what[4][1]
    assert what[5][0] == "hang"
    assert what[6][0] == "crash" and "exit code 3" in what[6][1]
    assert "misbehaving 4: crash" in findings.report("misbehaving")
