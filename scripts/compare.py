"""Compare systems side by side: python scripts/compare.py --help tells more."""

import sys

from _command import main

if __name__ == "__main__":
    sys.exit(main(["compare", *sys.argv[1:]]))
