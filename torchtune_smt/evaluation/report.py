"""A comparison of systems as one HTML page that needs nothing else."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.pictures import Canvas, picture
from torchtune_smt.core.snapshot import FrozenWeights
from torchtune_smt.core.text import split_words
from torchtune_smt.core.textio import atomic_writer, iterate_lines
from torchtune_smt.decoders.base import Decoder, Derivation, lists_of
from torchtune_smt.evaluation.features import by_template, contributions
from torchtune_smt.evaluation.pictures import draw_ranges
from torchtune_smt.evaluation.tables import Results
from torchtune_smt.evaluation.translations import (
    SentenceScores,
    align,
    extremes,
    ngram_differences,
    word_f1,
)
from torchtune_smt.evaluation.tuned import TunedLists
from torchtune_smt.kbest.lists import Source
from torchtune_smt.metrics.corpus import bleu_words
from torchtune_smt.runs.curves import draw, legend, read_metrics
from torchtune_smt.runs.folder import GROUPS, METRICS
from torchtune_smt.runs.outputs import Output, Outputs

# Sentences shown of each kind; sentences that are decoded to find examples of features.
SHOWN: Final = 6
DECODED: Final = 100
# Systems beside the baseline whose sentences are shown; features and groups of each table.
PAIRS: Final = 4
FEATURES: Final = 12
DECIDED: Final = 8


def rendered(template: str, drawing: Callable[[Canvas], None] | None, **given: Any) -> str:
    """Return a page as HTML: a template that lies beside this file, with what it names.

    Whatever comes from outside is escaped, and pictures are drawn from data in the page. A content
    security policy forbids the browser to load or to run anything.
    """
    environment = Environment(
        loader=PackageLoader("torchtune_smt.evaluation", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    file = io.BytesIO()
    if drawing is not None:
        drawing(partial(picture, file, "svg"))
    text = b64encode(file.getvalue()).decode("ascii")
    return environment.get_template(f"{template}.html.jinja").render(given, picture=text)


def write_tuned(path: Path, tuned: TunedLists) -> None:
    """Write the page of a tuning on lists: its tables, and the score by each weight."""
    html = rendered(
        "tuned",
        partial(draw_ranges, tuned.ranges, tuned.judged[0]) if tuned.ranges else None,
        title=f"Tuned on {tuned.judged[0].what}",
        metric=tuned.judged[0].measure.name,
        tables=tuned.tables(),
    )
    with atomic_writer(path) as output:
        output.write(html)


class _Decoded(NamedTuple):
    """Translations of some sentences by a run's own decoder, each with its features.

    texts, rows, derivations: by the number of the sentence.
    largest: the features of each template with the largest weights.
    fires: of these: a sentence, the place of a translation in its list, and this translation.
    """

    texts: dict[int, str]
    rows: dict[int, dict[str, float]]
    derivations: dict[int, Derivation]
    weights: dict[str, float]
    largest: dict[str, list[str]]
    fires: dict[str, tuple[int, int, str]]


def write_report(
    path: Path,
    systems: Mapping[str, Sequence[Output]],
    outputs: Outputs,
    results: Results,
    baseline: str,
    *,
    open_run: Callable[..., tuple[Decoder, FrozenWeights, list[Source]]],
    templates_of_others: Callable[[Sequence[Path]], list[list[Any]]],
    tokenize: str = "none",
    lowercase: bool = False,
) -> None:
    """Write the page of a comparison.

    Of each system the median run is shown. Where the folder of a run is known, some sentences are
    decoded with its weights, for features and derivations.

    open_run: takes the weights of a run, a corpus, and ``more``, templates besides its own.
    templates_of_others: returns for each of some runs, given by their weights, the templates of the
        others that it lacks; it raises InputError where not one model scores them all.
    tokenize, lowercase: as for `torchtune_smt.evaluation.Evaluation`.
    """
    chosen = {
        name: next(o for o in found if results.median.get(name, str(found[0].path)) == str(o.path))
        for name, found in systems.items()
    }
    lines = {name: outputs.translations[output] for name, output in chosen.items()}
    scores = SentenceScores(lines, outputs.references, tokenize=tokenize, lowercase=lowercase)
    words = bleu_words(tokenize, lowercase)
    tokens = {name: [words(line) for line in found] for name, found in lines.items()}
    references = [[words(line) for line in row] for row in outputs.references]
    others = [name for name in systems if name != baseline]
    notes = []
    if lowercase or tokenize != "none":
        case = "in lower case, " if lowercase else ""
        notes.append(f"Words are shown and counted as BLEU takes them: {case}tokenize={tokenize}.")
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
    known = [output for output in (chosen[n] for n in shown) if output.weights is not None]
    lacking: dict[Output, list[Any]] = {}
    if len(known) > 1:
        try:
            paths = [output.weights for output in known if output.weights is not None]
            lacking = dict(zip(known, templates_of_others(paths), strict=True))
        except InputError as error:
            notes.append(f"Why a model prefers its own translation is not said here: {error}.")
    for name in shown:
        more = lacking.get(chosen[name], [])
        made = _decode(chosen[name], outputs, wanted, partial(open_run, more=more))
        if isinstance(made, str):
            notes.append(f"{name} has no features and derivations here: {made}.")
        else:
            decoded[name] = made

    def example(i: int, names: Sequence[str]) -> dict[str, Any]:
        """Return a sentence with the translations of one system or two, and why each was chosen.

        What all features add may be negative: the decoder's search may have missed the better one.
        """
        # The decoder of the run must write what was scored: settings may have been lost.
        same = {
            name: decoded[name]
            for name in names
            if name in decoded
            and split_words(decoded[name].texts[i]) == split_words(lines[name][i])
        }
        sides = []
        for name in names:
            mine, decided = same.get(name), []
            other = same.get(next((n for n in names if n != name), ""))
            if mine and other and lacking and mine.texts[i] != other.texts[i]:
                decided = _addends(mine, other, i)
            sides.append(
                {
                    "system": name,
                    "gain": float(scores.gains(name)[i]),
                    "decided": decided[:DECIDED],
                    "margin": sum(one["value"] for one in decided),
                    "derivation": mine.derivations.get(i) if mine else None,
                }
            )
        return {
            "number": i + 1,
            "source": "" if outputs.corpus is None else " ".join(outputs.corpus.source[i]),
            "references": outputs.references[i],
            "known": frozenset(chain.from_iterable(references[i])),
            "pieces": align(tokens[names[0]][i], tokens[names[-1]][i]),
            "sides": sides,
        }

    pairs = []
    for names, found in sentences.items():
        # Where a system is most above the baseline, or its own mean, and where most below.
        better, worse = ([example(i, names) for i in some] for some in found)
        both = [tokens[name] for name in names]
        more, fewer = ngram_differences(both[0], both[-1], references) if others else ([], [])
        pair = {"systems": names, "better": better, "worse": worse, "more": more, "fewer": fewer}
        pairs.append(pair)
    html = rendered(
        "page",
        _curves(systems),
        title=" · ".join(systems),
        tables=results.tables(),
        systems=list(systems),
        frequencies=word_f1(list(tokens.values()), references),
        lengths=scores.by_length([len(row[0]) for row in references]),
        pairs=pairs,
        runs=results.median,
        models=[_model(n, chosen[n], decoded[n], outputs) for n in shown if n in decoded],
        notes=notes,
    )
    with atomic_writer(path) as file:
        file.write(html)


def _decode(
    output: Output, outputs: Outputs, wanted: Sequence[int], opened: Callable[..., Any]
) -> _Decoded | str:
    """Decode some sentences with the weights of a run, or say why not."""
    if output.weights is None:
        return "the run that made it is not known"
    if outputs.corpus is None:
        return "its source sentences are not known"
    try:
        decoder, weights, sources = opened(output.weights, outputs.corpus)
    except InputError as error:
        return str(error)
    spread = np.linspace(0, len(sources) - 1, min(DECODED, len(sources))).astype(int).tolist()
    chosen = sorted({*wanted, *spread})
    known = weights.features.named(range(len(weights)), weights.values)
    used = [feature for feature, weight in known.items() if weight]
    # The features of each template with the largest weights.
    largest = {
        template: sorted(names, key=lambda f: (-abs(known[f]), f))[:FEATURES]
        for template, names in by_template(used, frozenset(decoder.dense_names)).items()
    }
    ids = decoder.features.intern(list(chain.from_iterable(largest.values())))
    texts, rows = {}, {}
    fires: dict[str, tuple[int, int, str]] = {}
    for kbest in lists_of(decoder, [sources[i] for i in chosen], weights):
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


def _addends(mine: _Decoded, other: _Decoded, i: int) -> list[dict[str, Any]]:
    """Return what features add to the lead of a translation, the largest first."""
    weights = mine.weights, other.weights
    found = [one for one in contributions((mine.rows[i], other.rows[i]), weights) if one.first]
    return [
        {
            "name": x.name,
            "weight": mine.weights[x.name],
            "difference": x.values[0],
            "value": x.first,
        }
        for x in sorted(found, key=lambda one: (-abs(one.first), one.name))
    ]


def _curves(systems: Mapping[str, Sequence[Output]]) -> Callable[[Canvas], None] | None:
    found: dict[str, list[Any]] = {}
    for name, outputs in systems.items():
        folders = [o.folder for o in outputs if o.folder and (o.folder / METRICS).is_file()]
        if folders:
            runs = [read_metrics(folder) for folder in folders]
            found[legend(name, runs)] = runs
    return partial(draw, found) if found else None


def _model(name: str, output: Output, decoded: _Decoded, outputs: Outputs) -> dict[str, Any]:
    assert output.folder is not None and outputs.corpus is not None
    weights: dict[str, list[dict[str, Any]]] = {}
    for template, features in decoded.largest.items():
        weights[template] = []
        for feature in features:
            example: tuple[str, ...] = ()
            if feature in decoded.fires:
                i, h, text = decoded.fires[feature]
                rank = f" (no. {h + 1} of its list)" if h else ""
                example = " ".join(outputs.corpus.source[i]), text + rank
            row = {"name": feature, "weight": decoded.weights[feature], "example": example}
            weights[template].append(row)
    return {
        "system": name,
        "run": str(output.path),
        "weights": weights,
        "looked_at": len(decoded.rows),
        "groups": largest_groups(output.folder / GROUPS),
    }


def largest_groups(path: Path) -> list[dict[str, Any]]:
    """Return the groups with the largest weights that have several features."""
    if not path.is_file():
        return []
    lines = iterate_lines(path)
    # With tuner.scaling or tuner.merge_identical there is one more, of factors.
    columns = next(lines, "").split("\t")
    found: list[dict[str, Any]] = []
    rows = (line.split("\t", len(columns) - 1) for line in lines)
    for number, some in groupby(rows, key=lambda row: row[0]):
        members = list(some)
        if columns[-1] != "feature" or any(len(row) != len(columns) for row in members):
            raise InputError("is no file of groups", path=path)
        if len(members) > 1 and len(found) < FEATURES:
            names = [row[-1] for row in members[:FEATURES]]
            _, weight, size, *_ = members[0]
            found.append({"number": number, "weight": weight, "size": size, "members": names})
    return found
