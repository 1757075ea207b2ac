"""Say where the public corpora come from, and fetch them: see ``get_data.py --help``."""

import sys

from _command import main

if __name__ == "__main__":
    sys.exit(main(["get-data", *sys.argv[1:]]))
