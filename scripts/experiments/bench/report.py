"""How long the report of two systems takes: python scripts/experiments/bench/report.py.

Tunes two systems on Multi30k, a little (--sentences), unless they are there already; then compares
them on test (1,000 sentences), in a process of its own, with the report and all metrics. Prints
time and size beside their limits. Needs the corpus (scripts/get_data.py multi30k, or --data).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from timing import child

REPOSITORY = Path(__file__).resolve().parents[3]
MAX_SECONDS = 20.0
MAX_MEGABYTES = 5.0


def tuned(folder: Path, features: str, options: argparse.Namespace) -> Path:
    """Return the folder of a run, which is done if it is not there."""
    run = folder / features
    if not (run / "weights.txt.gz").is_file():
        arguments = [
            *(sys.executable, REPOSITORY / "train.py", "data=multi30k", f"features={features}"),
            *("tuner.epochs=1", f"tuner.sentences={options.sentences}", "overwrite=true"),
            f"hydra.run.dir={run}",
        ]
        if options.data is not None:
            arguments.append(f"data.folders=[{options.data}]")
        subprocess.run(arguments, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "outputs" / "bench" / "report")
    parser.add_argument("--data", type=Path, help="the folder of the corpus")
    parser.add_argument("--sentences", type=int, default=100, help="of dev that are tuned on")
    options = parser.parse_args()
    folder = options.folder.resolve()
    runs = [tuned(folder, features, options) for features in ("dense", "sparse")]
    html = folder / "report.html"
    command = [sys.executable, REPOSITORY / "scripts" / "compare.py", *runs, f"html={html}"]
    figures = child(command, cwd=REPOSITORY)
    cpu = figures["user"] + figures["system"]
    size = html.stat().st_size / 1e6
    print(f"CPU time: {cpu:.1f} s, {cpu / MAX_SECONDS:.2f} of the limit")
    print(f"size: {size:.2f} MB, {size / MAX_MEGABYTES:.2f} of the limit")


if __name__ == "__main__":
    main()
