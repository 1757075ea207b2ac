"""``torchtune-smt get-data``: say where the public corpora come from, and fetch them."""

from __future__ import annotations

import argparse
from pathlib import Path

from torchtune_smt.data.corpora import CORPORA, fetch, listing


def main() -> int:
    """Read the command line, fetch one corpus or list all, and return the exit code."""
    parser = argparse.ArgumentParser(
        description="Without a name: says where the public corpora come from, under which "
        "licence, and which files they are made of. With a name: fetches and prepares one.",
    )
    parser.add_argument("corpus", nargs="?", choices=CORPORA, help="the corpus to fetch")
    parser.add_argument(
        "--folder", type=Path, help="where the prepared files go (default: data/<its name>)"
    )
    address = "another address that has the same files, for example file:///home/me/multi30k/tok"
    parser.add_argument("--base-url", help=address)
    content = "accept files whose content differs from what was published"
    parser.add_argument("--no-check", action="store_true", help=content)
    seconds = "seconds to wait for an answer (%(default)g)"
    parser.add_argument("--timeout", type=float, default=60.0, help=seconds)
    options = parser.parse_args()
    if options.corpus is None:
        print(listing())
        return 0
    corpus = CORPORA[options.corpus]
    folder = options.folder or Path("data") / corpus.folder
    print(f"{corpus.title}\nlicence: {corpus.licence}")
    given = {"base_url": options.base_url, "timeout": options.timeout}
    fetch(corpus, folder, check=not options.no_check, **given)
    print(f"all is in {folder.resolve()}")
    return 0
