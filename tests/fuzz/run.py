"""Fuzzing from the command line: ``python tests/fuzz/run.py [TARGET...]``, see ``--help``."""

from __future__ import annotations

import argparse
import sys
from itertools import count

from campaign import BAD, Campaign, Findings
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
    if unknown := set(chosen) - set(names):
        parser.error(f"there is no target {', '.join(unknown)}; there are {', '.join(names)}")
    found = {name: Findings() for name in chosen}
    with Campaign() as campaign:
        if options.case is not None:
            ends = {name: campaign.run_case(name, options.case) for name in chosen}
            for name, (what, detail, _) in ends.items():
                print(f"{name} {options.case}: {what}\n{detail}".rstrip())
            return int(any(what in BAD for what, *_ in ends.values()))
        end = float("inf") if options.cases is None else options.first + options.cases
        try:
            for begin in count(options.first, _ROUND):
                if begin >= end:
                    break
                for name in chosen:
                    findings = campaign.run(name, range(begin, int(min(begin + _ROUND, end))))
                    found[name] += findings
                    if findings.bad:
                        print(findings.report(), flush=True)
                    print(f"{name}: {found[name]}", flush=True)
        except KeyboardInterrupt:
            pass
    print("\ntotal", *(f"{name}: {findings}" for name, findings in found.items()), sep="\n")
    return int(any(findings.bad for findings in found.values()))


if __name__ == "__main__":
    sys.exit(main())
