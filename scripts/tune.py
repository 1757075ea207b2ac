"""Tune weights on k-best lists: python scripts/tune.py --help tells more."""

import sys

from _command import main

if __name__ == "__main__":
    sys.exit(main(["tune", *sys.argv[1:]]))
