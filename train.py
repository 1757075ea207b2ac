"""Tune a translation system: python train.py [OVERRIDE ...]; --help tells more."""

import sys

from torchtune_smt.cli.train import main

if __name__ == "__main__":
    sys.exit(main())
