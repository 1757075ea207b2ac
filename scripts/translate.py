"""Translate a file with tuned weights: python scripts/translate.py --help tells more."""

import sys

from torchtune_smt.cli.translate import main

if __name__ == "__main__":
    sys.exit(main())
