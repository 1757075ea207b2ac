"""Extracted grammars on disk: a folder of raw arrays, which are mapped into memory."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from torchtune_smt.errors import InputError
from torchtune_smt.grammar.extracted_grammar import ExtractedGrammar
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
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(
            tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".part")
        )
    except OSError as error:
        raise InputError(
            f"cannot be written ({error.strerror}); choose a folder that you may write to",
            path=folder,
        ) from None
    try:
        for name, array in arrays.items():
            with (beside / f"{name}.npy").open("wb") as file:
                np.save(file, array)
                file.flush()
                os.fsync(file.fileno())
        # Last, so that a folder with this file has everything else.
        with (beside / _META).open("w", encoding="utf-8") as file:
            json.dump(meta, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        beside.chmod(0o777 & ~umask)
        if folder.exists():
            # A folder cannot be replaced in one step: the old one makes room first.
            old = Path(
                tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".old")
            )
            folder.replace(old)
            beside.replace(folder)
            shutil.rmtree(old)
        else:
            beside.replace(folder)
    except OSError as error:
        raise InputError(
            f"cannot be written ({error.strerror}); free space, or choose another folder",
            path=folder,
        ) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


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
