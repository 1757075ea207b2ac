"""Models that are built from a bitext once, before tuning, and kept in a folder."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from torchtune_smt.core.accepts import Checked, accepting, integer, one_of
from torchtune_smt.core.archive import ArraysOnDisk, OtherVersionError, file_checksum
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.leftovers import restored
from torchtune_smt.core.textio import atomic_folder, read_bytes
from torchtune_smt.core.weights_io import Part, digest_of
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.grammar import alignment
from torchtune_smt.grammar.extracted_grammar import ExtractedGrammar
from torchtune_smt.grammar.extraction import extract_grammar, extract_phrases
from torchtune_smt.grammar.reordering import ORIENTATIONS, ReorderingType
from torchtune_smt.grammar.store import load_grammar, save_grammar
from torchtune_smt.lm.arpa import write_arpa
from torchtune_smt.lm.classes import read_classes, word_classes, write_classes
from torchtune_smt.lm.estimate import DISCOUNT_FALLBACK, check_fallback, estimate
from torchtune_smt.lm.folds import build_folds
from torchtune_smt.models import folder as layout
from torchtune_smt.models.base import Model, ModelSource

logger = logging.getLogger(__name__)

# Pairs of a bitext that take a while, so that each step is said before it begins.
_LARGE: Final = 5_000
# Mean distortion of a bitext from which on phrases are translated in any order. It is 0.02 to 0.04
# between Spanish or German and English, 0.2 between Japanese and English.
_FAR: Final = 0.1


@dataclass(frozen=True)
class BuiltModel(Checked, ModelSource):
    """A grammar and a language model of a bitext; see `ModelSource`.

    folder: where it is kept; see `torchtune_smt.models.folder`.
    aligner, iterations: as `align` takes them.
    alignment_file: take the alignment from this Pharaoh file instead.
    max_phrase_length, table_limit: as the extraction takes them.
    order: of the language model.
    discount_fallback: discounts for an order whose own cannot be estimated, as on little text.
    folds: cross-fitted language models, made when they are first wanted; 0: none.
    leave_out ("sentence", "identical"): what the model of a training sentence has not seen: this
        sentence pair alone, or all that have the same words on both sides. With `identical`, they
        are in one fold, too.
    classes: so many classes of the words of each language (`torchtune_smt.lm.classes`), made when
        they are first wanted; None: none.
    class_order: of a language model of the classes of the target side; None: there is none.

    Raises ValueError: there is a `class_order`, and no classes.
    """

    accepts = accepting(
        classes=integer(1).or_null(),
        class_order=integer(1, 6).or_null(),
        aligner=one_of(*alignment.ALIGNERS),
        iterations=integer(1),
        max_phrase_length=integer(1, 100),
        table_limit=integer(1),
        order=integer(1, 6),
        folds=integer(2).or_this(0),
        leave_out=one_of("sentence", "identical"),
    )
    from_bitext: ClassVar[bool] = True

    folder: str
    aligner: alignment.Aligner = "eflomal"
    iterations: int = 5
    alignment_file: str | None = None
    max_phrase_length: int = 10
    table_limit: int = 30
    order: int = 5
    discount_fallback: tuple[float, float, float] | None = None
    folds: int = 10
    leave_out: Literal["sentence", "identical"] = "sentence"
    classes: int | None = None
    class_order: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.class_order is not None and self.classes is None:
            raise ValueError("class_order needs classes; give classes=50, too")
        if self.discount_fallback is not None:
            # Configurations have lists.
            object.__setattr__(self, "discount_fallback", tuple(self.discount_fallback))
        check_fallback(self.discount_fallback)

    def unused(self) -> Mapping[str, str]:
        """Return the options of the aligner if the alignment is given."""
        given = () if self.alignment_file is None else layout.ALIGNER_SETTINGS
        return dict.fromkeys(given, "model.alignment_file has the alignment")

    def check_training(self, folds: bool) -> None:
        """Raise InputError if there are no folds, and they are wanted."""
        if folds and not self.folds:
            raise InputError("lm=folds needs cross-fitted language models: set model.folds=10")
        if folds and self.class_order is not None:
            raise InputError(
                "the language model of classes (class_order) has seen all sentences of the bitext, "
                "and there are no cross-fitted ones; leave it out, or set tuner.tune_on=dev"
            )

    def open(
        self,
        bitext: Callable[[], Corpus],
        *,
        folds: bool = False,
        report: Callable[[str], None] = print,
        compare_bitext: bool = True,
        may_write: bool = True,
    ) -> Model:
        """Load the model, built if need be; see `ModelSource`."""
        corpus = bitext() if compare_bitext else None
        reason = self.why_not_built(corpus, folds=folds)
        if reason is not None and not may_write:
            raise InputError(
                f"{reason}, and a model is never built where the folder of a run says: build it "
                f"with build_model, or give model.folder={self.folder} to have it built",
                path=self.folder,
            )
        if reason is not None:
            report(f"building the model in {self.folder}: {reason}")
            self.build(corpus or bitext(), lambda step: report(f"  {step}"), folds=folds)
        of_classes = self.class_order is not None
        model = layout.load_model(
            self.folder, folds=folds, class_model=of_classes, may_write=may_write
        )
        if self.leave_out == "sentence":
            return model
        assert isinstance(model.grammar, ExtractedGrammar)
        return replace(model, grammar=model.grammar.leaving_out_identical())

    def build(
        self, bitext: Corpus, report: Callable[[str], None] = print, *, folds: bool = True
    ) -> None:
        """Align a bitext, extract its grammar, estimate language models; write all to the folder.

        Raises InputError: the bitext or the alignment file is bad; or the folder cannot be written
        to, or has files that are of no model.

        folds: whether cross-fitted language models are wanted, as for tuning on the bitext.
        """
        folder = Path(self.folder)
        layout.check_replaceable(folder)
        # Again at the end: somebody may have put something there while the model was built.
        with atomic_folder(folder, lambda: layout.check_replaceable(folder)) as beside:
            self._write(beside, bitext, report, folds)

    def is_there(self) -> bool:
        """Return whether the folder holds a model, this one or another."""
        return (restored(Path(self.folder), layout.MANIFEST) / layout.MANIFEST).is_file()

    def why_not_built(self, bitext: Corpus | None, *, folds: bool = True) -> str | None:
        """Return why the folder is not the model of this bitext and these options, None if it is.

        Without a bitext, the options alone are compared: the model may have moved from its text.
        """
        path = restored(Path(self.folder), layout.MANIFEST) / layout.MANIFEST
        if not self.is_there():
            return "there is no whole model"
        try:
            manifest = layout.ARCHIVE.read_json(path)
            built, parts = dict(manifest["settings"]), {**manifest["parts"]}
            parts.pop(layout.ALIGNMENT, None)
            made_from = {what: manifest[what] for what in ("bitext", "alignment")}
        except OtherVersionError:
            return "it was built by another version of this package"
        except (ValueError, KeyError, TypeError):
            return f"{path} is damaged"
        folds = folds and self.folds > 0
        built.setdefault("leave_out", "sentence")
        for name in ("classes", "class_order"):
            if getattr(self, name) is None:
                # Those that are there do no harm.
                built[name] = None
        for name, value in json.loads(json.dumps(self._settings())).items():
            if built.get(name) != value and (folds or name not in layout.FOLDS_SETTINGS):
                return f"it was built with {name}={built.get(name)}, not {value}"
        if bitext is not None:
            for what, own in ("bitext", _digest(bitext)), ("alignment", self._alignment_digest()):
                if made_from[what] != own:
                    return f"it was built from another {what}"
        if missing := [part for part in parts if not (path.parent / part).exists()]:
            return f"{missing[0]} is missing"
        if folds and layout.FOLDS not in parts:
            return "it has no cross-fitted language models yet"
        return None

    def _settings(self) -> dict[str, Any]:
        """Return what a model is built with, wherever it lies."""
        return {name: value for name, value in asdict(self).items() if name != "folder"}

    def _limits(self, links: Callable[[], Sequence[alignment.Alignment]]) -> dict[str, int]:
        """Return the limits of the search (`Model.limits`) that such links ask for."""
        return {}

    def _alignment_digest(self) -> str | None:
        """Return a hash of the alignment that the user gave."""
        if self.alignment_file is None:
            return None
        return hashlib.sha256(read_bytes(self.alignment_file)).hexdigest()

    def _write(
        self, folder: Path, bitext: Corpus, report: Callable[[str], None], folds: bool
    ) -> None:
        """Write all parts of the model to a folder."""
        sources, targets = bitext.source, bitext.targets
        alignments: list[alignment.Alignment] = []

        def links() -> list[alignment.Alignment]:
            nonlocal alignments
            alignments = alignments or alignment.read_alignments(folder / layout.ALIGNMENT)
            return alignments

        def write_alignment() -> tuple[str, str]:
            nonlocal alignments
            if self.alignment_file is None:
                alignments = alignment.align(
                    sources, targets, model=self.aligner, iterations=self.iterations
                )
            else:
                alignments = alignment.read_alignments(
                    self.alignment_file, sources, targets, bitext.lines, bitext.total
                )
            alignment.write_alignments(folder / layout.ALIGNMENT, alignments)
            return file_checksum(
                folder / layout.ALIGNMENT
            ), f"aligned {len(sources):,} sentence pairs"

        def write_grammar() -> tuple[str, str]:
            extract: Callable[..., ExtractedGrammar]
            extract = extract_phrases if self.phrases else extract_grammar
            # With the options of the same names.
            taken = inspect.signature(extract).parameters
            options = {name: value for name, value in vars(self).items() if name in taken}
            with tempfile.TemporaryDirectory(dir=folder) as place:
                arrays = ArraysOnDisk(Path(place))
                grammar = extract(sources, targets, links(), arrays=arrays, **options)
                return save_grammar(
                    folder / layout.GRAMMAR, grammar
                ), f"extracted {len(grammar):,} rules"

        def write_language_model() -> tuple[str, str]:
            path, ngrams = folder / layout.LANGUAGE_MODEL, estimate(targets, *language_model)
            write_arpa(path, ngrams)
            return file_checksum(path), f"estimated a language model of order {self.order}"

        def write_folds() -> tuple[str, str]:
            numbers = None
            if self.leave_out == "identical":
                grammar = load_grammar(folder / layout.GRAMMAR).leaving_out_identical()
                numbers = [grammar.left_out_first(i) for i in range(len(targets))]
            path, settings = folder / layout.FOLDS, (self.folds, *language_model)
            checksum = build_folds(path, targets, *settings, numbers=numbers)
            return checksum, f"estimated {self.folds} cross-fitted language models"

        def write_classes_of(part: str, text: Sequence[Sequence[str]]) -> tuple[str, str]:
            assert self.classes is not None
            write_classes(folder / part, word_classes(text, self.classes))
            return file_checksum(folder / part), f"found {self.classes} classes of words"

        def write_class_model() -> tuple[str, str]:
            assert self.class_order is not None
            path, known = folder / layout.CLASS_MODEL, read_classes(folder / layout.CLASSES[1])
            text = [[known[word] for word in sentence] for sentence in targets]
            # So few kinds of words leave nothing to estimate discounts from.
            write_arpa(path, estimate(text, self.class_order, DISCOUNT_FALLBACK))
            said = f"estimated a language model of classes, of order {self.class_order}"
            return file_checksum(path), said

        language_model = self.order, self.discount_fallback
        made_from = {
            "version": layout.ARCHIVE.version,
            "settings": self._settings(),
            "bitext": _digest(bitext),
            "alignment": self._alignment_digest(),
        }
        digests = layout.part_digests(made_from)
        steps = [
            (layout.ALIGNMENT, "aligning", write_alignment),
            (layout.GRAMMAR, "extracting", write_grammar),
            (layout.LANGUAGE_MODEL, "estimating a language model", write_language_model),
        ]
        if self.classes is not None:
            for part, text in zip(layout.CLASSES, (sources, targets), strict=True):
                of_side = partial(write_classes_of, part, text)
                steps.append((part, "finding classes of words", of_side))
        if self.class_order is not None:
            steps.append(
                (layout.CLASS_MODEL, "estimating a language model of classes", write_class_model)
            )
        if folds and self.folds:
            steps.append((layout.FOLDS, "estimating cross-fitted language models", write_folds))
        parts: dict[str, str] = {}
        for part, doing, write in steps:
            before = time.perf_counter()
            if len(sources) >= _LARGE:
                logger.info("  %s ...", doing)
            taken = layout.take_over(part, digests[part], Path(self.folder), folder)
            if taken is None:
                parts[part], said = write()
            else:
                parts[part], said = taken[1], f"shared {part} with {taken[0]}"
            report(f"{said} ({time.perf_counter() - before:.1f} s)")
        if limits := self._limits(links):
            said = " ".join(f"{name}={limit}" for name, limit in limits.items())
            report(f"words move far, so the decoder has {said} unless you say otherwise")
        checksums = layout.file_checksums(folder, parts)
        content = made_from | {"parts": parts, "files": checksums, "limits": limits}
        layout.ARCHIVE.write_json(folder / layout.MANIFEST, content)


def _digest(bitext: Corpus) -> str:
    """Return a hash of the words of a bitext."""
    digest = hashlib.sha256()
    for source, target in zip(bitext.source, bitext.targets, strict=True):
        digest.update(f"{' '.join(source)}\t{' '.join(target)}\n".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class BitextModel(BuiltModel):
    """A hierarchical grammar and a language model of a bitext; for others see `BuiltModel`.

    max_phrase_length, max_symbols, unaligned_edges, counts, table_limit: as `extract_grammar` takes
        them.
    rule_counts: add features of how often a rule occurred (`ExtractedGrammar`); the model that is
        kept is the same.
    """

    accepts = accepting(
        counts=one_of("shared", "occurrences"),
        unaligned_edges=one_of(False, True, "phrases"),
        max_symbols=integer(1, 100),
    )

    max_symbols: int = 5
    unaligned_edges: bool | Literal["phrases"] = "phrases"
    counts: Literal["shared", "occurrences"] = "shared"
    rule_counts: bool = True

    def open(self, bitext: Callable[[], Corpus], **options: Any) -> Model:
        """Load the model, built if need be; see `ModelSource`."""
        model = super().open(bitext, **options)
        if not self.rule_counts:
            return model
        assert isinstance(model.grammar, ExtractedGrammar)
        return replace(model, grammar=model.grammar.with_rule_counts())

    def _settings(self) -> dict[str, Any]:
        # Counts of rules are added when it is open.
        return {n: value for n, value in super()._settings().items() if n != "rule_counts"}


@dataclass(frozen=True)
class PhraseModel(BuiltModel):
    """A phrase table (options as `extract_phrases`) and a language model; see `BuiltModel`.

    Where words move far from language to language, its phrases are translated in any order.
    """

    phrases: ClassVar[bool] = True

    max_phrase_length: int = 7
    table_limit: int = 100
    reordering: str = "hier-mslr-bidirectional-fe"

    def __post_init__(self) -> None:
        super().__post_init__()
        ReorderingType.parse(self.reordering).check_target()

    def _settings(self) -> dict[str, Any]:
        kind = ReorderingType.parse(self.reordering).kind
        # Tables that were built before have them in another order, which is that of weights.
        ordered = {"orientations": ORIENTATIONS[kind]} if kind == "mslr" else {}
        return super()._settings() | ordered

    def _limits(self, links: Callable[[], Sequence[alignment.Alignment]]) -> dict[str, int]:
        return {"distortion_limit": -1} if alignment.mean_distortion(links()) > _FAR else {}


@dataclass(frozen=True)
class PooledModels(Model):
    """Models that are open, by whose they are; what else there is of a model is the first one's.

    models: by the name of the part of a decoder that each is for.
    """

    models: Mapping[str, Model] = field(default_factory=dict)


@dataclass(frozen=True)
class JointModel(ModelSource):
    """The models of a hierarchical and of a phrase-based decoder; see `ModelSource`.

    Each is what it is by itself: it lies in a folder of its own, which others may use.
    """

    parts: ClassVar[tuple[str, ...]] = ("hiero.", "phrase.")
    from_bitext: ClassVar[bool] = True
    # Neither the one nor the other: it is no single decoder's.
    phrases: ClassVar[None] = None  # type: ignore[assignment]

    hiero: BuiltModel
    phrase: BuiltModel

    @property
    def folder(self) -> str:
        """Where they are kept."""
        return " and ".join(model.folder for model in self._models.values())

    @property
    def _models(self) -> dict[str, BuiltModel]:
        return {"hiero": self.hiero, "phrase": self.phrase}

    def unused(self) -> Mapping[str, str]:
        """Return the options that others cancel."""
        parts = {name: model.unused() for name, model in self._models.items()}
        return {f"{name}.{o}": why for name, part in parts.items() for o, why in part.items()}

    def check_training(self, folds: bool) -> None:
        """Raise InputError if one of them has no folds, and they are wanted."""
        for model in self._models.values():
            model.check_training(folds)

    def is_there(self) -> bool:
        """Return whether a folder holds a model."""
        return any(model.is_there() for model in self._models.values())

    def why_not_built(self, bitext: Corpus | None, *, folds: bool = True) -> str | None:
        """Return why a folder is not the model of this bitext; see `BuiltModel.why_not_built`."""
        reasons = (m.why_not_built(bitext, folds=folds) for m in self._models.values())
        return next(filter(None, reasons), None)

    def build(
        self, bitext: Corpus, report: Callable[[str], None] = print, *, folds: bool = True
    ) -> None:
        """Build those that are not there; see `BuiltModel.build`."""
        for model in self._models.values():
            if model.why_not_built(bitext, folds=folds) is not None:
                model.build(bitext, report, folds=folds)

    def open(self, bitext: Callable[[], Corpus], **options: Any) -> PooledModels:
        """Load both, built if need be; see `ModelSource`."""
        models = {name: model.open(bitext, **options) for name, model in self._models.items()}
        first, *_ = models.values()
        kinds = [model.classes for model in models.values()]
        classes = next(filter(None, kinds), None)
        digests = [None if one is None else one.digest for one in kinds]

        def both(parts: list[Part]) -> Part:
            return Part(" + ".join(p.name for p in parts), digest_of([p.digest for p in parts]))

        return PooledModels(
            first.grammar,
            first.language_model,
            grammar_part=both([model.grammar_part for model in models.values()]),
            language_model_part=both([model.language_model_part for model in models.values()]),
            limits={
                f"{part}.{name}": limit
                for part, model in models.items()
                for name, limit in model.limits.items()
            },
            classes=classes and classes._replace(digest=digest_of(digests)),
            models=models,
        )
