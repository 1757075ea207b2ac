"""Build a model from a bitext: python scripts/build_model.py data=multi30k; --help tells more."""

import sys

from _command import main

if __name__ == "__main__":
    sys.exit(main(["build-model", *sys.argv[1:]]))
