"""The features of runs, weights and n-best lists, for analyses."""

from __future__ import annotations

from collections import Counter

from omegaconf import DictConfig

from torchtune_smt.analyses.overlap import FeatureSet, dense_by_names, dense_features
from torchtune_smt.cli.decoded_sets import check_lengths, open_run
from torchtune_smt.cli.hydra_main import option_errors
from torchtune_smt.cli.outputs import common_data
from torchtune_smt.cli.run_folder import recorded_tuning
from torchtune_smt.cli.systems import Output, find_systems
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.weights_io import read_origin
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.decoders.base import lists_of
from torchtune_smt.kbest.formats import read_lists
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.sentences import Sentences
from torchtune_smt.models.moses_ini import read_any_weights

WEIGHTS = "weights"
# Sentences that are decoded at a time.
BATCH = 64


def single_outputs(cfg: DictConfig) -> dict[str, Output]:
    """Return the systems that are given, each with its one output.

    Raises
    ------
    InputError
        A system has several outputs.
    """
    systems = find_systems(cfg.systems, group_seeds=False)
    for name, outputs in systems.items():
        if len(outputs) > 1:
            raise InputError(
                f"{name} has {len(outputs)} runs, and {cfg.analysis} takes one of each system; "
                "give names, as in systems={a:[outputs/A],b:[outputs/B]}"
            )
    return {name: outputs[0] for name, outputs in systems.items()}


def read_weight_set(name: str, output: Output) -> FeatureSet:
    """Return the weights of a run, or of a file, that are not 0."""
    path = output.path if output.weights is None else output.weights
    if output.kind == "lists":
        raise InputError("is an n-best list, and has no weights", path=path)
    names, values = read_any_weights(path)
    weights = dict(zip(names.names(range(len(names))), values.tolist(), strict=True))
    origin = None if path.suffix == ".ini" else read_origin(path)
    if origin is not None and origin.dense is not None:
        dense = frozenset(origin.dense)
    elif origin is None and path.suffix != ".ini":
        dense = dense_by_names(weights)
    else:
        dense = dense_features(weights, moses=origin is None or not origin.is_model)
    return FeatureSet(name, {n: w for n, w in weights.items() if w}, dense, are_weights=True)


def tuning_set(output: Output) -> tuple[str, list[list[list[str]]]]:
    """Return what a run was tuned on, in words, and the references of these sentences.

    Raises
    ------
    InputError
        The run, or its data, are not known.
    """
    folder = output.folder
    recorded = None if folder is None else recorded_tuning(folder)
    if folder is None or recorded is None:
        raise InputError("does not say what it was tuned on; give a run", path=output.path)
    with option_errors("data", recorded.data):
        dataset = Dataset(**recorded.data)
    name = recorded.tune_on
    corpus = dataset.require(name, training=name == "train")
    sentences = Sentences.of(corpus.source, corpus.references)
    drawn = sentences.drawn(recorded.sentences, recorded.seed)
    return name, [sentences.references[i] for i in drawn]


def feature_sets(cfg: DictConfig) -> list[FeatureSet]:
    """Return the sets of features that are given: of each system what ``cfg.of`` says.

    Raises
    ------
    InputError
        A file is bad, or a set cannot be decoded.
    """
    outputs = single_outputs(cfg)
    decoded = [what for what in cfg.of if what != WEIGHTS]
    if "data" in cfg and not decoded:
        raise InputError("data is given, and nothing is decoded; say what, as in of=[dev,test]")
    are_lists = [output.kind == "lists" for output in outputs.values()]
    if all(are_lists) and list(cfg.of) != [WEIGHTS]:
        raise InputError(
            f"of=[{','.join(cfg.of)}] would change nothing: n-best lists have the features that "
            "they have; leave it out"
        )
    # Unless it is what it is by itself.
    if cfg.n_best != 1 and not decoded and not any(are_lists):
        raise InputError(
            f"n_best={cfg.n_best} would change nothing: weights have no translations; leave it "
            "out, or say what is decoded, as in of=[dev,test]"
        )
    sets = []
    for system, output in outputs.items():
        if output.kind == "lists":
            stored = read_lists(output.path, missing=0)
            dense = frozenset(stored.dense_names)
            sets.append(FeatureSet(system, _fired(stored.lists, cfg.n_best), dense))
            continue
        for what in cfg.of:
            name = what if len(outputs) == 1 else system
            name += f" {what}" if len(outputs) > 1 and len(cfg.of) > 1 else ""
            if what == WEIGHTS:
                sets.append(read_weight_set(name, output))
            else:
                sets.append(_decoded(cfg, name, output, what))
    return sets


def _decoded(cfg: DictConfig, name: str, output: Output, what: str) -> FeatureSet:
    """Return the features that fire where a set of the data is decoded."""
    if output.weights is None:
        raise InputError(
            f"lies in no run's folder, and cannot decode {what}; give a run", path=output.path
        )
    data = common_data(cfg, [output], references=False)
    if data is None:
        raise InputError(f"does not say what its {what} is; give data=NAME", path=output.path)
    with option_errors("data", data):
        corpus = Dataset(**data).require(what)
    check_lengths(data, what, corpus, [output.weights])
    decoder, weights, sources = open_run(output.weights, what, corpus)
    counts: Counter[str] = Counter()
    for begin in range(0, len(sources), BATCH):
        some = sources[begin : begin + BATCH]
        counts.update(_fired(lists_of(decoder, some, weights, cfg.n_best)))
    return FeatureSet(name, counts, frozenset(decoder.dense_names))


def _fired(lists: KBestLists, first: int | None = None) -> Counter[str]:
    """Return in how many translations each feature fires, of the first ones of each list."""
    assert lists.features is not None
    counts: Counter[int] = Counter()
    for kbest in lists:
        rows = kbest.rows.between(0, min(len(kbest), first or len(kbest)))
        counts.update(rows.feature[rows.value != 0].tolist())
    names = lists.features.names(counts)
    return Counter(dict(zip(names, counts.values(), strict=True)))
