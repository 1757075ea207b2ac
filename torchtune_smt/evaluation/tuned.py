"""Weights tuned on k-best lists, and what was gained, told honestly.

The score on the lists that were tuned on is too good: weights were chosen by it. By
cross-validation each list is judged under weights that were tuned without it (and without the
others of its group: a speaker, a document), and the score of all is what to expect of new lists.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args

import numpy as np

from torchtune_smt.core.accepts import integer, one_of
from torchtune_smt.core.arrays import Bool, Float64, Int64
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.rows import mark
from torchtune_smt.core.snapshot import FrozenWeights, Snapshot
from torchtune_smt.core.text import split_words
from torchtune_smt.core.textio import read_lines
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.data.suspicions import output_suspicions
from torchtune_smt.evaluation.oracle import best_choice
from torchtune_smt.evaluation.significance import (
    SAMPLES,
    bootstrap_scores,
    randomization_test,
    said_p,
)
from torchtune_smt.evaluation.tables import Cell, Table
from torchtune_smt.features.strings import StringFeatures
from torchtune_smt.features.texts import NAMES, TextFeatures
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.measure import BLEU, Measure
from torchtune_smt.kbest.order import combination, sorted_by
from torchtune_smt.kbest.stored_lists import StoredLists, names_in
from torchtune_smt.kbest.tools import keyed_lines
from torchtune_smt.metrics import CharacterErrorRate, TranslationEditRate, WordErrorRate
from torchtune_smt.metrics.base import Metric, References, measure_of
from torchtune_smt.metrics.chrf import ChrF
from torchtune_smt.metrics.lists import measured
from torchtune_smt.metrics.mix import CorpusBleu
from torchtune_smt.models.moses_ini import read_any_weights
from torchtune_smt.runs.outputs import SENTENCE_ID, check_text
from torchtune_smt.tuners.lines import EQUAL, Curve, candidates_of
from torchtune_smt.tuners.mert import Auto
from torchtune_smt.tuners.solver import Solver, checked_solution

# Reported beside what is tuned, and never tuned on.
HELD_OUT: Final[tuple[tuple[Metric, ...], ...]] = (
    (WordErrorRate(), CharacterErrorRate()),
    (CorpusBleu(), ChrF(), TranslationEditRate()),
)
# Of more features, there is no table of their weights.
FEW: Final = 50
Added = Literal["auto", "none", "dense"]
# So many lists that a dozen weights more do not fit their noise.
ENOUGH: Final = 500
# Of the l1 norm of features of strings: nearly all that are noise stay out.
STRENGTH: Final = 0.02
# Of the scores' variance; what is left is rounding's.
EXACT: Final = 1 - 1e-4


@dataclass(frozen=True)
class ListSet:
    """Lists of some sentences, with what they are judged by.

    lists: with names of features and words; in each list, the hypotheses in the decoder's order.
    references: by `KBestLists.index`.
    groups: the speaker, or document, of each list; cross-validation and tests keep them together.
    sources: the source sentence of each list, for features of texts that look at it.
    """

    name: str
    lists: KBestLists
    references: References
    groups: Sequence[str] | None = None
    sources: Sequence[str] | None = None

    @cached_property
    def group(self) -> Int64:
        """The number of each list's group."""
        if self.groups is None:
            return np.arange(len(self.lists))
        if len(self.groups) != len(self.lists):
            raise ValueError(
                f"{self.name}: there are {len(self.groups)} groups, and {len(self.lists)} lists"
            )
        return np.unique(list(self.groups), return_inverse=True)[1].astype(np.int64)


class Judged(NamedTuple):
    """A choice of hypotheses judged by a metric, beside the decoder's own.

    what: of which lists, and how it was chosen.
    before, after: for people.
    low, high: 95% of `after` lie between them on sentences, or groups, that are drawn anew.
    p: of a difference as large without any; None where the weights were chosen by this.
    worst, best: of all choices there are.
    """

    what: str
    sentences: int
    measure: Measure
    before: float
    after: float
    low: float
    high: float
    p: float | None
    worst: float | None = None
    best: float | None = None


class WeightRange(NamedTuple):
    """A weight, and what other values it could have while the others stay as they are.

    start: what tuning began at; 0 where it was given nothing.
    equal: as good on the lists tuned on.
    gaining: better than the decoder's own order.
    without: the score with the weight 0, for people.
    curve: the score, larger is better, by the weight.
    """

    name: str
    start: float
    weight: float
    equal: tuple[float, float]
    gaining: tuple[float, float] | None
    without: float
    curve: Curve


@dataclass(frozen=True)
class TunedLists:
    """Weights, and what was gained.

    judged: on the lists tuned on, by cross-validation, and on the sets of tests; metric by metric.
    ranges: of up to 50 features.
    text_features, string_features: which features of texts there are besides those of the lists.
    """

    weights: FrozenWeights
    judged: list[Judged]
    ranges: list[WeightRange]
    notes: list[str]
    text_features: TextFeatures | None = None
    string_features: StringFeatures | None = None

    def tables(self) -> list[Table]:
        """Return what was gained, and the weights."""
        rows: list[list[Cell]] = []
        for one in self.judged:
            shown = [f"{x:.{one.measure.digits}f}" for x in (one.before, one.after)]
            interval = " to ".join(f"{x:.{one.measure.digits}f}" for x in (one.low, one.high))
            ends = [
                "" if x is None else f"{x:.{one.measure.digits}f}" for x in (one.best, one.worst)
            ]
            p = "" if one.p is None else said_p(one.p)
            rows.append([one.what, one.measure.name, *shown, interval, p, *ends])
        head = ["lists", "metric", "before", "after", "95%", "p", "oracle", "anti-oracle"]
        tables = [Table(head, rows, self.notes, left=2)]
        if self.ranges:
            measure = self.judged[0].measure
            weights: list[list[Cell]] = [
                [
                    one.name,
                    one.start,
                    one.weight,
                    _span(one.equal),
                    "" if one.gaining is None else _span(one.gaining),
                    f"{one.without:.{measure.digits}f}",
                ]
                for one in self.ranges
            ]
            head = ["feature", "start", "weight", "equally good", "better than before", "with 0"]
            note = "each weight by itself, the others as they are, on the lists tuned on"
            tables.append(Table(head, weights, [note]))
        return tables

    def text(self) -> str:
        """Return the tables as plain text."""
        return "\n".join(table.text() for table in self.tables())


def tune_lists(
    dev: ListSet,
    *tests: ListSet,
    metric: Metric,
    held_out: Sequence[Metric] = (),
    solver: Solver | None = None,
    start: Snapshot | None = None,
    folds: int = 5,
    seed: int = 0,
    samples: int = SAMPLES,
    texts: Added = "auto",
    strings: StringFeatures | None = None,
    least: int = 3,
    say: Callable[[str], None] = lambda text: None,
) -> TunedLists:
    """Tune weights on lists, and say what was gained.

    dev: tuned on.
    tests: judged in the end; nothing is chosen by them.
    metric: tuned to.
    held_out: reported besides.
    solver: `Auto` by default.
    start: by default, where lists have scores, the weights that explain them best.
    folds: of cross-validation, for which weights are tuned so many times more; 0: none. There are
        no more of them than groups of lists.
    seed: of the solver, the folds and the tests.
    samples: of intervals and tests.
    texts: features of texts that are added to those of the lists: "none"; "dense" (see
        `TextFeatures`); "auto": these where there are 500 lists and weights to start from.
    strings: sparse features of texts that are added, if hypotheses of `least` lists of `dev` differ
        in them. `Auto` is then `ExpectedErrors`, with an l1 norm that leaves out what is noise.
    say: told at once what lists were sorted by.

    Raises InputError: a set of tests has sentences of `dev`, or the solver cannot work on the
    lists. ValueError: the lists have no names of features or no words.
    """
    integer(0).check("folds", folds)
    one_of(*get_args(Added)).check("texts", texts)
    integer(1).check("least", least)
    for test in tests:
        _check_apart(dev, test)
    lists = measured(dev.lists, dev.references, metric)
    names = lists.features
    if names is None:
        raise ValueError("these lists have no names of features")
    if folds == 1:
        raise InputError("folds=1: there must be 2 or more, or 0")
    dimension, notes = len(names), list[str]()
    groups = int(dev.group.max()) + 1
    if folds > groups:
        folds = groups if groups > 1 else 0
        few = f"{groups} of them" if folds else "one, and no folds"
        notes.append(f"there are no more groups of lists than {few}")
    first = np.zeros(dimension)
    if start is not None:
        first = start.read(names, np.arange(dimension))
    elif lists.score is not None:
        first, said = _own_weights(lists)
        say(said)
        notes.append(said)
    solver = solver or Auto()
    text = None
    several = np.count_nonzero(np.diff(lists.begin) > 1)
    if texts == "dense" or (texts == "auto" and first.any() and several >= ENOUGH):
        text = TextFeatures.of(lists, first)
        lists = text.added(lists)
        if isinstance(solver, Auto) and first.any():
            solver = replace(solver, tens=solver.few)
        added = ", ".join(NAMES)
        notes.append(f"features of texts were added (texts=none leaves them out): {added}")
    if strings is not None:
        if isinstance(solver, Auto):
            # It brings torch, which a few weights do without.
            from torchtune_smt.tuners.expected import ExpectedErrors

            solver = ExpectedErrors(strength=STRENGTH)
        dense = len(names)
        lists = strings.added(lists, names, dev.sources, least)
        notes.append(f"{len(names) - dense:,} features of strings were added")
    if dimension < len(names):
        dimension = len(names)
        more = np.arange(first.size, dimension)
        first = np.append(first, np.zeros(more.size) if start is None else start.read(names, more))

    def solved(some: KBestLists) -> Float64:
        found = solver.solve(some, first.copy(), (seed,))
        return checked_solution(found, solver, dimension).weights

    weights = solved(lists)
    every = [_Chosen(dev.name, dev, lists, lists.best(weights), seen=True)]
    if folds:
        chosen = np.empty(len(lists), np.int64)
        fold = _folds(dev.group, folds, seed)
        for number in range(folds):
            out = np.flatnonzero(fold == number)
            try:
                without = solved(lists.some(np.flatnonzero(fold != number)))
            except InputError as error:
                # There is something to be learnt from all lists, and not from these.
                without = first
                notes.append(f"a fold has the weights of the start: {error.message}")
            some = lists.some(out)
            chosen[out] = lists.begin[out] + some.best(without) - some.begin[:-1]
        every.append(_Chosen(f"{dev.name}, {folds} folds", dev, lists, chosen, folds=True))
    for test in tests:
        own = measured(test.lists, test.references, metric)
        if own.features is not names:
            raise ValueError(f"{test.name} does not share the features of {dev.name}")
        own = own if text is None else text.added(own)
        own = own if strings is None else strings.added(own, names, test.sources)
        every.append(_Chosen(test.name, test, own, own.best(weights)))
    judged = [_judged(one, by, seed, samples) for by in (metric, *held_out) for one in every]
    worse = [
        one.what
        for one in judged
        if one.measure == measure_of(metric) and one.measure.unit * (one.after - one.before) < 0
    ]
    if dev.name in worse:
        notes.append(
            f"no weights of these features were found that reach the decoder's own order on "
            f"{dev.name}: it is better than what is returned"
        )
    if others := [what for what in worse if what != dev.name]:
        notes.append(f"the decoder's own order is better on {', '.join(others)}")
    if folds:
        notes.append(
            f"what to expect on new lists is in the line of the {folds} folds: each was judged "
            "under weights that were tuned without it"
        )
    if folds and start is not None:
        notes.append(
            "the weights of start are those of each fold, too: if they were tuned on these lists, "
            "the line of the folds is too good"
        )
    whole = "sentences" if dev.groups is None else "groups"
    notes.append(f"p: randomisation by {whole}, {samples:,} trials; 95%: bootstrap by {whole}")
    used = int(np.count_nonzero(_used(lists)))
    ranges = _ranges(lists, first, weights) if 0 < used <= FEW else []
    if strings is not None:
        left = sum(map(strings.gives, names.names(np.flatnonzero(weights))))
        notes.append(f"{left:,} features of strings have a weight")
    return TunedLists(FrozenWeights(names, weights), judged, ranges, notes, text, strings)


def _span(ends: tuple[float, float]) -> str:
    return " to ".join(f"{x:.4g}" for x in ends)


def _check_apart(dev: ListSet, test: ListSet) -> None:
    mine, theirs = dev.lists, test.lists
    shared: list[str] = []
    names = [some.ids.names(some.index) for some in (mine, theirs) if some.ids is not None]
    numbered = len(names) < 2 or all(name.isdecimal() for some in names for name in some)
    if not numbered:
        # Numbers are of lines, which all files have.
        known = set(names[0])
        shared = [name for name in names[1] if name in known and not name.isdecimal()]
    elif mine.words is not None and theirs.words is not None:
        texts = [tuple(one.texts()) for one in mine]
        others = {tuple(one.texts()) for one in theirs}
        same = [text for text in texts if text in others]
        shared = ["all of them"] if len(same) == len(texts) else []
    if shared:
        raise InputError(
            f"{test.name} has sentences of {dev.name}, {shared[0]} among them: weights that are "
            "tuned on the sentences of a test say nothing of others; give other lists"
        )


def _used(lists: KBestLists) -> Bool:
    assert lists.features is not None
    found = np.zeros(len(lists.features), np.bool_)
    mark(found, lists.rows.feature)
    return found


def _own_weights(lists: KBestLists) -> tuple[Float64, str]:
    """Return the weights that explain the scores of lists best, and what is said of them."""
    assert lists.features is not None and lists.score is not None
    first = np.zeros(len(lists.features))
    if (number := np.count_nonzero(_used(lists))) > FEW:
        return first, f"there are {number:,} features: tuning starts from weights of 0"
    active, rows = lists.rows.numbered()
    table = np.ascontiguousarray(rows.dense(active.size).T)
    found, share = sorted_by(lists.begin, table, lists.score)
    if share <= 0:
        return first, "the scores of these lists have nothing to do with their features"
    first[active] = found
    said = combination(lists.features.names(active), found)
    if share >= EXACT:
        return first, f"these lists were sorted by {said}"
    return first, f"the scores of these lists are explained to {share:.1%} by {said}"


def _folds(group: Int64, folds: int, seed: int) -> Int64:
    """Return the fold of each list: groups in random order, each to the fold with fewest lists."""
    sizes = np.bincount(group)
    order = np.random.default_rng((seed, 1)).permutation(sizes.size)
    filled, fold = np.zeros(folds, np.int64), np.empty(sizes.size, np.int64)
    for g in order[np.argsort(-sizes[order], kind="stable")].tolist():
        fold[g] = filled.argmin()
        filled[fold[g]] += sizes[g]
    return fold[group]


class _Chosen(NamedTuple):
    """What was chosen of a set, under weights tuned on it (`seen`) or of several folds."""

    what: str
    set: ListSet
    lists: KBestLists
    chosen: Int64
    seen: bool = False
    folds: bool = False


def _judged(one: _Chosen, metric: Metric, seed: int, samples: int) -> Judged:
    lists, before, after = one.lists, one.lists.begin[:-1], one.chosen
    own = lists.statistics is not None and lists.measure == measure_of(metric)
    if not own:
        # No more than what is asked for.
        numbers = np.unique(np.concatenate([before, after]))
        before, after = np.searchsorted(numbers, before), np.searchsorted(numbers, after)
        lists = replace(lists, gain=None, statistics=None, measure=BLEU).chosen(numbers)
        lists = measured(lists, one.set.references, metric)
    assert lists.statistics is not None
    measure, statistics = lists.measure, lists.statistics.astype(np.float64)
    rows = np.zeros((2, int(one.set.group.max(initial=-1)) + 1, measure.width))
    for row, chosen in zip(rows, (before, after), strict=True):
        np.add.at(row, one.set.group, statistics[chosen])
    drawn = bootstrap_scores(rows[1][:, None], measure.scores, samples, seed)
    scores = measure.scores(rows.sum(axis=1))
    low, high = np.sort(measure.of_people(np.percentile(drawn, (2.5, 97.5))))
    p: float | None = None
    best: float | None = None
    worst: float | None = None
    if not one.seen:
        pair = rows[0][:, None], rows[1][:, None]
        p = randomization_test(*pair, measure.scores, samples, seed).value
    if own and not one.folds:
        best, worst = (
            float(measure.of_people(measure.scores(statistics[chosen].sum(axis=0))))
            for chosen in (
                best_choice(statistics, lists.begin, measure.scores),
                best_choice(statistics, lists.begin, lambda sums: -measure.scores(sums)),
            )
        )
    was, now = measure.of_people(scores).tolist()
    return Judged(
        *(one.what, len(lists), measure, was, now, float(low), float(high), p, worst, best)
    )


def _ranges(lists: KBestLists, start: Float64, weights: Float64) -> list[WeightRange]:
    assert lists.features is not None and lists.statistics is not None
    active, candidates = candidates_of(lists)
    own = weights[active]
    score, measure = lists.measure.scores, lists.measure
    before = float(score(lists.statistics[lists.begin[:-1]].sum(axis=0)))
    now = candidates.at(own)
    ranges = []
    for j, name in enumerate(lists.features.names(active)):
        curve = candidates.along(own, np.eye(active.size)[j])
        curve = Curve(curve.bound + own[j], curve.score)
        # A line's scores are sums in another order, so that equal ones may differ in the last bits.
        low, high = curve.around(own[j], before + 2 * EQUAL * max(abs(before), 1.0))
        gaining = (low, high) if now > before and low < high else None
        equal = curve.around(own[j], now)
        without = own.copy()
        without[j] = 0.0
        left = float(measure.of_people(np.array(candidates.at(without))))
        ranges.append(WeightRange(name, start[active[j]], own[j], equal, gaining, left, curve))
    return ranges


def with_references(
    stored: StoredLists, found: Mapping[int, list[str]], name: str, *, count: bool
) -> tuple[KBestLists, list[list[list[str]]]]:
    """Return lists and references; sentences without a list `count` as an empty hypothesis."""
    lists = stored.lists
    bare = sorted(found.keys() - set(lists.index.tolist()))
    if bare:
        called = str(bare[0]) if lists.ids is None else lists.ids[bare[0]]
        how = "count as empty ones (unlisted=leave leaves them out)"
        print(
            f"{name}: {len(bare):,} of {len(found):,} sentences have references and no list, "
            f"{called} among them: they {how if count else 'are left out'}",
            file=sys.stderr,
        )
    if count and bare:
        lists = lists.with_empty(bare)
    rows: list[list[list[str]]] = [[] for _ in range(int(lists.index.max(initial=-1)) + 1)]
    for number in lists.index.tolist():
        rows[number] = [split_words(text) for text in found[number]]
    return lists, rows


def look_at(
    lists: KBestLists,
    references: Sequence[Sequence[Sequence[str]]],
    name: str,
    called: str,
    filters: Sequence[str],
) -> None:
    """Tell what is suspicious about lists, whose metric `filters`, or refuse them."""
    of_lists = [references[number] for number in lists.index.tolist()]
    if not any(map(any, of_lists)):
        raise InputError("has no word: no error rate is defined without", path=called)
    if (np.diff(lists.begin) == 1).all():
        raise InputError("has one hypothesis a sentence, and nothing to choose", path=name)
    first = [split_words(lists.text(h)) for h in lists.begin[:-1].tolist()]
    splits = not {"bpe", "detokenize"}.intersection(filters)
    for said in output_suspicions(
        name, first, of_lists, case="lowercase" not in filters, tokens=splits
    ):
        print(f"warning: {said}", file=sys.stderr)


def own_references(stored: StoredLists, name: str) -> Mapping[int, list[str]]:
    """Return the references that lists have themselves."""
    own = stored.references
    if any(n not in own for n in stored.lists.index.tolist()):
        option = "references" if name == "dev" else f"{name}_references"
        raise InputError(
            f"{option} is null, and {'some' if own else 'none'} of the lists of {name} have "
            f"references of their own; give a file with {option}=FILE"
        )
    return own


def references_of_files(
    paths: Sequence[str], stored: StoredLists, *, more: bool = False
) -> dict[int, list[str]]:
    """Return the references of all sentences, by number: of lines with ids, or by lines.

    more: whether numbered lists may be of the first sentences alone.
    """
    lists, n = stored.lists, stored.n_sentences
    ids = None if lists.ids is None else lists.ids.names(range(len(lists.ids)))
    there = set() if ids is None else {ids[number] for number in lists.index.tolist()}
    found: dict[int, list[str]] = {}
    for path in paths:
        lines = read_lines(Path(path))
        if ids is not None:
            # A TAB may stand behind an id.
            lines = [re.sub("^([^ \t]+)\t", "\\1 ", line) for line in lines]
        check_text(path, lines)
        firsts = {line.partition(" ")[0] for line in lines}
        if ids is None:
            texts = {str(number): text for number, text in enumerate(lines)}
            if len(firsts) == len(lines) > 1 and all(map(SENTENCE_ID.fullmatch, firsts)):
                raise InputError(
                    f"begins each line with the id of its sentence, such as {min(firsts)}, and "
                    "the lists number theirs: leave the ids out, or name sentences in the lists",
                    path=path,
                )
            if len(lines) > 1 and firsts == texts.keys():
                texts = {id: text for id, (text, _) in keyed_lines(Path(path), lines).items()}
            needed = {str(number) for number in range(n)}
        elif all(id.isdecimal() for id in ids) and not firsts.issuperset(there):
            called = {int(id): id for id in ids}
            texts = {called.get(i, str(i)): text for i, text in enumerate(lines)}
            needed, n = set(ids), max(called) + 1
        else:
            texts = {id: text for id, (text, _) in keyed_lines(Path(path), lines).items()}
            if lacking := [id for id in ids if id in there and id not in texts]:
                raise InputError(
                    f"has no line for {lacking[0]!r}, which has a list; each begins with the id of "
                    "its sentence",
                    path=path,
                )
            needed = set()
        if needed - texts.keys() or (ids is None and not more and len(lines) != n):
            hint = "" if ids is None or "0" in needed else " (do the ids count from 1?)"
            last = "; where the last ones have no list, say on_error=skip"
            raise InputError(
                f"has {len(lines)} lines, and the lists are of {n} sentences, counted from 0"
                f"{hint}; there must be a line for each{last * (len(lines) > n)}",
                path=path,
            )
        numbers = map(int, texts) if lists.ids is None else lists.ids.intern(list(texts)).tolist()
        for number, text in zip(numbers, texts.values(), strict=True):
            found.setdefault(number, []).append(text)
    return found


def others_of(metric: Metric) -> list[Metric]:
    """Return the metrics that are reported beside the one that is tuned."""
    own = measure_of(metric)
    family = next((some for some in HELD_OUT if own in map(measure_of, some)), HELD_OUT[1])
    return [other for other in family if measure_of(other) != own]


def start_of(path: str, features: Vocabulary) -> FrozenWeights:
    """Return the weights of a file under the names that lists have for features."""
    known, values = read_any_weights(path)
    names = names_in(features, known.names(range(len(known))))
    if not np.any(values[features.lookup(names) >= 0]):
        raise InputError("has no weight for any feature of these lists", path=path)
    return FrozenWeights(Vocabulary(names), values)


def groups_of(given: str, lists: KBestLists) -> list[str]:
    """Return the group of each list."""
    ids = [str(n) for n in lists.index.tolist()]
    if lists.ids is not None:
        ids = lists.ids.names(lists.index)
    if Path(given).is_file():
        lines = keyed_lines(Path(given))
        for id in ids:
            if id not in lines:
                raise InputError(f"has no line for {id!r}, which has a list", path=given)
        return [lines[id][0].strip() for id in ids]
    for id in ids:
        if given not in id:
            raise InputError(f"groups={given} is no file, and no part of the id {id!r}")
    return [id.partition(given)[0] for id in ids]
