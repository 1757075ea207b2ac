"""Apply weights to an n-best list: python scripts/rerank.py --help tells more."""

import sys

from _command import main

if __name__ == "__main__":
    sys.exit(main(["rerank", *sys.argv[1:]]))
