"""A comparison as an HTML page: what is gathered for it, of texts, runs and their decoders."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from omegaconf import DictConfig

from torchtune_smt.cli.outputs import Outputs, open_run
from torchtune_smt.cli.systems import Output
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.text import split_words
from torchtune_smt.core.textio import atomic_writer, iterate_lines
from torchtune_smt.decoders.base import Derivation, lists_of
from torchtune_smt.evaluation.features import DENSE
from torchtune_smt.evaluation.report import (
    Addend,
    Example,
    GroupRow,
    Model,
    Pair,
    Report,
    Side,
    WeightRow,
    page,
)
from torchtune_smt.evaluation.tables import Results
from torchtune_smt.evaluation.translations import (
    SentenceScores,
    align,
    extremes,
    ngram_differences,
    word_f1,
)
from torchtune_smt.features.templates import template_of
from torchtune_smt.metrics.corpus import bleu_words
from torchtune_smt.runs.curves import draw, legend, read_metrics
from torchtune_smt.runs.folder import GROUPS, METRICS

# Sentences shown of each kind; sentences that are decoded to find examples of features, and the
# translations of each that are looked at.
SHOWN: Final = 6
DECODED: Final = 100
LIST: Final = 50
# Systems beside the baseline whose sentences are shown; features and groups of each table.
PAIRS: Final = 4
FEATURES: Final = 12
DECIDED: Final = 8


class _Decoded(NamedTuple):
    """Translations of some sentences by a run's own decoder, each with its features.

    Attributes
    ----------
    texts, rows, derivations : dict
        By the number of the sentence.
    weights : dict of str to float
    largest : dict of str to list of str
        The features of each template with the largest weights.
    fires : dict of str to (int, int, str)
        Of these: a sentence, the place of a translation in its list, and this translation.
    """

    texts: dict[int, str]
    rows: dict[int, dict[str, float]]
    derivations: dict[int, Derivation]
    weights: dict[str, float]
    largest: dict[str, list[str]]
    fires: dict[str, tuple[int, int, str]]


def write_report(
    path: Path,
    cfg: DictConfig,
    systems: Mapping[str, Sequence[Output]],
    outputs: Outputs,
    results: Results,
    baseline: str,
) -> None:
    """Write the page of a comparison.

    Of each system the median run is shown. Where the folder of a run is known, some sentences are
    decoded with its weights, for features and derivations.
    """
    chosen = {
        name: next(o for o in found if results.median.get(name, str(found[0].path)) == str(o.path))
        for name, found in systems.items()
    }
    text = {"tokenize": cfg.tokenize, "lowercase": cfg.lowercase}
    lines = {name: outputs.translations[output] for name, output in chosen.items()}
    scores = SentenceScores(lines, outputs.references, **text)
    words = bleu_words(**text)
    tokens = {name: [words(line) for line in found] for name, found in lines.items()}
    references = [[words(line) for line in row] for row in outputs.references]
    others = [name for name in systems if name != baseline]
    notes = []
    if cfg.lowercase or cfg.tokenize != "none":
        case = "in lower case, " if cfg.lowercase else ""
        notes.append(
            f"Words are shown and counted as BLEU takes them: {case}tokenize={cfg.tokenize}."
        )
    if len(others) > PAIRS:
        notes.append(
            f"Examples are of {PAIRS} of {len(others)} systems; give fewer to see the others'."
        )
    # For each system and the baseline, or the baseline alone, the sentences to show.
    base = scores.gains(baseline)
    sentences: dict[tuple[str, ...], tuple[list[int], list[int]]] = {
        (name, baseline): extremes(scores.gains(name) - base, SHOWN) for name in others[:PAIRS]
    }
    if not others:
        sentences = {(baseline,): extremes(base - base.mean(), SHOWN)}
    wanted = sorted({i for found in sentences.values() for kind in found for i in kind})
    decoded: dict[str, _Decoded] = {}
    shown = [baseline, *others[:PAIRS]]
    lacking, comparable = _templates_of_others([chosen[name] for name in shown], notes)
    for name in shown:
        found = _decode(chosen[name], cfg.split, outputs, wanted, lacking.get(chosen[name], []))
        if isinstance(found, str):
            notes.append(f"{name} has no features and derivations here: {found}.")
        else:
            decoded[name] = found

    def example(i: int, names: Sequence[str]) -> Example:
        """Return a sentence with the translations of one system or two."""
        # The decoder of the run must write what was scored: settings may have been lost.
        same = {
            name: decoded[name]
            for name in names
            if name in decoded
            and split_words(decoded[name].texts[i]) == split_words(lines[name][i])
        }
        sides = []
        for name in names:
            mine = same.get(name)
            decided: list[Addend] = []
            margin = None
            other = same.get(next((n for n in names if n != name), ""))
            if mine is not None and other is not None and comparable:
                decided = _addends(mine, other, i) if mine.texts[i] != other.texts[i] else []
                margin = sum(one.value for one in decided)
            derivation = mine.derivations.get(i) if mine is not None else None
            gain = float(scores.gains(name)[i])
            sides.append(Side(name, gain, decided[:DECIDED], margin, derivation))
        source = "" if outputs.corpus is None else " ".join(outputs.corpus.source[i])
        pieces = align(tokens[names[0]][i], tokens[names[-1]][i])
        known = frozenset(chain.from_iterable(references[i]))
        return Example(i + 1, source, outputs.references[i], known, pieces, sides)

    pairs = []
    for names, (better, worse) in sentences.items():
        more, fewer = (
            ngram_differences(tokens[names[0]], tokens[names[1]], references)
            if len(names) > 1
            else ([], [])
        )
        good, bad = ([example(i, names) for i in some] for some in (better, worse))
        pairs.append(Pair(names, good, bad, more, fewer))
    report = Report(
        title=" · ".join(systems),
        tables=results.tables(),
        systems=list(systems),
        words=word_f1(list(tokens.values()), references),
        lengths=scores.by_length([len(row[0]) for row in references]),
        pairs=pairs,
        runs=results.median,
        curves=_curves(systems),
        models=[_model(n, chosen[n], decoded[n], outputs) for n in shown if n in decoded],
        notes=notes,
    )
    with atomic_writer(path) as file:
        file.write(page(report))


def _templates_of_others(
    shown: Sequence[Output], notes: list[str]
) -> tuple[dict[Output, list[Any]], bool]:
    """Return what templates each run lacks that another has, and whether one model scores all."""
    known = [output for output in shown if output.weights is not None]
    if len(known) < 2:
        return {}, False
    # Only here is a decoder needed.
    from torchtune_smt.cli.decoding import templates_of_others

    try:
        found = templates_of_others([o.weights for o in known if o.weights is not None])
    except InputError as error:
        notes.append(f"Why a model prefers its own translation is not said here: {error}.")
        return {}, False
    return dict(zip(known, found, strict=True)), True


def _decode(
    output: Output, split: str, outputs: Outputs, wanted: Sequence[int], more: Sequence[Any]
) -> _Decoded | str:
    """Return some sentences decoded with the weights of a run, or why there are none."""
    if output.weights is None:
        return "the run that made it is not known"
    if outputs.corpus is None:
        return "its source sentences are not known"
    try:
        decoder, weights, sources = open_run(output.weights, split, outputs.corpus, more)
    except InputError as error:
        return str(error)
    spread = np.linspace(0, len(sources) - 1, min(DECODED, len(sources))).astype(int).tolist()
    chosen = sorted({*wanted, *spread})
    known = weights.features.named(range(len(weights)), weights.values)
    largest = _largest(known, frozenset(decoder.dense_names))
    ids = decoder.features.intern(list(chain.from_iterable(largest.values())))
    texts, rows = {}, {}
    fires: dict[str, tuple[int, int, str]] = {}
    for kbest in lists_of(decoder, [sources[i] for i in chosen], weights, LIST):
        texts[kbest.index] = kbest.text(0)
        rows[kbest.index] = decoder.features.named(*kbest.row(0))
        found = np.flatnonzero(np.isin(kbest.rows.feature, ids) & (kbest.rows.value != 0))
        # The first translation that has it, and of all sentences the one where it comes earliest.
        features, first = np.unique(kbest.rows.feature[found], return_index=True)
        places = np.searchsorted(kbest.rows.begin, found[first], side="right") - 1
        for feature, h in decoder.features.named(features, places).items():
            if feature not in fires or h < fires[feature][1]:
                fires[feature] = kbest.index, h, kbest.text(h)
    made = {i: decoder.derivation(sources[i], weights) for i in wanted}
    derivations = {i: one for i, one in made.items() if one is not None}
    return _Decoded(texts, rows, derivations, known, largest, fires)


def _largest(weights: Mapping[str, float], dense: Collection[str]) -> dict[str, list[str]]:
    """Return the features of each template with the largest weights, dense ones first."""
    by_template: dict[str, list[str]] = {}
    for feature, weight in weights.items():
        if weight:
            template = DENSE if feature in dense else template_of(feature)
            by_template.setdefault(template, []).append(feature)
    return {
        template: sorted(by_template[template], key=lambda f: (-abs(weights[f]), f))[:FEATURES]
        for template in sorted(by_template, key=lambda t: (t != DENSE, t))
    }


def _addends(mine: _Decoded, other: _Decoded, i: int) -> list[Addend]:
    """Return what a run's features add to the lead of its translation, the largest first."""
    ours, theirs = mine.rows[i], other.rows[i]
    found = [
        Addend(name, mine.weights[name], ours.get(name, 0.0) - theirs.get(name, 0.0))
        for name in sorted(ours.keys() | theirs.keys())
        if mine.weights.get(name)
    ]
    return sorted((one for one in found if one.value), key=lambda one: -abs(one.value))


def _curves(systems: Mapping[str, Sequence[Output]]) -> bytes:
    """Return the learning curves of all runs that have some, as SVG."""
    found: dict[str, list[Any]] = {}
    for name, outputs in systems.items():
        folders = [o.folder for o in outputs if o.folder and (o.folder / METRICS).is_file()]
        if folders:
            runs = [read_metrics(folder) for folder in folders]
            found[legend(name, runs)] = runs
    file = io.BytesIO()
    if found:
        draw(found, file, "svg")
    return file.getvalue()


def _model(name: str, output: Output, decoded: _Decoded, outputs: Outputs) -> Model:
    """Return the largest weights of each template, with sentences in which they fire."""
    assert output.folder is not None and outputs.corpus is not None
    weights: dict[str, list[WeightRow]] = {}
    for template, features in decoded.largest.items():
        weights[template] = []
        for feature in features:
            example: tuple[str, ...] = ()
            if feature in decoded.fires:
                i, h, text = decoded.fires[feature]
                rank = f" (no. {h + 1} of its list)" if h else ""
                example = " ".join(outputs.corpus.source[i]), text + rank
            weights[template].append(WeightRow(feature, decoded.weights[feature], example))
    groups = _groups(output.folder / GROUPS)
    return Model(name, str(output.path), weights, len(decoded.rows), groups)


def _groups(path: Path) -> list[GroupRow]:
    """Return the groups with the largest weights that have several features."""
    if not path.is_file():
        return []
    lines = iterate_lines(path)
    # With tuner.scaling or tuner.merge_identical there is one more, of factors.
    columns = next(lines, "").split("\t")
    last = len(columns) - 1
    found: list[GroupRow] = []
    for _, rows in groupby((line.split("\t", last) for line in lines), key=lambda row: row[0]):
        members = list(rows)
        if columns[-1] != "feature" or any(len(row) != len(columns) for row in members):
            raise InputError("is no file of groups", path=path)
        if len(members) > 1 and len(found) < FEATURES:
            number, weight, size = members[0][:3]
            found.append(GroupRow(number, weight, size, [row[-1] for row in members[:FEATURES]]))
    return found
