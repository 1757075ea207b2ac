"""The binary copy of a language model: damaged, and forged."""

from forging import damaged, forged

from torchtune_smt.core.archive import file_checksum
from torchtune_smt.lm import NgramModel, estimate, tables, write_arpa

_TEXT = """the dog sees the cat
a bird sleeps
the zebra sees a dog and the dog sees a bird
schöne Grüße an the 猫
a cat sleeps and sees the dog
the bird sings and the cat sees a zebra"""
SENTENCES = [line.split() for line in _TEXT.split("\n")]


def small_model(path):
    """Write a language model and its copy."""
    write_arpa(path, estimate(SENTENCES, 3, (0.5, 1.0, 1.5)))
    return NgramModel.load(path)


def scores(model):
    """Return scores that depend on all of a model."""
    unknown = [["what", *words, "is"] for words in SENTENCES]
    return model.score_all([*SENTENCES, *unknown, *(words[::-1] for words in SENTENCES)])[0]


def _write(folder):
    folder.mkdir()
    small_model(folder / "lm.arpa.gz")


def _result(folder, _):
    """Scores, and whether there is a copy: one that was damaged is made anew."""
    path = folder / "lm.arpa.gz"
    found = scores(NgramModel.load(path)).tolist()
    return [found, tables.read_cache(path, file_checksum(path)) is not None]


def _use(folder, _):
    path = folder / "lm.arpa.gz"
    taken = tables.read_cache(path, file_checksum(path))
    return None if taken is None else scores(NgramModel(*taken))


TARGETS = {
    "lm-cache": damaged("lm-cache", _write, _result),
    "lm-cache-forged": forged("lm-cache-forged", tables.ARCHIVE, _write, _use),
}
