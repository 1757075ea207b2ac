"""The binary copy of a language model: damaged, and forged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from forging import write_forged
from mutations import mutated
from targets import Check, Different, Target, Verdict, drawer

from torchtune_smt.core.archive import cache_path, file_checksum
from torchtune_smt.lm import NgramModel, estimate, write_arpa
from torchtune_smt.lm import tables as copies
from torchtune_smt.lm.tables import read_cache

_TEXT = """the dog sees the cat
a bird sleeps
the zebra sees a dog and the dog sees a bird
schöne Grüße an the 猫
a cat sleeps and sees the dog
the bird sings and the cat sees a zebra"""
SENTENCES = [line.split() for line in _TEXT.split("\n")]


def small_model(path: Path) -> NgramModel:
    """Write a language model and its copy."""
    write_arpa(path, estimate(SENTENCES, 3, (0.5, 1.0, 1.5)))
    return NgramModel.load(path)


def scores(model: NgramModel) -> np.ndarray:
    """Return scores that depend on all of a model."""
    unknown = [["what", *words, "is"] for words in SENTENCES]
    return model.score_all([*SENTENCES, *unknown, *(words[::-1] for words in SENTENCES)])[0]


def _damaged(folder: Path) -> Check:
    path = folder / "lm.arpa.gz"
    expected = scores(small_model(path))
    whole = cache_path(path).read_bytes()
    write_arpa(folder / "other.arpa.gz", estimate(SENTENCES[2:], 2, (0.5, 1.0, 1.5)))
    NgramModel.load(folder / "other.arpa.gz")
    other = cache_path(folder / "other.arpa.gz").read_bytes()
    found = file_checksum(path)

    def check(case: int) -> Verdict:
        cache_path(path).write_bytes(mutated(whole, drawer("lm-cache", case), [other]))
        taken = read_cache(path, found) is not None
        if not np.array_equal(scores(NgramModel.load(path)), expected):
            raise Different("the scores are others")
        if cache_path(path).read_bytes() != whole and not taken:
            raise Different("the copy was not made anew")
        return "same" if taken else "refused"

    return check


def _forged(folder: Path) -> Check:
    path = folder / "lm.arpa.gz"
    small_model(path)
    whole = copies.ARCHIVE.read(cache_path(path))
    found = file_checksum(path)

    def check(case: int) -> Verdict:
        draw = drawer("lm-cache-forged", case)
        write_forged(cache_path(path), copies.ARCHIVE, whole, draw)
        taken = read_cache(path, found)
        if taken is None:
            return "refused"
        scores(NgramModel(*taken))
        return "taken"

    return check


TARGETS = {"lm-cache": Target(_damaged), "lm-cache-forged": Target(_forged)}
