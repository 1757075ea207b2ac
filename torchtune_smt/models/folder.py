"""A model folder: everything that is made from a bitext once, before tuning.

alignment.gz    word alignment (Pharaoh)
grammar         rules or phrase pairs with their counts
lm.arpa.gz      language model of the target side
classes.*       classes of the words of source and target, and a language model of the latter, if
                wanted
folds/          cross-fitted language models, once somebody has tuned on the bitext
model.json      what it was built from, limits of the search that this asks for, and checksums of
                all that is loaded, and of all files; written last, so a folder without it is not
                whole

A folder is loaded as one version: what does not have the checksum in its model.json is damaged, or
of a model that has taken the place of the first one in the meantime.

Models of one bitext often have parts in common: a part depends on the text and on some of the
settings alone (`part_digests`). They share files by hard links: none is ever changed in its place,
and one that is removed or replaced in one folder stays as it is in the others.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from torchtune_smt.core.archive import Archive, cache_path, file_checksum
from torchtune_smt.core.errors import REBUILD, InputError
from torchtune_smt.core.leftovers import name_when_whole, remove, restored
from torchtune_smt.core.textio import check_plain
from torchtune_smt.core.weights_io import Part, digest_of
from torchtune_smt.grammar.store import load_grammar
from torchtune_smt.lm.classes import WordClasses
from torchtune_smt.lm.folds import load_folds
from torchtune_smt.lm.model import NgramModel
from torchtune_smt.models.base import Model

ARCHIVE: Final = Archive("model", 2, REBUILD)
MANIFEST: Final = "model.json"
ALIGNMENT: Final = "alignment.gz"
GRAMMAR: Final = "grammar"
LANGUAGE_MODEL: Final = "lm.arpa.gz"
CLASSES: Final = ("classes.source", "classes.target")
CLASS_MODEL: Final = "classes.arpa.gz"
FOLDS: Final = "folds"
# All that models have in their folders.
_OF_MODELS: Final = re.compile(
    r"model\.json|alignment\.gz|lm\.arpa\.gz(\.cache)?"
    r"|classes\.(source|target|arpa\.gz(\.cache)?)"
    r"|grammar"
    r"|folds(/folds\.json|/fold-\d+\.arpa\.gz(\.cache)?)?"
)
# How often, and after how many seconds, a folder that is being replaced is looked at again.
_TRIES = 50
_PAUSE = 0.01

# What the parts of a model depend on, besides the bitext.
ALIGNER_SETTINGS = ("aligner", "iterations")
_GRAMMAR_SETTINGS = (
    "max_phrase_length",
    "max_symbols",
    "unaligned_edges",
    "counts",
    "table_limit",
    "reordering",
    "orientations",
)
_LM_SETTINGS = ("order", "discount_fallback")
# Of cross-fitted language models alone.
FOLDS_SETTINGS = ("folds", "leave_out")


def load_model(
    folder: str | os.PathLike[str],
    *,
    folds: bool = False,
    class_model: bool = False,
    may_write: bool = True,
) -> Model:
    """Return the model in a folder, all of one version; for options see `ModelSource.open`.

    Raises InputError: the folder is not whole, or holds no cross-fitted models.

    class_model: whether the language model of classes is wanted, which is there then.
    """
    name, folder = os.fspath(folder), restored(Path(folder), MANIFEST)
    for _ in range(_TRIES):
        before = _identity(folder)
        try:
            return _load(name, folder, folds, class_model, may_write)
        except InputError:
            # All of another model may be there by now.
            if _identity(folder) == before:
                raise
    raise InputError("is built anew all the time; wait until it is there", path=folder)


def check_replaceable(folder: Path) -> None:
    """Raise InputError if what is in a folder would be lost: all but a model, whole or not."""
    if not folder.exists():
        return
    if not (folder / MANIFEST).is_file() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(
            "exists and holds no model; choose another folder, or remove it", path=folder
        )
    if Path.cwd().is_relative_to(os.path.realpath(folder)):
        raise InputError(
            "is the folder that the command runs in, or one above it, and would be replaced; run "
            "the command elsewhere, or choose another model.folder",
            path=folder,
        )
    for where, folders, files in os.walk(folder):
        for name in sorted([*folders, *files]):
            path = Path(where, name)
            parts = map(name_when_whole, path.relative_to(folder).parts)
            if not _OF_MODELS.fullmatch("/".join(parts)):
                raise InputError(
                    "is not of the model in this folder, and would be lost when that is built "
                    "anew; move it away, or choose another model.folder",
                    path=path,
                )


def _load(name: str, folder: Path, folds: bool, class_model: bool, may_write: bool) -> Model:
    """Return the model in a folder if its parts are those that the manifest names."""
    path = folder / MANIFEST
    manifest = ARCHIVE.read_json(path)
    with ARCHIVE.checking(path):
        parts, digests = manifest["parts"], part_digests(manifest)
        grammar_checksum, lm_checksum = parts[GRAMMAR], parts[LANGUAGE_MODEL]
        limits = {name: int(limit) for name, limit in manifest.get("limits", {}).items()}
    if folds and FOLDS not in parts:
        raise InputError(
            "holds no cross-fitted language models; build it with model.folds=10", path=folder
        )
    models: Sequence[NgramModel] = []
    if folds:
        of_folds = folder / FOLDS
        # Copies are left in the folder that the user has named, and not where a link in it leads.
        own = may_write and not of_folds.is_symlink()
        models = load_folds(of_folds, expected=parts[FOLDS], may_write=own)
    grammar = load_grammar(folder / GRAMMAR, expected=grammar_checksum)
    lm = NgramModel.load(folder / LANGUAGE_MODEL, expected=lm_checksum, may_write=may_write)
    classes = None
    if CLASSES[0] in parts:
        classes = WordClasses.read(*(folder / part for part in CLASSES))
        if classes.digest != digest_of([parts[part] for part in CLASSES]):
            raise InputError(f"is damaged or another file; {REBUILD}", path=folder / CLASSES[0])
    of_rules, of_lm = Part(name, digests[GRAMMAR]), Part(name, digests[LANGUAGE_MODEL])
    model = Model(grammar, lm, models, of_rules, of_lm, limits, classes)
    if not class_model:
        return model
    path, expected = folder / CLASS_MODEL, parts.get(CLASS_MODEL, "")
    return model.with_class_model(path, expected, digests[CLASS_MODEL], may_write=may_write)


def _identity(folder: Path) -> tuple[int, int]:
    """Return what tells one model in a folder from the next; one being replaced is waited for."""
    for _ in range(_TRIES):
        with suppress(OSError):
            status = (folder / MANIFEST).stat()
            return status.st_ino, status.st_ctime_ns
        time.sleep(_PAUSE)
    raise InputError("holds no whole model; build it with build_model", path=folder)


def part_digests(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of each part, by its name: of what it was built from, and how.

    They are the same wherever the same text is built with the same settings.
    """
    settings, text = manifest["settings"], [manifest["version"], manifest["bitext"]]
    aligned = manifest["alignment"] or [settings[name] for name in ALIGNER_SETTINGS]
    grammar = [settings[name] for name in _GRAMMAR_SETTINGS if name in settings]
    language_model = [settings[name] for name in _LM_SETTINGS]
    together = ["identical"] if settings.get("leave_out") == "identical" else []
    return {
        ALIGNMENT: digest_of([text, aligned]),
        GRAMMAR: digest_of([text, aligned, grammar]),
        LANGUAGE_MODEL: digest_of([text, language_model]),
        **{part: digest_of([text, part, settings.get("classes")]) for part in CLASSES},
        CLASS_MODEL: digest_of([text, settings.get("classes"), settings.get("class_order")]),
        FOLDS: digest_of([text, language_model, settings["folds"], *together]),
    }


def file_checksums(folder: Path, parts: Iterable[str]) -> dict[str, str]:
    """Return the checksums of the files of some parts, by their names in the folder."""
    return {
        str(file.relative_to(folder)): file_checksum(file)
        for part in parts
        for file in _files(folder / part)
    }


def take_over(part: str, digest: str, folder: Path, new: Path) -> tuple[Path, str] | None:
    """Share a part with a model that has it; return its folder and the part's checksum there.

    digest: of what it is made from; see `part_digests`.
    folder: where the model is going to be. Those beside it are looked at, and the one that is
        there.
    new: where it is written meanwhile.
    """
    for path in sorted(folder.parent.glob(f"*/{MANIFEST}")):
        # One that is damaged, or replaced just now, has nothing to share.
        with suppress(InputError, OSError, ValueError, KeyError, TypeError):
            manifest = ARCHIVE.read_json(path)
            if part_digests(manifest)[part] != digest:
                continue
            for file in _files(path.parent / part):
                _link(file, new / file.relative_to(path.parent))
                with suppress(OSError, InputError):
                    _link(cache_path(file), new / cache_path(file).relative_to(path.parent))
            found = file_checksums(new, [part])
            named = dict(manifest["files"])
            if found == {n: named[n] for n in named if n.partition("/")[0] == part}:
                return path.parent, str(manifest["parts"][part])
        remove(new / part)
        remove(cache_path(new / part))
    return None


def _files(part: Path) -> list[Path]:
    """Return the files of a part, without binary copies and what is being written."""
    files = sorted(part.iterdir()) if part.is_dir() else [part]
    return [file for file in files if file.suffix not in (".cache", ".part")]


def _link(file: Path, other: Path) -> None:
    """Make a file another name of one that is there; a copy, where that cannot be."""
    # `Path.resolve` raises RuntimeError for a link to itself.
    file = Path(os.path.realpath(file, strict=True))
    check_plain(file)
    other.parent.mkdir(exist_ok=True)
    try:
        os.link(file, other)
    except OSError:
        shutil.copyfile(file, other)
