"""Score translations and compare systems: python scripts/evaluate.py --help tells more."""

import sys

from _command import main

if __name__ == "__main__":
    sys.exit(main(["evaluate", *sys.argv[1:]]))
