"""Translate a file with tuned weights: python scripts/translate.py --help tells more."""

import sys

from _command import main

if __name__ == "__main__":
    sys.exit(main(["translate", *sys.argv[1:]]))
