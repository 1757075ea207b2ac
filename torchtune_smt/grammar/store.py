"""Grammars on disk as arrays, in one file, which is mapped into memory.

Extracted ones, and copies of grammars that were read from text.
"""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from torchtune_smt.core.archive import Archive, Stored, whole
from torchtune_smt.core.errors import REBUILD, InputError
from torchtune_smt.core.offsets import are_offsets
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.grammar import extracted_kernels as kernels
from torchtune_smt.grammar.base import Trie
from torchtune_smt.grammar.extracted_grammar import ExtractedGrammar, ExtractedPhrases
from torchtune_smt.grammar.extraction_kernels import LINK
from torchtune_smt.grammar.file_grammar import FileGrammar
from torchtune_smt.grammar.reordering import ReorderingType

ARCHIVE: Final = Archive("grammar", 2, REBUILD)
_WORDS: Final = ("source_words", "target_words")


def save_grammar(path: str | os.PathLike[str], grammar: ExtractedGrammar) -> str:
    """Write a grammar; one that is there already is replaced when all is written.

    Returns its checksum. Raises InputError: it cannot be written, or something else is there.
    """
    path = Path(path)
    if path.exists() and not ARCHIVE.is_at(path):
        raise InputError("exists and is no grammar; choose another path, or remove it", path=path)
    words = [getattr(grammar, name).to_arrays(f"{name}_") for name in _WORDS]
    # The last of these come first in the file.
    arrays = ChainMap(*reversed(words), grammar.arrays)
    content: dict[str, Any] = {"table_limit": grammar.table_limit}
    if grammar.reordering is not None:
        content["reordering"] = grammar.reordering.name
    return ARCHIVE.write(path, content, arrays)


def load_grammar(path: str | os.PathLike[str], *, expected: str | None = None) -> ExtractedGrammar:
    """Map a grammar that `save_grammar` wrote into memory.

    Raises InputError: the file is missing, damaged, no grammar, or has another checksum than the
    `expected` one.
    """
    stored = ARCHIVE.read(path)
    if expected not in (None, stored.checksum):
        raise InputError(f"is the grammar of another model; {REBUILD}", path=path)
    with ARCHIVE.checking(path):
        source_words, target_words = (
            Vocabulary.from_arrays(stored.arrays, f"{name}_") for name in _WORDS
        )
        arrays = {name: a for name, a in stored.arrays.items() if not name.startswith(_WORDS)}
        content = source_words, target_words, arrays
        if not stored.trusted:
            _check(arrays, len(source_words), len(target_words), "reordering" in stored.content)
        limit, reordering = stored.content["table_limit"], stored.content.get("reordering")
        if reordering is None:
            grammar = ExtractedGrammar(*content, table_limit=limit)
        else:
            kind = ReorderingType.parse(reordering)
            grammar = ExtractedPhrases(*content, reordering=kind, table_limit=limit)
        stored.accept()
    return grammar


COPY: Final = Archive("copy of a grammar", 1, "it is read again")
_OF_RULES: Final = (
    "node_source source_begin source_symbols rule_source source_rule_begin target_begin "
    "target_symbols given dense"
).split()


def write_copy(path: Path, key: Mapping[str, Any], grammar: FileGrammar) -> None:
    """Write the binary copy of a grammar that was read from text; see `Archive.write_copy`."""
    arrays = {name: getattr(grammar, name) for name in _OF_RULES}
    arrays |= {f"trie_{name}": array for name, array in grammar.trie._asdict().items()}
    for name in _WORDS:
        arrays |= getattr(grammar, name).to_arrays(f"{name}_")
    lines = {name: line for name, (_, line) in grammar.feature_places.items()}
    said = {"names": grammar.dense_names, "lines": lines, "again": grammar.n_duplicates}
    COPY.write_copy(path, key, said, arrays)


def read_copy(path: Path, key: Mapping[str, Any]) -> FileGrammar | None:
    """Return the grammar, in the order of the text, of its binary copy; see `Archive.read_copy`."""

    def made(copy: Stored) -> FileGrammar:
        grammar = FileGrammar.__new__(FileGrammar)
        for name in _WORDS:
            setattr(grammar, name, Vocabulary.from_arrays(copy.arrays, f"{name}_"))
        arrays = {name: a for name, a in copy.arrays.items() if not name.startswith(_WORDS)}
        said, rules = copy.content, arrays["rule_source"].size
        if not all(type(name) is str for name in [*said["names"], *said["lines"]]):
            raise ValueError
        if not copy.trusted:
            most = rules + whole(said["again"], 0)
            more: dict[str, Limits] = {"given": ("i8", (rules,), (0, most))}
            more["dense"] = ("f8", (rules, len(said["names"])), None)
            words = len(grammar.source_words), len(grammar.target_words)
            _check_rules(arrays, "source_rule_begin", *words, more)
        for name in _OF_RULES:
            setattr(grammar, name, arrays[name])
        grammar.trie = Trie(*(arrays[f"trie_{name}"] for name in Trie._fields))
        grammar.dense_names, grammar.n_duplicates = said["names"], said["again"]
        grammar.feature_places = {name: (path, line) for name, line in said["lines"].items()}
        return grammar

    return COPY.read_copy(path, key, made)


# An array's type and shape, and what it ends with if it has offsets, or the range of its ids.
Limits = tuple[str, tuple[int, ...], Any]


def _check(
    arrays: Mapping[str, NDArray[Any]], source_words: int, target_words: int, phrases: bool
) -> None:
    """Raise ValueError or KeyError unless kernels can work on a grammar, whatever its counts."""
    rules = arrays["rule_source"].size
    sources, targets = arrays["counts_source_low"].size, arrays["counts_target_low"].size
    entries, sentences = arrays["lexicon_target"].size, arrays["own_begin"].size - 1
    own_rules, own_links = arrays["own_rule"].size, arrays["own_link"].shape[0]
    begin, point, identical = arrays["point_begin"], arrays["point"], arrays["identical"]
    more: dict[str, Limits] = {
        "counts_rule_target": ("i4", (rules,), (0, targets)),
        "counts_log_p": ("f8", (rules, 2), None),
        "lexicon_begin": ("i8", (source_words + 2,), entries),
        "lexicon_target": ("i4", (entries,), (0, target_words + 1)),
        "lexicon_links": ("i8", (entries,), None),
        "lexicon_source_count": ("i8", (source_words + 1,), None),
        "lexicon_target_count": ("i8", (target_words + 1,), None),
        "own_begin": ("i8", (sentences + 1,), own_rules),
        "own_rule": ("i4", (own_rules,), (0, rules)),
        "own_low": ("i8", (own_rules,), None),
        "own_link_begin": ("i8", (sentences + 1,), own_links),
        "own_link": ("i4", (own_links, 2), (0, (source_words + 1, target_words + 1))),
        "identical": ("i4", (sentences,), (0, sentences)),
        "point_begin": ("i8", begin.shape, point.size),
        "point": ("i4", (point.size,), (0, 1 << 31)),
    }
    for of, count in {"rule": rules, "source": sources, "target": targets}.items():
        more[f"counts_{of}_low"] = ("i8", (count,), None)
        more[f"counts_{of}_count"] = ("f8", (count,), None)
    if phrases:
        more["orientation"] = ("i4", (rules, 8), (0, 1 << 31))
        more["own_orientation"] = ("i2", (own_rules, 8), (0, 1 << 15))
    else:
        more["rule_alignment"] = ("i4", (rules,), (0, begin.size - 1))
        more["rule_sentences"] = ("i4", (rules,), None)
    _check_rules(arrays, "counts_rule_begin", source_words, target_words, more)
    # The first of identical pairs is its own first one, and links lead to symbols of their rules.
    sound = np.array_equal(identical[identical], identical) and bool((np.diff(begin) > 0).all())
    if phrases:
        sound = sound and begin.size == rules + 1
        sound = sound and all((arrays[f"{s}_symbols"] >= 0).all() for s in ("source", "target"))
    if sound and rules:
        number = np.arange(rules) if phrases else arrays["rule_alignment"]
        source = np.maximum.reduceat(point // LINK, begin[:-1])[number]
        target = np.maximum.reduceat(point % LINK, begin[:-1])[number]
        sound = bool((target < np.diff(arrays["target_begin"])).all())
        lengths = np.diff(arrays["source_begin"])[arrays["rule_source"]]
        sound = sound and bool((source < lengths).all())
    if not sound:
        raise ValueError


def _check_rules(
    arrays: Mapping[str, NDArray[Any]],
    rule_begin: str,
    source_words: int,
    target_words: int,
    more: Mapping[str, Limits],
) -> None:
    """Raise ValueError or KeyError unless arrays are those of a `Grammar`, and `more`."""
    nodes, rules = arrays["trie_symbol"].size, arrays["rule_source"].size
    sources = arrays["source_begin"].size - 1
    known: dict[str, Limits] = {
        "trie_symbol": ("i4", (nodes,), None),
        "trie_child_begin": ("i4", (nodes + 1,), None),
        "node_source": ("i4", (nodes,), (-1, sources)),
        "source_begin": ("i8", (sources + 1,), arrays["source_symbols"].size),
        "source_symbols": ("i4", (arrays["source_symbols"].size,), (-1, source_words)),
        "rule_source": ("i4", (rules,), None),
        "target_begin": ("i8", (rules + 1,), arrays["target_symbols"].size),
        "target_symbols": ("i4", (arrays["target_symbols"].size,), (-2, target_words)),
        rule_begin: ("i8", (sources + 1,), rules),
        **more,
    }
    for name, (kind, shape, limits) in known.items():
        array = arrays[name]
        sound = array.dtype == np.dtype(kind) and array.shape == shape
        if kind == "f8":
            sound = sound and bool(np.isfinite(array).all())
        elif isinstance(limits, int):
            sound = sound and are_offsets(array, limits)
        elif sound and limits is not None and array.size:
            sound = bool((array.min(0) >= limits[0]).all() and (array.max(0) < limits[1]).all())
        if not sound:
            raise ValueError
    trie = arrays["trie_symbol"], arrays["trie_child_begin"], arrays["node_source"]
    sources_of = arrays["source_begin"], arrays["source_symbols"]
    targets_of = arrays["target_begin"], arrays["target_symbols"]
    if not kernels.is_trie(*trie, *sources_of) or not kernels.are_rules(
        arrays[rule_begin], arrays["rule_source"], *sources_of, *targets_of
    ):
        raise ValueError
