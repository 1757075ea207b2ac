"""Write docs/benchmarks.md from docs/results/benchmarks.json, where its figures are.

    python scripts/experiments/bench/page.py [--run NAME ...]

Each part of the page says of which commit its figures are. With --run, the commands of rows that
have a `name` run again, and what they print after "figure NAME: " takes the place of the figures,
with the commit, the date, the machine and the versions of now.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "docs" / "results" / "benchmarks.json"
PAGE = ROOT / "docs" / "benchmarks.md"
PACKAGES = ("torch", "numba", "numpy")


def origin(data: dict[str, Any], commit: str) -> str:
    """Return what the page says of a commit's figures."""
    said = data["measured"][commit]
    return f"{commit}, {said['date']}" + (f", {said['machine']}" if said.get("machine") else "")


def page(data: dict[str, Any]) -> str:
    """Return the page: its parts in order, with the commits that their figures are of."""
    blocks: list[list[str]] = []
    parts = data["parts"]
    for number, part in enumerate(parts):
        of = part.get("of")
        if "rows" in part:
            cells = [part["columns"], ["---"] * len(part["columns"])]
            cells += [row["cells"] for row in part["rows"]]
            # Rows of several commits say each their own.
            marks = ["of", "---", *(row.get("of", "") for row in part["rows"])]
            if len(set(marks[2:])) > 1:
                cells = [[*row, mark] for row, mark in zip(cells, marks, strict=True)]
            else:
                of = marks[2]
            blocks.append([f"| {' | '.join(row)} |".replace("  ", " ") for row in cells])
        else:
            blocks.append(part.get("text") or [part["heading"]])
        following = parts[number + 1].get("of") if number + 1 < len(parts) else None
        if of and of != following:
            command = f"`{part['command']}`; " if part.get("command") else ""
            blocks.append([f"<sub>{command}figures of {origin(data, of)}</sub>"])
    origins = [f"- {origin(data, commit)}" for commit in sorted(data["measured"])]
    blocks.append(["## Commits", "", *origins])
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def run(data: dict[str, Any], names: list[str]) -> None:
    """Measure rows anew."""
    rows = {
        row["name"]: row for part in data["parts"] for row in part.get("rows", []) if "name" in row
    }
    commands = dict.fromkeys(rows[name]["command"] for name in names)
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=7"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    for command in commands:
        words = [sys.executable if word == "python" else word for word in shlex.split(command)]
        done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        print(done.stdout)
        for line in done.stdout.splitlines():
            label, _, figure = line.partition(": ")
            name = label.removeprefix("figure ")
            if label.startswith("figure ") and name in rows:
                rows[name]["cells"][-2] = figure
                rows[name]["of"] = commit
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    machine = next(
        (
            line.partition(": ")[2].strip()
            for line in open("/proc/cpuinfo")
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    data["measured"][commit] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores of {machine}, load {os.getloadavg()[0]:.0f}, Python {platform.python_version()}, {versions}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", nargs="+", default=[], metavar="NAME", help="rows to measure anew")
    names = parser.parse_args().run
    data = json.loads(DATA.read_text("utf-8"))
    if names:
        run(data, names)
        DATA.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", "utf-8")
    PAGE.write_text(page(data), "utf-8")


if __name__ == "__main__":
    main()
