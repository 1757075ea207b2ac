"""A model folder: everything that is made from a bitext once, before tuning.

alignment.gz    word alignment (Pharaoh)
grammar         hierarchical rules with their counts
lm.arpa.gz      language model of the target side
folds/          cross-fitted language models
model.json      what it was built from, and checksums of all that is loaded; written last, so a
                folder without it is not whole

A folder is loaded as one version: what does not have the checksum in its model.json is damaged, or
of a model that has taken the place of the first one in the meantime.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torchtune_smt.core.container import file_checksum
from torchtune_smt.core.errors import REBUILD, InputError
from torchtune_smt.core.leftovers import restored
from torchtune_smt.core.manifest import OtherVersionError, read_manifest, write_manifest
from torchtune_smt.core.origin import digest_of
from torchtune_smt.core.textio import atomic_folder, read_bytes
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.grammar.alignment import align
from torchtune_smt.grammar.alignment_files import Alignment, first_alignments, write_alignments
from torchtune_smt.grammar.extracted_grammar import ExtractedGrammar
from torchtune_smt.grammar.extraction import extract_grammar
from torchtune_smt.grammar.store import load_grammar, save_grammar
from torchtune_smt.lm.arpa import write_arpa
from torchtune_smt.lm.estimate import estimate
from torchtune_smt.lm.folds import FoldModels, build_folds
from torchtune_smt.lm.model import NgramModel

_VERSION = 2
_MANIFEST = "model.json"
_GRAMMAR = "grammar"
_LM = "lm.arpa.gz"
_FOLDS = "folds"
# How often, and after how many seconds, a folder that is being replaced is looked at again.
_TRIES = 10
_PAUSE = 0.01

# What the parts of a model depend on, besides the bitext.
_ALIGNER_SETTINGS = ("aligner", "iterations")
_GRAMMAR_SETTINGS = (
    "max_phrase_length",
    "max_symbols",
    "unaligned_edges",
    "counts",
    "table_limit",
)
_LM_SETTINGS = ("order", "discount_fallback")


@dataclass(frozen=True)
class ModelSettings:
    """How a model is built from a bitext.

    Parameters
    ----------
    aligner : {"fast_align", "hmm"}
    iterations : int
        Of the aligner's EM.
    alignment_file : str, optional
        Take the alignment from this Pharaoh file instead.
    max_phrase_length, max_symbols, unaligned_edges, counts, table_limit
        As `extract_grammar` takes them.
    order : int
        Of the language model.
    discount_fallback : sequence of 3 floats, optional
        Discounts for an order whose own cannot be estimated, as on little text.
    folds : int
        Cross-fitted language models; 0: none.
    """

    aligner: Literal["fast_align", "hmm"] = "fast_align"
    iterations: int = 5
    alignment_file: str | None = None
    max_phrase_length: int = 10
    max_symbols: int = 5
    unaligned_edges: bool = False
    counts: Literal["shared", "occurrences"] = "shared"
    table_limit: int = 30
    order: int = 5
    discount_fallback: tuple[float, float, float] | None = None
    folds: int = 10

    def __post_init__(self) -> None:
        if self.aligner not in ("fast_align", "hmm"):
            raise ValueError(f"aligner must be fast_align or hmm, not {self.aligner}")
        if self.counts not in ("shared", "occurrences"):
            raise ValueError(f"counts must be shared or occurrences, not {self.counts}")
        for name in ("iterations", "max_phrase_length", "max_symbols", "table_limit"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("max_phrase_length", "max_symbols"):
            if getattr(self, name) > 100:
                raise ValueError(f"{name} must be at most 100, not {getattr(self, name)}")
        if not 1 <= self.order <= 6:
            raise ValueError(f"order must be in 1..6, not {self.order}")
        if self.folds != 0 and self.folds < 2:
            raise ValueError(f"folds must be 0 or at least 2, not {self.folds}")
        if self.discount_fallback is not None and len(self.discount_fallback) != 3:
            raise ValueError(f"discount_fallback must be 3 numbers, not {self.discount_fallback}")
        for count, discount in enumerate(self.discount_fallback or (), start=1):
            if not 0 < discount <= count:
                raise ValueError(f"discount_fallback[{count - 1}] must be in (0, {count}]")


def build_model(
    folder: str | os.PathLike[str],
    bitext: Corpus,
    settings: ModelSettings,
    report: Callable[[str], None] = print,
) -> None:
    """Align a bitext, extract its grammar, estimate language models; write all to a folder.

    Raises
    ------
    InputError
        The bitext or the alignment file is bad, or the folder cannot be written to.
    """
    folder = Path(folder)
    ours = (folder / _MANIFEST).is_file() or (folder.is_dir() and not any(folder.iterdir()))
    if folder.exists() and not ours:
        raise InputError(
            "exists and holds no model; choose another folder, or remove it", path=folder
        )
    with atomic_folder(folder) as beside:
        _build(beside, bitext, settings, report)


def _build(
    folder: Path, bitext: Corpus, settings: ModelSettings, report: Callable[[str], None]
) -> None:
    """Write all parts of a model to a folder."""
    sources, targets = bitext.source, bitext.targets
    clock = _Clock(report)
    if settings.alignment_file is None:
        alignments = align(sources, targets, model=settings.aligner, iterations=settings.iterations)
    else:
        alignments = _read_alignments(settings.alignment_file, bitext)
    write_alignments(folder / "alignment.gz", alignments)
    clock.done(f"aligned {len(sources):,} sentence pairs")
    grammar = extract_grammar(
        sources,
        targets,
        alignments,
        max_phrase_length=settings.max_phrase_length,
        max_symbols=settings.max_symbols,
        unaligned_edges=settings.unaligned_edges,
        counts=settings.counts,
        table_limit=settings.table_limit,
    )
    parts = {_GRAMMAR: save_grammar(folder / _GRAMMAR, grammar)}
    clock.done(f"extracted {len(grammar):,} rules")
    ngrams = estimate(targets, settings.order, settings.discount_fallback)
    write_arpa(folder / _LM, ngrams)
    parts[_LM] = file_checksum(folder / _LM)
    clock.done(f"estimated a language model of order {settings.order}")
    if settings.folds:
        parts[_FOLDS] = build_folds(
            folder / _FOLDS, targets, settings.folds, settings.order, settings.discount_fallback
        )
        clock.done(f"estimated {settings.folds} cross-fitted language models")
    manifest = {
        "settings": asdict(settings),
        "bitext": _digest(bitext),
        "alignment": _alignment_digest(settings),
        "parts": parts,
    }
    write_manifest(folder / _MANIFEST, _VERSION, manifest)


def _read_alignments(path: str, bitext: Corpus) -> list[Alignment]:
    """Read alignments of the bitext's files, or of its sentences where lines were dropped."""
    alignments, count = first_alignments(path, bitext.lines[-1])
    lines: Sequence[int] = range(1, count + 1)
    if count != len(bitext) and count >= bitext.lines[-1]:
        lines = bitext.lines
        alignments = [alignments[line - 1] for line in lines]
    if len(alignments) != len(bitext):
        raise InputError(
            f"has {count} lines, and the bitext {len(bitext)} pairs; align this bitext",
            path=path,
        )
    for line, links, *pair in zip(lines, alignments, bitext.source, bitext.targets, strict=True):
        lengths = [len(words) for words in pair]
        if links.size and (links >= lengths).any():
            raise InputError(
                f"has a link out of its sentence pair, which has {lengths[0]} and {lengths[1]} "
                "words; align this bitext",
                path=path,
                line=line,
            )
    return alignments


def check_model(
    folder: str | os.PathLike[str], bitext: Corpus | None, settings: ModelSettings
) -> str | None:
    """Return why a folder is not the model of this bitext and these settings, None if it is.

    Without a bitext, the settings alone are compared: the model may have moved away from its text.
    """
    path = restored(Path(folder)) / _MANIFEST
    if not path.is_file():
        return "there is no whole model"
    try:
        manifest = read_manifest(path, _VERSION)
        built, parts = dict(manifest["settings"]), dict(manifest["parts"])
        digests = manifest["bitext"], manifest["alignment"]
    except OtherVersionError:
        return "it was built by another version of this package"
    except (ValueError, KeyError, TypeError):
        return f"{path} is damaged"
    for name, value in json.loads(json.dumps(asdict(settings))).items():
        if built.get(name) != value:
            return f"it was built with {name}={built.get(name)}, not {value}"
    if bitext is not None and digests[0] != _digest(bitext):
        return "it was built from another bitext"
    if bitext is not None and digests[1] != _alignment_digest(settings):
        return "it was built from another alignment"
    for part in parts:
        if not (path.parent / part).exists():
            return f"{part} is missing"
    return None


class ModelParts(NamedTuple):
    """A model that was loaded from its folder.

    Attributes
    ----------
    grammar : ExtractedGrammar
    language_model : NgramModel
    folds : sequence of NgramModel
        Cross-fitted language models, if wanted.
    grammar_digest, language_model_digest : str
        Of what the first two were built from, and how: the same wherever the same text is built
        with the same settings.
    """

    grammar: ExtractedGrammar
    language_model: NgramModel
    folds: Sequence[NgramModel]
    grammar_digest: str
    language_model_digest: str


def load_model(
    folder: str | os.PathLike[str], *, folds: bool = False
) -> tuple[ExtractedGrammar, NgramModel, Sequence[NgramModel]]:
    """Return grammar, language model and, if wanted, the cross-fitted language models.

    Raises
    ------
    InputError
        As `load_parts`.
    """
    return load_parts(folder, folds=folds)[:3]


def load_parts(
    folder: str | os.PathLike[str], *, folds: bool = False, may_write: bool = True
) -> ModelParts:
    """Return the parts of a model, all of one version.

    Parameters
    ----------
    folds : bool
        Whether cross-fitted language models are wanted.
    may_write : bool
        Whether binary copies of language models may be left in the folder.

    Raises
    ------
    InputError
        The folder is not whole, or holds no cross-fitted models.
    """
    folder = restored(Path(folder))
    for _ in range(_TRIES):
        before = _identity(folder)
        try:
            return _load_parts(folder, folds, may_write)
        except InputError:
            # All of another model may be there by now.
            if _identity(folder) == before:
                raise
    raise InputError("is built anew all the time; wait until it is there", path=folder)


def _load_parts(folder: Path, folds: bool, may_write: bool) -> ModelParts:
    """Return grammar and language models if they are those that the manifest names."""
    path = folder / _MANIFEST
    try:
        manifest = read_manifest(path, _VERSION)
        parts, digests = manifest["parts"], _digests(manifest)
        grammar_checksum, lm_checksum = parts[_GRAMMAR], parts[_LM]
    except OtherVersionError:
        raise InputError(
            f"was built by another version of this package; {REBUILD}", path=folder
        ) from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"is damaged; {REBUILD}", path=path) from None
    if folds and _FOLDS not in parts:
        raise InputError(
            "holds no cross-fitted language models; build it with model.folds=10", path=folder
        )
    models: Sequence[NgramModel] = []
    if folds:
        checked = FoldModels.load(folder / _FOLDS, expected=parts[_FOLDS], may_write=may_write)
        models = checked.models
    grammar = load_grammar(folder / _GRAMMAR, expected=grammar_checksum)
    lm = NgramModel.load(folder / _LM, expected=lm_checksum, may_write=may_write)
    return ModelParts(grammar, lm, models, *digests)


def _identity(folder: Path) -> tuple[int, int]:
    """Return what tells one model in a folder from the next; one being replaced is waited for."""
    for _ in range(_TRIES):
        with suppress(OSError):
            status = (folder / _MANIFEST).stat()
            return status.st_ino, status.st_ctime_ns
        time.sleep(_PAUSE)
    raise InputError("holds no whole model; build it with build_model", path=folder)


def _digests(manifest: dict[str, Any]) -> tuple[str, str]:
    """Return digests of grammar and language model: of what they were built from, and how.

    Both are the same wherever the same text is built with the same settings.
    """
    settings, text = manifest["settings"], [manifest["version"], manifest["bitext"]]
    aligned = manifest["alignment"] or [settings[name] for name in _ALIGNER_SETTINGS]
    grammar = [settings[name] for name in _GRAMMAR_SETTINGS]
    language_model = [settings[name] for name in _LM_SETTINGS]
    return digest_of([text, aligned, grammar]), digest_of([text, language_model])


def _digest(bitext: Corpus) -> str:
    """Return a hash of the words of a bitext."""
    digest = hashlib.sha256()
    for source, target in zip(bitext.source, bitext.targets, strict=True):
        digest.update(f"{' '.join(source)}\t{' '.join(target)}\n".encode())
    return digest.hexdigest()


def _alignment_digest(settings: ModelSettings) -> str | None:
    """Return a hash of the alignment that the user gave."""
    if settings.alignment_file is None:
        return None
    return hashlib.sha256(read_bytes(settings.alignment_file)).hexdigest()


class _Clock:
    """Reports steps with the time since the one before."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._last = time.perf_counter()

    def done(self, step: str) -> None:
        now = time.perf_counter()
        self._report(f"{step} ({now - self._last:.1f} s)")
        self._last = now
