"""Grammars on disk as arrays, in one file, which is mapped into memory.

Extracted ones, and copies of grammars that were read from text.
"""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from torchtune_smt.core.archive import Archive, Stored
from torchtune_smt.core.errors import REBUILD, InputError
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.grammar.base import Trie
from torchtune_smt.grammar.extracted_grammar import ExtractedGrammar, ExtractedPhrases
from torchtune_smt.grammar.file_grammar import NO_LIMIT, FileGrammar
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


def load_grammar(
    path: str | os.PathLike[str], *, table_limit: int | None = None, expected: str | None = None
) -> ExtractedGrammar:
    """Map a grammar that `save_grammar` wrote into memory.

    `table_limit` takes the place of the stored one. Raises InputError: the file is missing,
    damaged, no grammar, or has another checksum than the `expected` one.
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
        limit, reordering = stored.content["table_limit"], stored.content.get("reordering")
        if reordering is None:
            grammar = ExtractedGrammar(*content, table_limit=limit)
        else:
            kind = ReorderingType.parse(reordering)
            grammar = ExtractedPhrases(*content, reordering=kind, table_limit=limit)
        stored.accept()
    if table_limit is not None:
        grammar.table_limit = table_limit
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
    """Return the grammar of the binary copy of a text, None where it is not of use.

    See `Archive.read_copy`. The grammar has no table limit, and its rules the order of the text.
    """

    def made(copy: Stored) -> FileGrammar:
        grammar = FileGrammar.__new__(FileGrammar)
        for name in _WORDS:
            setattr(grammar, name, Vocabulary.from_arrays(copy.arrays, f"{name}_"))
        for name in _OF_RULES:
            setattr(grammar, name, copy.arrays[name])
        grammar.trie = Trie(*(copy.arrays[f"trie_{name}"] for name in Trie._fields))
        said = copy.content
        grammar.dense_names, grammar.n_duplicates = said["names"], said["again"]
        grammar.feature_places = {name: (path, line) for name, line in said["lines"].items()}
        grammar.table_limit = NO_LIMIT
        return grammar

    return COPY.read_copy(path, key, made)
