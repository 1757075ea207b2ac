"""Draw the curves of runs and sweeps: python scripts/plot.py --help tells more."""

import sys

from _command import main

if __name__ == "__main__":
    sys.exit(main(["plot", *sys.argv[1:]]))
