"""The experiments' scripts are no package: their folders are put where Python looks for modules."""

import sys
from pathlib import Path

import pytest
import short_example

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "experiments"
for folder in ("reproduce", "record", "bench"):
    sys.path.insert(0, str(SCRIPTS / folder))


@pytest.fixture(scope="module", autouse=True)
def whole_example():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHORT_EXAMPLE", str(short_example.WHOLE))
        yield
