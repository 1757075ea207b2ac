"""A model folder: everything that is made from a bitext once, before tuning.

alignment.gz    word alignment (Pharaoh)
grammar/        hierarchical rules with their counts
lm.arpa.gz      language model of the target side
folds/          cross-fitted language models
model.json      what it was built from; written last, so a folder without it is not whole
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from torchtune_smt.data.bitext import Corpus
from torchtune_smt.errors import InputError
from torchtune_smt.grammar.alignment import align
from torchtune_smt.grammar.alignment_files import Alignment, read_alignments, write_alignments
from torchtune_smt.grammar.extracted_grammar import ExtractedGrammar
from torchtune_smt.grammar.extraction import extract_grammar
from torchtune_smt.grammar.store import load_grammar, save_grammar
from torchtune_smt.lm.arpa import write_arpa
from torchtune_smt.lm.estimate import estimate
from torchtune_smt.lm.folds import FoldModels, build_folds
from torchtune_smt.lm.model import NgramModel
from torchtune_smt.textio import atomic_folder, atomic_writer, read_bytes

_VERSION = 1
_MANIFEST = "model.json"
_LM = "lm.arpa.gz"


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
    save_grammar(folder / "grammar", grammar)
    clock.done(f"extracted {len(grammar):,} rules")
    ngrams = estimate(targets, settings.order, settings.discount_fallback)
    write_arpa(folder / _LM, ngrams)
    clock.done(f"estimated a language model of order {settings.order}")
    if settings.folds:
        build_folds(
            folder / "folds", targets, settings.folds, settings.order, settings.discount_fallback
        )
        clock.done(f"estimated {settings.folds} cross-fitted language models")
    manifest = {
        "version": _VERSION,
        "settings": asdict(settings),
        "bitext": _digest(bitext),
        "alignment": _alignment_digest(settings),
    }
    with atomic_writer(folder / _MANIFEST) as file:
        json.dump(manifest, file, indent=1)
        file.write("\n")


def _read_alignments(path: str, bitext: Corpus) -> list[Alignment]:
    """Read alignments of the bitext's files, or of its sentences where lines were dropped."""
    alignments = read_alignments(path)
    lines = list(range(1, len(alignments) + 1))
    if len(alignments) != len(bitext) and len(alignments) >= bitext.lines[-1]:
        lines = bitext.lines
        alignments = [alignments[line - 1] for line in lines]
    if len(alignments) != len(bitext):
        raise InputError(
            f"has {len(alignments)} lines, and the bitext {len(bitext)} pairs; align this bitext",
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
    path = Path(folder) / _MANIFEST
    if not path.is_file():
        return "there is no whole model"
    try:
        manifest = json.loads(read_bytes(path))
        version, built = manifest["version"], dict(manifest["settings"])
        digests = manifest["bitext"], manifest.get("alignment")
    except (ValueError, KeyError, TypeError):
        return f"{path} is damaged"
    if version != _VERSION:
        return "it was built by another version of this package"
    for name, value in json.loads(json.dumps(asdict(settings))).items():
        if built.get(name) != value:
            return f"it was built with {name}={built.get(name)}, not {value}"
    if bitext is not None and digests[0] != _digest(bitext):
        return "it was built from another bitext"
    if bitext is not None and digests[1] != _alignment_digest(settings):
        return "it was built from another alignment"
    for part in ("grammar", _LM, *["folds"] * (settings.folds > 0)):
        if not (path.parent / part).exists():
            return f"{part} is missing"
    return None


def load_model(
    folder: str | os.PathLike[str], *, folds: bool = False
) -> tuple[ExtractedGrammar, NgramModel, Sequence[NgramModel]]:
    """Return grammar, language model and, if wanted, the cross-fitted language models.

    Raises
    ------
    InputError
        The folder is not whole, or holds no cross-fitted models.
    """
    folder = Path(folder)
    if not (folder / _MANIFEST).is_file():
        raise InputError("holds no whole model; build it with build_model", path=folder)
    models = FoldModels.load(folder / "folds").models if folds else []
    return load_grammar(folder / "grammar"), NgramModel.load(folder / _LM), models


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
