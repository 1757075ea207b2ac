"""What features do, and where systems differ: python scripts/analyse.py --help tells more."""

import sys

from _command import main

if __name__ == "__main__":
    sys.exit(main(["analyse", *sys.argv[1:]]))
