"""Tune a translation system: python train.py [OVERRIDE ...]; --help tells more."""

import sys

from torchtune_smt.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
