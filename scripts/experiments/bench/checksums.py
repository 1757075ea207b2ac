"""Checksums: the time to verify a file beside the time to read it, and their share of a run.

    python scripts/experiments/bench/checksums.py [--megabytes 1024] [--no-run]

A file of random numbers is written, read and verified, cold (after the system was asked to forget
it) and warm, and hashed by what else there is. Then the default run on the bundled example is
tuned, with the CPU time of all checksums counted.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import runpy
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from timing import cpu, of_thread, wall

from torchtune_smt.core.archive import Archive


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Return wall-clock and CPU seconds."""
    clock, own = wall(), cpu()
    work()
    return wall() - clock, cpu() - own


def tune() -> None:
    """Tune as the command line of this process says."""
    with contextlib.suppress(SystemExit):
        runpy.run_path(str(Path(__file__).parents[3] / "train.py"), run_name="__main__")


def forget(path: Path) -> None:
    """Ask the system to drop a file from its cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_through(path: Path) -> None:
    room = bytearray(1 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(room):
            pass


def bench_file(megabytes: int) -> None:
    numbers = np.random.default_rng(0).integers(0, 2**62, megabytes << 17)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path, archive = Path(folder) / "file", Archive("bench", 1, "")
        wall, _ = seconds(lambda: archive.write(path, {}, {"a": numbers}))
        print(f"a file of {megabytes} MiB: written in {wall:.2f} s")

        def verify() -> object:
            return archive.read(path)

        for name, work in (("read", lambda: read_through(path)), ("verify", verify)):
            forget(path)
            cold, _ = seconds(work)
            warm, cpu = min(seconds(work) for _ in range(3))
            rate = megabytes / 1024 / warm
            print(
                f"  {name:8} cold {cold:.2f} s, warm {warm:.3f} s ({rate:.1f} GiB/s, CPU {cpu:.3f})"
            )
    hashes: dict[str, Callable[[], object]] = {
        "xxh3_128": lambda: xxhash.xxh3_128(numbers),
        "crc32": lambda: zlib.crc32(numbers),
        "sha256": lambda: hashlib.sha256(numbers),
        "blake2b": lambda: hashlib.blake2b(numbers),
    }
    for name, work in hashes.items():
        print(f"  {name:8} in memory {megabytes / 1024 / seconds(work)[0]:.1f} GiB/s")


class Counted:
    """A checksum that counts the CPU time of all."""

    seconds = 0.0
    _kind = xxhash.xxh3_128

    def __init__(self, data: Any = b"") -> None:
        self._whole = self._kind()
        self.update(data)

    def update(self, data: Any) -> None:
        """Take more bytes."""
        begin = of_thread()
        self._whole.update(data)
        Counted.seconds += of_thread() - begin

    def digest(self) -> bytes:
        """Return the checksum."""
        return self._whole.digest()

    def hexdigest(self) -> str:
        """Return the checksum in hexadecimal digits."""
        return self._whole.hexdigest()


def bench_run() -> None:
    xxhash.xxh3_128 = Counted
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        # The model is built, and kernels are compiled, by a run before.
        for name in ("warm", "run"):
            Counted.seconds = 0.0
            sys.argv = ["train", f"hydra.run.dir={name}", *["tuner.epochs=1"] * (name == "warm")]
            _, cpu = seconds(tune)
    share = 100 * Counted.seconds / cpu
    print(
        f"default run: {cpu:.1f} s of CPU time, {Counted.seconds:.3f} s of it ({share:.2f} %) for "
        "checksums"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--no-run", action="store_true", help="leave the default run out")
    arguments = parser.parse_args()
    bench_file(arguments.megabytes)
    if not arguments.no_run:
        bench_run()


if __name__ == "__main__":
    main()
