"""Translate a file with tuned weights: python scripts/translate.py --help tells more."""

import sys

from torchtune_smt.cli import main

if __name__ == "__main__":
    sys.exit(main(["translate", *sys.argv[1:]]))
