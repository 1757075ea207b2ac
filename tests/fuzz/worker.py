"""Runs cases in a process of its own, which may crash: ``worker.py MODULE...``.

Each line of the input is a target and the number of a case (or "open"); each line of the answer
is JSON: what became of it, what there is to say about it, and the CPU time that it took.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path

from targets import Check, Different, load_targets

from torchtune_smt.core.errors import InputError

# Bytes of address space: a damaged size must not take the machine's memory.
_MEMORY = 16 << 30


def outcome(check: Check, case: int) -> tuple[str, str]:
    """Return what became of a case, and what there is to say about it."""
    try:
        return check(case), ""
    except InputError as error:
        return "refused", str(error)
    except Different as error:
        return "different", str(error)
    except BaseException:
        return "traceback", traceback.format_exc()


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    # Whatever is printed must not come between the answers.
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    targets = load_targets(sys.argv[1:])
    checks: dict[str, Check] = {}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        for line in sys.stdin:
            name, what = line.split()
            begin = time.process_time()
            if what == "open":
                place = Path(folder) / name
                place.mkdir()
                checks[name] = targets[name].open(place)
                answer = ("opened", "")
            else:
                answer = outcome(checks[name], int(what))
            answers.write(json.dumps([*answer, time.process_time() - begin]) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
