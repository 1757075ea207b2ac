"""Translation quality after tuning: python scripts/experiments/bench/quality.py [--only NAME ...].

Runs train.py for each setting and seed, one after the other, each in a folder of its own below
--folder; runs that are finished are not repeated. Prints a table of means over the seeds. Needs the
corpora, and cdec's grammar for its rows, in --shared.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
COMMON = ["metric=nakov", "optimizer.lr=0.05", "tuner.epochs=6"]


def settings(shared: Path) -> dict[str, list[str]]:
    """Return the overrides of each row."""
    cdec = [
        "data=multi30k",
        "data.test=null",
        "model=files",
        f"model.grammar={shared}/oracles/cdec/grammar.dev.gz",
        f"model.language_model={shared}/oracles/lm/multi30k.en.5gram.arpa.gz",
        "init=file",
        f"init.file={shared}/oracles/cdec/weights",
        "features=dense",
        "decoder.pop_limit=200",
    ]
    return {
        "multi30k, cdec's grammar, dense": [*cdec, *COMMON],
        "multi30k, dense": ["data=multi30k", "features=dense", *COMMON],
        "multi30k, dense, BLEU+1": [
            "data=multi30k",
            "features=dense",
            *COMMON,
            "metric=bleu_plus_one",
        ],
        "multi30k, sparse": ["data=multi30k", "features=sparse", *COMMON],
        "fisher, dense": ["data=fisher", "features=dense", *COMMON],
        "fisher, sparse": ["data=fisher", "features=sparse", *COMMON],
    }


def run(folder: Path, overrides: list[str], seed: int) -> dict[str, float]:
    """Return the last line of metrics of a run, running it if it is not there."""
    metrics = folder / "metrics.jsonl"
    if not (folder / "weights.txt.gz").exists():
        metrics.unlink(missing_ok=True)
        command = [
            sys.executable,
            "train.py",
            *overrides,
            f"seed={seed}",
            f"hydra.run.dir={folder}",
        ]
        print(" ".join(command[1:]), flush=True)
        quiet = subprocess.DEVNULL
        subprocess.run(command, cwd=REPOSITORY, check=True, stdout=quiet, stderr=quiet)
    lines = [json.loads(line) for line in metrics.read_text("utf-8").splitlines()]
    result: dict[str, float] = {}
    for line in lines:
        result |= line
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=REPOSITORY.parent / "shared")
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "outputs" / "bench" / "quality")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", help="rows whose names contain one of these")
    options = parser.parse_args()
    rows = settings(options.shared.resolve())
    if options.only:
        rows = {n: r for n, r in rows.items() if any(part in n for part in options.only)}
    print("| setting | dev | test | by seed (dev / test) | active features |")
    print("|---|---|---|---|---|")
    for name, overrides in rows.items():
        slug = name.replace("'", "").replace(", ", "-").replace(" ", "_").replace("+", "p")
        results = [
            run(options.folder.resolve() / slug / str(seed), overrides, seed)
            for seed in options.seeds
        ]
        dev = [result["bleu/dev_tuned"] for result in results]
        test = [result.get("bleu/test_tuned", float("nan")) for result in results]
        active = [
            sum(v for k, v in result.items() if k.startswith("active/")) for result in results
        ]
        seeds = ", ".join(f"{d:.2f} / {t:.2f}" for d, t in zip(dev, test, strict=True))
        print(
            f"| {name} | {statistics.mean(dev):.2f} | {statistics.mean(test):.2f} | {seeds} | "
            f"{statistics.mean(active):,.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
