"""Reading k-best lists, and scoring them anew, in one run.

Prints the seconds of CPU that reading takes (gunzip, UTF-8 check and all; the median of three,
after compilation), how much of that is gunzip, and the milliseconds a sentence costs in `decode`.
Lists are Moses's and cdec's of Multi30k dev where they lie beside the repository; else one like
Moses's sparse list is made up (70,000 entries of 14 dense and 31 sparse features).

    python scripts/experiments/bench/kbest_files.py
"""

from __future__ import annotations

import argparse
import gzip
import tempfile
from pathlib import Path

import numpy as np
from timing import in_turn

from torchtune_smt.core.weights import Weights
from torchtune_smt.decoders.kbest_files import KBestFiles

ORACLES = Path(__file__).resolve().parents[4] / "shared/oracles"
FILES = {
    "Moses, dense": ORACLES / "moses/dev.100best.default.gz",
    "Moses, sparse": ORACLES / "moses/dev.100best.sparse.gz",
    "cdec": ORACLES / "cdec/dev.k100.pop200.kbest.gz",
}


def made_up(path: Path, sentences: int = 700, k: int = 100) -> None:
    """Write a list like Moses's."""
    generator = np.random.default_rng(0)
    with gzip.open(path, "wt", compresslevel=6, encoding="utf-8") as file:
        for s in range(sentences):
            names = [f"WT_wort{i}~word{i}" for i in generator.integers(0, 20_000, 60)]
            for _ in range(k):
                values = [f"{v:.6g}" for v in generator.normal(size=14) * 10]
                dense = f"LM0= {values[0]} TM0= {' '.join(values[1:5])} LR0= {' '.join(values[5:])}"
                chosen = sorted(generator.choice(60, 31, replace=False))
                sparse = " ".join(f"{names[i]}_{i}= 1" for i in chosen)
                words = " ".join(f"w{w}" for w in generator.integers(0, 5000, 11))
                file.write(f"{s} ||| {words}  ||| {dense} {sparse} ||| -10.5\n")


def measure(name: str, path: Path) -> None:
    def read() -> KBestFiles:
        decoder = KBestFiles(missing=0)
        decoder.read("dev", [path])
        return decoder

    decoder = read()  # compiles
    stored = decoder.sets["dev"].lists
    data = path.read_bytes()
    weights = Weights(decoder.dense_names)
    sources = decoder.sources("dev")
    decoder.decode(sources[:1], weights)
    found = in_turn(
        {
            "read": read,
            "gunzip": lambda: gzip.decompress(data),
            "decode": lambda: decoder.decode(sources, weights),
        },
        3,
    )
    reading, unpacking, decoding = (spread.median for spread in found.values())
    if name == "Moses, sparse":
        print(f"figure kbest: {found['read'].said(1)} s")
    print(
        f"{name:<14}{stored.n_hypotheses:>9,}{stored.rows.value.size / stored.n_hypotheses:>9.1f}"
        f"{reading:>9.2f}{unpacking:>9.2f}{1e3 * decoding / len(sources):>11.3f}"
        f"   reading {found['read'].said(1)}"
    )


def main() -> None:
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    print(f"{'list':<14}{'entries':>9}{'values':>9}{'read s':>9}{'gunzip s':>9}{'decode ms':>11}")
    with tempfile.TemporaryDirectory() as folder:
        files = {name: path for name, path in FILES.items() if path.exists()}
        if not files:
            files = {"made up": Path(folder) / "list.gz"}
            made_up(files["made up"])
        for name, path in files.items():
            measure(name, path)


if __name__ == "__main__":
    main()
