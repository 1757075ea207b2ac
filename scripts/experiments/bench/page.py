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


def origins(part: dict[str, Any]) -> set[str]:
    """Return the commits that a part's figures are of."""
    return {row["of"] for row in part["rows"]} if "rows" in part else {part.get("of", "")}


def page(data: dict[str, Any]) -> str:
    """Return the page: its parts in order, with the commits that their figures are of."""
    when = {commit: f"{commit}, {said['date']}" for commit, said in data["measured"].items()}
    blocks: list[list[str]] = []
    parts = data["parts"]
    for part, following in zip(parts, [*parts[1:], {}], strict=True):
        of = origins(part)
        if "rows" in part:
            lines = [part["columns"], ["---"] * len(part["columns"])]
            lines += [row["cells"] for row in part["rows"]]
            if len(of) > 1:
                marks = ["of", "---", *(when[row["of"]] for row in part["rows"])]
                lines = [[*line, mark] for line, mark in zip(lines, marks, strict=True)]
            blocks.append([f"| {' | '.join(line)} |" for line in lines])
        else:
            blocks.append(part.get("text") or [part["heading"]])
        command = part.get("command", "")
        said = [f"`{command}`" if command.startswith("python") else command] if command else []
        if len(of) == 1 and of != {""} and of != origins(following):
            said.append(f"figures of {when[of.pop()]}")
        if said:
            blocks.append([f"<sub>{'; '.join(said)}</sub>"])
    machines = [
        f"- {when[commit]}: {said['machine']}"
        for commit, said in data["measured"].items()
        if "machine" in said
    ]
    blocks.append(["## Machines", "", *machines])
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def written(data: dict[str, Any]) -> str:
    """Return the file of the data: a line for each line of text, and each row."""

    def lines(items: list[Any], indent: str) -> str:
        said = (json.dumps(item, ensure_ascii=False) for item in items)
        return "[\n" + ",\n".join(indent + item for item in said) + "\n]"

    measured = (f" {json.dumps(k)}: {json.dumps(v)}" for k, v in data["measured"].items())
    parts = []
    for part in data["parts"]:
        whole = (
            f"{json.dumps(key)}: "
            + (
                lines(value, "  ")
                if key in ("text", "rows")
                else json.dumps(value, ensure_ascii=False)
            )
            for key, value in part.items()
        )
        parts.append("{" + ", ".join(whole) + "}")
    return (
        '{"measured": {\n'
        + ",\n".join(measured)
        + '\n},\n"parts": [\n'
        + ",\n".join(parts)
        + "\n]}\n"
    )


def run(data: dict[str, Any], names: list[str]) -> None:
    """Measure rows anew."""
    every = [row for part in data["parts"] for row in part.get("rows", [])]
    rows = {row["name"]: row for row in every if "name" in row}
    git = ["git", "describe", "--always", "--dirty", "--abbrev=7"]
    commit = subprocess.run(
        git, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    if unknown := set(names) - rows.keys():
        raise SystemExit(f"no row is called {', '.join(sorted(unknown))}; there are {sorted(rows)}")
    commands = dict.fromkeys(rows[name]["command"] for name in names)
    left = set(names)
    for command in commands:
        words = [sys.executable if word == "python" else word for word in shlex.split(command)]
        done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        print(done.stdout)
        for line in done.stdout.splitlines():
            label, _, figure = line.partition(": ")
            name = label.removeprefix("figure ")
            if label.startswith("figure ") and name in rows:
                rows[name]["cells"][2] = figure
                rows[name]["of"] = commit
                left.discard(name)
    if left:
        raise SystemExit(f"no figure was printed for {', '.join(sorted(left))}; nothing is changed")
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    said = [f"{os.cpu_count()} cores of {models[0] if models else platform.machine()}"]
    said += [f"load {os.getloadavg()[0]:.0f}", f"Python {platform.python_version()}"]
    said += [f"{name} {version(name)}" for name in PACKAGES]
    today = datetime.now(UTC).date().isoformat()
    data["measured"][commit] = {"date": today, "machine": ", ".join(said)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", nargs="+", default=[], metavar="NAME", help="rows to measure anew")
    names = parser.parse_args().run
    data = json.loads(DATA.read_text("utf-8"))
    if names:
        run(data, names)
        DATA.write_text(written(data), "utf-8")
    PAGE.write_text(page(data), "utf-8")


if __name__ == "__main__":
    main()
