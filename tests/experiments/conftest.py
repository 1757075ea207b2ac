"""The experiments' scripts are no package: their folders are put where Python looks for modules."""

import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "experiments"
for folder in ("reproduce", "record", "bench"):
    sys.path.insert(0, str(SCRIPTS / folder))
