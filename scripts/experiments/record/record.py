"""Records the results of a fixed set of runs, to see what a change of the package has changed.

    python scripts/experiments/record/record.py run BEFORE
    python scripts/experiments/record/record.py run AFTER [--only 'online-*' mira]
        [--root REPOSITORY]
    python scripts/experiments/record/record.py compare BEFORE AFTER [--only ...]

`run` does the runs of fixed_runs.py, each in a process of its own, with the train.py and the
package of a repository: this one, unless `--root` names another, such as an old work tree. Runs
that are recorded already are not repeated. The slowest need `--slow`, and those on Multi30k and on
the outputs of other decoders need the folder `--shared`.

What is recorded of NAME lies in FOLDER/NAME:

    weights.txt           the weights that the run has written
    weights-STEP.txt      those after each epoch or iteration; the last ones are the final ones
    metrics.jsonl         its log, without times
    events.txt            what it has written for TensorBoard: step, tag, SHA-256
    *.translations.txt    its translations; output.txt.gz: those of translate.py
    groups.tsv            groups of features
    checksums.txt         SHA-256 of the parts of a model
    lists-PART.*          the lists that it saw (seen_lists.py); PART counts its processes
    features-PART.txt.gz  features in the order of their ids
    train.log, run/       what it has printed, and its own folder

`compare` prints a line for each run (see compare.py), and exits with 1 unless all is the same to
the last bit. Both must be recorded on one machine: another processor adds up in another order.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path

from compare import compare
from fixed_runs import REPOSITORY, Run, fixed_runs, write_data

HOOKS = Path(__file__).with_name("hooks.py")
RECORD = "recorded.json"
LOG = "train.log"
INTERRUPTED = 130


def record(run: Run, folder: Path, root: Path) -> bool:
    """Do a run unless it is recorded already; returns whether it has ended well."""
    place = folder / run.name
    if (place / RECORD).is_file():
        return True
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    own = place / "run"
    begin = [*run.arguments, *([f"hydra.run.dir={own}"] if run.script == "train.py" else [])]
    start = time.monotonic()
    code = _process(run, place, root, "1", begin, run.stop_at)
    if run.stop_at is not None:
        code = _process(run, place, root, "2", [f"resume={own}"]) if code == INTERRUPTED else 1
    seconds = time.monotonic() - start
    if code:
        print(f"{run.name}: FAILED; see {place / LOG}", flush=True)
        return False
    collect(own, place, folder)
    about = {"version": version(root), "seconds": round(seconds, 1), "arguments": run.arguments}
    part = place / f".{RECORD}"
    part.write_text(json.dumps(about, indent=1), "utf-8")
    part.rename(place / RECORD)
    print(f"{run.name}: {seconds:.0f} s", flush=True)
    return True


def _process(
    run: Run,
    place: Path,
    root: Path,
    part: str,
    arguments: Sequence[str],
    stop_at: int | None = None,
) -> int:
    """Do a run, or a part of one that is stopped; returns the exit code."""
    command = [sys.executable, str(HOOKS)]
    command += ["--keep-lists"] if run.keep_lists else []
    command += [] if stop_at is None else ["--stop-at", str(stop_at)]
    command += [str(place), part, run.script, *_as_named_in(root, arguments)]
    environment = os.environ | {"PYTHONPATH": str(root)}
    with (place / LOG).open("ab") as log:
        return subprocess.run(
            command, cwd=root, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False
        ).returncode


def _as_named_in(root: Path, arguments: Sequence[str]) -> list[str]:
    """Return arguments with the names that their options have in a repository."""
    text = (root / "conf" / "tuner" / "pro.yaml").read_text("utf-8")
    old = "\nfitter:" in text
    return [a.replace("tuner.solver.", "tuner.fitter.") if old else a for a in arguments]


def collect(own: Path, place: Path, folder: Path) -> None:
    """Copy what is compared out of the folder of a run, without times and places."""
    for name in ("weights.txt", "groups.tsv"):
        if (own / f"{name}.gz").is_file():
            text = gzip.decompress((own / f"{name}.gz").read_bytes()).decode()
            (place / name).write_text(text.replace(str(folder), "FOLDER"), "utf-8")
    for path in own.glob("*.translations.txt"):
        shutil.copy(path, place)
    if (own / "metrics.jsonl").is_file():
        records = map(json.loads, (own / "metrics.jsonl").read_text("utf-8").splitlines())
        lines = [{k: v for k, v in record.items() if not _is_time(k)} for record in records]
        (place / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines), "utf-8")
    if (own / "tensorboard").is_dir():
        (place / "events.txt").write_text("".join(sorted(_events(own / "tensorboard"))), "utf-8")
    if (own / "model.json").is_file():
        parts = sorted(path for path in own.rglob("*") if path.is_file())
        lines = [
            f"{path.relative_to(own)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
            for path in parts
        ]
        (place / "checksums.txt").write_text("".join(lines), "utf-8")


def _is_time(name: str) -> bool:
    return "second" in name


def _events(folder: Path) -> Iterator[str]:
    """Yield a line for each value that was written for TensorBoard; texts hold times and places."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    for path in folder.rglob("*tfevents*"):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if _is_time(value.tag):
                    continue
                digest = hashlib.sha256(value.SerializeToString(deterministic=True)).hexdigest()
                told = value.metadata.plugin_data.plugin_name in ("text", "hparams")
                yield f"{event.step} {value.tag} {'-' if told else digest}\n"


def version(root: Path) -> str:
    """Return the commit of a repository."""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return found or "no commit"


def record_all(options: argparse.Namespace) -> int:
    """Do the runs that are chosen; returns the exit code."""
    folder, root, shared = (
        path.resolve() for path in (options.folder, options.root, options.shared)
    )
    if not shared.is_dir():
        print(f"there is no folder {shared}: runs on Multi30k are left out")
    write_data(folder, shared)
    model, *runs = fixed_runs(folder, shared)
    if not record(model, folder, root):
        return 1
    chosen = [
        run for run in runs if wanted(run.name, options.only) and (options.slow or not run.slow)
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        ended = list(pool.map(lambda run: record(run, folder, root), chosen))
    print(f"{sum(ended)} of {len(ended)} runs are recorded in {folder}")
    return 0 if all(ended) else 1


def compare_all(options: argparse.Namespace) -> int:
    """Print a line for each recorded run; returns the exit code."""
    folders = (options.before, options.after)
    found = [{path.parent.name for path in folder.glob(f"*/{RECORD}")} for folder in folders]
    for folder, names in zip(folders, found, strict=True):
        about = [json.loads((folder / name / RECORD).read_text("utf-8")) for name in sorted(names)]
        print(f"{folder}: {', '.join(sorted({record['version'] for record in about}))}")
    names = sorted(name for name in found[0] | found[1] if wanted(name, options.only))
    same = 0
    for name in names:
        missing = [
            str(folder) for folder, has in zip(folders, found, strict=True) if name not in has
        ]
        if missing:
            print(f"{name}: not recorded in {' and '.join(missing)}")
            continue
        result = compare(options.before / name, options.after / name)
        same += not result.differences
        print(f"{name}: {result}", flush=True)
    print(f"{same} of {len(names)} runs are the same to the last bit")
    return 0 if names and same == len(names) else 1


def wanted(name: str, patterns: Sequence[str] | None) -> bool:
    """Return whether a name matches one of some patterns, if there are any."""
    return patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="do the runs that are not recorded yet")
    run.add_argument("folder", type=Path)
    run.add_argument("--root", type=Path, default=REPOSITORY, help="the repository to record")
    shared = REPOSITORY.parent / "shared"
    run.add_argument("--shared", type=Path, default=shared, help="data and oracles")
    run.add_argument("--jobs", type=int, default=1, help="runs at a time")
    run.add_argument("--slow", action="store_true", help="the slowest runs, too")
    run.set_defaults(do=record_all)
    comparison = commands.add_parser("compare", help="say what differs between two recordings")
    comparison.add_argument("before", type=Path)
    comparison.add_argument("after", type=Path)
    comparison.set_defaults(do=compare_all)
    for command in (run, comparison):
        command.add_argument("--only", nargs="+", metavar="NAME", help="names, or patterns of them")
    options = parser.parse_args()
    return int(options.do(options))


if __name__ == "__main__":
    sys.exit(main())
