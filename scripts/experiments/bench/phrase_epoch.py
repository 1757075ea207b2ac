"""What sparse features cost: an epoch of the phrase-based system with all of them, and with none.

    python scripts/experiments/bench/phrase_epoch.py [--data multi30k] [--children 3]
        [OPTION=VALUE ...]

Every run is a process of its own: ``train.py experiment=green2013`` on dev, with ``threads=1`` and
``features=green2013_phrase`` or ``features=dense``, in turn. An epoch is half of what three epochs
take more than one, in user CPU time: tuning on all sentences, and scoring them with the weights.
The model is built, and kernels are compiled, by a run that is not counted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from timing import child

ROOT = Path(__file__).resolve().parents[3]
FEATURES = ("dense", "green2013_phrase")
REQUIRED = 1.3


def seconds(folder: Path, data: str, features: str, epochs: int, options: list[str]) -> float:
    """Return the user CPU time of a run."""
    command = [
        sys.executable,
        str(ROOT / "train.py"),
        "experiment=green2013",
        f"data={data}",
        f"features={features}",
        f"tuner.epochs={epochs}",
        f"model.folder={folder / 'model'}",
        f"hydra.run.dir={folder / 'run'}",
        "data.test=null",
        "threads=1",
        "overwrite=true",
        *options,
    ]
    return float(child(command, cwd=ROOT)["user"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default="multi30k", help="a choice of the group data")
    parser.add_argument("--children", type=int, default=3, help="runs, whose median counts")
    parser.add_argument("options", nargs="*", help="more options of train.py")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seconds(folder, arguments.data, FEATURES[1], 1, arguments.options)
        epoch: dict[str, list[float]] = {features: [] for features in FEATURES}
        for _ in range(arguments.children):
            for features in FEATURES:
                one, three = (
                    seconds(folder, arguments.data, features, epochs, arguments.options)
                    for epochs in (1, 3)
                )
                epoch[features].append((three - one) / 2)
    middle = {features: statistics.median(epoch[features]) for features in FEATURES}
    for features in FEATURES:
        each = ", ".join(f"{s:.2f}" for s in epoch[features])
        print(f"{features:18} {middle[features]:6.2f} s an epoch, user CPU   of all runs {each}")
    ratio = middle[FEATURES[1]] / middle[FEATURES[0]]
    verdict = "met" if ratio <= REQUIRED else "NOT MET"
    print(f"ratio              {ratio:6.2f}     {verdict}: at most {REQUIRED} wanted")


if __name__ == "__main__":
    main()
