"""Extracted grammars on disk: a folder of raw arrays, which are mapped into memory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from torchtune_smt.errors import InputError
from torchtune_smt.grammar.extracted_grammar import ExtractedGrammar
from torchtune_smt.textio import atomic_folder, atomic_writer
from torchtune_smt.vocabulary import Vocabulary

_VERSION = 1
_META = "grammar.json"
_VOCABULARIES = ("source_words", "target_words")


def save_grammar(folder: str | os.PathLike[str], grammar: ExtractedGrammar) -> None:
    """Write a grammar to a folder; one that is there already is replaced when all is written.

    Raises
    ------
    InputError
        The folder cannot be written, or holds something else.
    """
    folder = Path(folder)
    ours = (folder / _META).is_file() or (folder.is_dir() and not any(folder.iterdir()))
    if folder.exists() and not ours:
        raise InputError(
            "exists and is no grammar; choose another folder, or remove it", path=folder
        )
    arrays = dict(grammar.arrays)
    for name in _VOCABULARIES:
        for part, array in getattr(grammar, name).to_arrays().items():
            arrays[f"{name}_{part}"] = array
    meta = {
        "version": _VERSION,
        "table_limit": grammar.table_limit,
        "sentences": grammar.n_sentences,
        "rules": len(grammar),
        "arrays": {name: list(array.shape) for name, array in arrays.items()},
    }
    with atomic_folder(folder) as beside:
        for name, array in arrays.items():
            with (beside / f"{name}.npy").open("wb") as file:
                np.save(file, array)
                file.flush()
                os.fsync(file.fileno())
        # Last, so that a folder with this file has everything else.
        with atomic_writer(beside / _META) as text:
            json.dump(meta, text, indent=1)
            text.write("\n")


def load_grammar(
    folder: str | os.PathLike[str], *, table_limit: int | None = None
) -> ExtractedGrammar:
    """Map a grammar that `save_grammar` wrote into memory.

    Parameters
    ----------
    folder : path
    table_limit : int, optional
        In place of the stored one.

    Raises
    ------
    InputError
        The folder is missing, is none of a grammar, or is not whole.
    """
    folder = Path(folder)
    try:
        meta = json.loads((folder / _META).read_text("utf-8"))
        version = meta["version"]
        shapes = {name: tuple(shape) for name, shape in meta["arrays"].items()}
        stored_limit = int(meta["table_limit"])
    except OSError:
        raise InputError(
            f"holds no grammar ({_META} is missing); build the model first", path=folder
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError("is damaged; build the model again", path=folder / _META) from None
    if version != _VERSION:
        raise InputError(
            f"was written in version {version} of the format, and this package reads version "
            f"{_VERSION}; build the model again",
            path=folder,
        )
    arrays: dict[str, np.ndarray] = {}
    parts = [f"{name}_{part}" for name in _VOCABULARIES for part in ("letters", "begin")]
    for name in (*ExtractedGrammar.ARRAYS, *parts):
        path = folder / f"{name}.npy"
        try:
            # Copy on write: nothing is copied, as nothing is written, but numba compiles anew
            # for arrays that are read-only.
            array = np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))
        except (OSError, ValueError, EOFError):
            raise InputError("is missing or damaged; build the model again", path=path) from None
        if array.shape != shapes.get(name):
            raise InputError(
                f"has shape {array.shape}, not {shapes.get(name)} as {_META} says; "
                "build the model again",
                path=path,
            )
        arrays[name] = array
    source_words, target_words = (
        Vocabulary.from_arrays(
            {part: arrays.pop(f"{name}_{part}") for part in ("letters", "begin")}
        )
        for name in _VOCABULARIES
    )
    limit = stored_limit if table_limit is None else table_limit
    return ExtractedGrammar(source_words, target_words, arrays, table_limit=limit)
