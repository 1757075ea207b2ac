"""Fuzzing from the command line: ``python tests/fuzz/run.py [TARGET...]``, see ``--help``."""

from __future__ import annotations

import argparse
import sys
from itertools import count

from campaign import BAD, GOOD, Campaign, Findings
from targets import all_modules, load_targets

# Cases of one target before it is the next one's turn.
_ROUND = 1000


def main() -> int:
    """Run cases; return 1 if one of them was bad."""
    names = sorted(load_targets(all_modules()))
    parser = argparse.ArgumentParser(description="Fuzz until interrupted, target after target.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(names))
    parser.add_argument("--case", type=int, help="run this case alone, and say what became of it")
    parser.add_argument("--first", type=int, default=0, help="number of the first case (0)")
    parser.add_argument("--cases", type=int, help="end after so many cases of each target")
    options = parser.parse_args()
    chosen = options.targets or names
    for name in chosen:
        if name not in names:
            parser.error(f"there is no target {name}; there are {', '.join(names)}")
    found = {name: Findings() for name in chosen}
    with Campaign(all_modules()) as campaign:
        if options.case is not None:
            for name in chosen:
                what, detail, _ = campaign.run_case(name, options.case)
                print(f"{name} {options.case}: {what}\n{detail}".rstrip())
                found[name].counts[what] += 1
            return _code(found)
        end = None if options.cases is None else options.first + options.cases
        try:
            for begin in count(options.first, _ROUND):
                if end is not None and begin >= end:
                    break
                last = begin + _ROUND if end is None else min(begin + _ROUND, end)
                for name in chosen:
                    findings = campaign.run(name, range(begin, last))
                    found[name] += findings
                    if findings.bad:
                        print(findings.report(name), flush=True)
                    print(f"{name}: {_numbers(found[name])}", flush=True)
        except KeyboardInterrupt:
            pass
    print("\ntotal")
    for name in chosen:
        print(f"{name}: {_numbers(found[name])}")
    return _code(found)


def _numbers(findings: Findings) -> str:
    kinds = ", ".join(f"{findings.counts[what]:,} {what}" for what in (*GOOD, *BAD))
    return f"{findings.counts.total():,} cases: {kinds} ({findings.seconds:.0f} s)"


def _code(found: dict[str, Findings]) -> int:
    return int(any(findings.counts[what] for findings in found.values() for what in BAD))


if __name__ == "__main__":
    sys.exit(main())
