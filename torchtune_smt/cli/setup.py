"""From a composed configuration to the objects that it describes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from hydra.utils import instantiate
from omegaconf import DictConfig, ListConfig

from torchtune_smt.cli.hydra_main import option_errors
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import PACKAGE, example_folder
from torchtune_smt.core.weights import Weights
from torchtune_smt.core.weights_io import read_weights
from torchtune_smt.data.bitext import Corpus, find_files, read_corpus
from torchtune_smt.data.preprocess import LengthFilter, Preprocessor
from torchtune_smt.decoders.hiero import HieroDecoder
from torchtune_smt.features.template import template_of
from torchtune_smt.models.base import Model


def read_split(
    data: DictConfig, split: str, *, training: bool = False, max_words: int | None = None
) -> Corpus | None:
    """Read one part of the configured data (``train``, ``dev``, ``test``); None if it has none.

    Parameters
    ----------
    training : bool
        Leave out what `data.max_length` and `data.max_ratio` leave out.
    max_words : int, optional
        A source sentence with more words, which could not be decoded, is an error.

    Raises
    ------
    InputError
        As `read_corpus` and `find_files`; or the data is in none of the configured folders.
    """
    where = data[split]
    if where is None:
        return None
    languages = data.source_language, data.target_language
    if isinstance(where, ListConfig):
        paths = [str(path) for path in where]
        if len(paths) < 2:
            raise InputError(
                f"data.{split} names {len(paths)} files; give the source and at least one "
                f"reference, as in 'data.{split}=[{split}.{languages[0]},{split}.{languages[1]}]'"
            )
        source, references = Path(paths[0]), [Path(path) for path in paths[1:]]
    else:
        source, references = find_files(_folder(data), where, *languages)
    texts = [
        Preprocessor(
            language=language,
            lowercase=data.lowercase,
            normalize=data.normalize,
            tokenize=data.tokenize,
        )
        for language in languages
    ]
    return read_corpus(
        source,
        references,
        empty=data.empty,
        source_text=texts[0],
        target_text=texts[1],
        lengths=LengthFilter(data.max_length, data.max_ratio) if training else None,
        max_words=max_words,
    )


def require_split(
    data: DictConfig, split: str, *, training: bool = False, max_words: int | None = None
) -> Corpus:
    """Read a part of the data that is needed (see `read_split`)."""
    corpus = read_split(data, split, training=training, max_words=max_words)
    if corpus is None:
        raise InputError(f"data.{split} is null, and it is needed; name its files")
    return corpus


def _folder(data: DictConfig) -> Path:
    """Return the first of the configured folders that exists."""
    if data.folders is None:
        return example_folder()
    names = [data.folders] if isinstance(data.folders, str) else list(data.folders)
    # Relative to where the command runs, or to the clone that the package lies in.
    candidates = [base / name for name in names for base in (Path(), PACKAGE.parent)]
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise InputError(
        f"the data of {data.name} is in none of {', '.join(names)}: fetch it with "
        f"scripts/get_data.py {data.name}, or say where it is with data.folders=[FOLDER]"
    )


def make_decoder(cfg: DictConfig, model: Model, templates: Sequence[Any]) -> HieroDecoder:
    """Return the configured decoder."""
    with option_errors("decoder"):
        return HieroDecoder(
            model,
            templates=templates,
            k=cfg.decoder.k,
            pop_limit=cfg.decoder.pop_limit,
            max_span=cfg.decoder.max_span,
            max_words=cfg.decoder.max_words,
            unique=cfg.decoder.unique,
            threads=thread_count(cfg.threads),
        )


def make_templates(features: DictConfig) -> list[Any]:
    """Return the configured templates of sparse features."""
    with option_errors("features.templates"):
        templates = [instantiate(template) for template in features.templates]
    for template in templates:
        check_part("features.templates", template, "name", "features")
    names = [template.name for template in templates]
    if len(set(names)) < len(names):
        raise InputError(f"features.templates has one twice: {', '.join(names)}")
    return templates


def check_part(option: str, part: object, *methods: str) -> None:
    """Raise InputError if an object made from the configuration lacks what it is needed for."""
    for method in methods:
        if not hasattr(part, method):
            raise InputError(
                f"{option}: {type(part).__name__} has no {method!r}; is it meant here?"
            )


def thread_count(threads: int | None) -> int:
    """Return the number of threads: as configured, or one for each core there is to use."""
    if threads is not None:
        return threads
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def initial_weights(
    init: DictConfig, decoder: HieroDecoder, report: Callable[[str], None] = print
) -> Weights:
    """Return the weights that tuning starts from.

    Raises
    ------
    InputError
        The weights file is bad, or no dense feature has a weight in it.
    """
    dense = decoder.dense_names
    if init.file is not None:
        templates = {template.name for template in decoder.templates}
        weights = weights_of_file(
            init.file, dense, lambda name: name in dense or template_of(name) in templates, report
        )
        if not weights.parameter[: weights.n_dense].any():
            raise InputError(
                f"has no weight for any of this model's dense features ({', '.join(dense)}); is it "
                "the weights file of another model?",
                path=init.file,
            )
        return weights
    weights = Weights(dense)
    values = dict(init["values"])
    known = {name: value for name, value in values.items() if name in weights.features}
    weights.set(list(known), list(known.values()))
    if values and not known:
        raise InputError(
            "init.values has none of this model's dense features "
            f"({', '.join(dense)}); give init=file init.file=WEIGHTS"
        )
    return weights


def weights_of_file(
    path: str, dense: Sequence[str], exists: Callable[[str], bool], report: Callable[[str], None]
) -> Weights:
    """Return the weights that a file has for features that exist.

    Weights of other features would have no effect: they are left out, and their number is reported.

    Parameters
    ----------
    dense : sequence of str
        The dense features.
    exists : callable
        Says whether there is such a feature.
    report : callable
        Told what is left out.
    """
    names, values = read_weights(path)
    named = names.names(range(len(names)))
    there = np.array([exists(name) for name in named], np.bool_)
    if there.any() and not there.all():
        others = np.flatnonzero(~there)
        report(
            f"{path}: {others.size:,} of {len(names):,} weights are left out, as their features, "
            f"such as {named[others[0]]}, are not in use here"
        )
    weights = Weights(dense)
    weights.set(list(compress(named, there)), values[there])
    return weights
