"""k-best batch MIRA."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from torchtune_smt.core.accepts import Checked, above, accepting, integer, one_of
from torchtune_smt.core.arrays import Float64, Int64
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.measure import BLEU
from torchtune_smt.tuners import mira_kernels as kernels
from torchtune_smt.tuners.solver import Solution, check_start, statistics_of

GainScale = Literal["reference", "none"]


@dataclass(frozen=True)
class KBestMira(Checked):
    """k-best batch MIRA: Cherry and Foster (2012), Algorithm 2.

    For each list, in random order, the hope h maximises score + gain, the fear f score - gain,
    and W += min(C, loss / ‖x‖²) · x, where x = H(h) - H(f) and loss = gain(h) - gain(f) - W·x.
    The gain is the score of a pseudo-document with the hypothesis added, by the measure of the
    lists' statistics: BLEU, an error rate, the mean of a column. The document starts with
    all statistics at 1; after each list whose hope has a larger gain than its fear, they are
    multiplied by `decay`, and the hope's are added (Chiang et al. 2008, as Moses's kbmira has
    it). The weights are averaged over all steps from the first pass on, and those after the pass
    with the best score on the lists are the result.

    It needs the statistics of a metric, whatever the gains of the lists are. Lists of one
    hypothesis take part in that score alone.

    C: the largest step. It takes effect in proportion to `scale`.
    passes: how often each list is seen.
    decay: of the pseudo-document; 1 never forgets.
    scale ("reference" or "none"): what the score (BLEU in 0..1) is multiplied by: the length of the
        reference, of the document and the hypothesis together, as kbmira has it (Chiang et al. took
        the source's); or nothing. A hypothesis' errors, or its number in a column, then are what
        its gain differs by. The document grows to some 1 / (1 - decay) sentences, and a hypothesis
        changes its BLEU by so much less than its own: without the length, gains hardly count beside
        the scores.
    """

    takes_measure: ClassVar[bool] = True

    accepts = accepting(
        C=above(0), passes=integer(1), decay=above(0, 1), scale=one_of(*get_args(GainScale))
    )

    C: float = 0.01
    passes: int = 60
    decay: float = 0.999
    scale: GainScale = "reference"

    def solve(self, lists: KBestLists, start: Float64, seed: Sequence[int]) -> Solution:
        """Return averaged weights; see `Solver.solve`.

        The report has, of the pass that was chosen, its number (`pass`, from 1), corpus `bleu` on
        the lists (0..1; `score` of another measure, larger is better), the lists with a loss
        (`violations`), and their mean `loss`; and `start_bleu` or `start_score` of the start.
        """
        statistics = statistics_of(lists)
        check_start(lists, start)
        generator = np.random.default_rng(seed)
        usable: Int64 = np.flatnonzero(np.diff(lists.begin) > 1)
        widest = int(np.diff(lists.rows.begin).max(initial=0))
        x_feature, x_value = np.empty(2 * widest, np.int32), np.empty(2 * widest)
        weights: Float64 = start.astype(np.float64)
        late: Float64 = np.zeros(start.size)
        background: Float64 = np.ones(statistics.shape[1])
        before = score_on(lists, start)
        name = "bleu" if lists.measure == BLEU else "score"
        best = Solution(weights, {name: -math.inf})
        for number in range(1, self.passes + 1):
            violations, loss = kernels.one_pass(
                generator.permutation(usable),
                lists.begin,
                lists.rows.begin,
                lists.rows.feature,
                lists.rows.value,
                statistics,
                lists.measure.code,
                background,
                np.empty_like(background),
                self.decay,
                self.scale == "reference",
                self.C,
                weights,
                late,
                (number - 1) * usable.size,
                x_feature,
                x_value,
            )
            average = weights - late / max(number * usable.size, 1)
            score = score_on(lists, average)
            if score > best.report[name]:
                report = {name: score, f"start_{name}": before, "pass": number}
                report |= {"violations": violations, "loss": loss / max(violations, 1)}
                best = Solution(average, report)
        return best


def score_on(lists: KBestLists, weights: Float64) -> float:
    """Return the corpus score (BLEU in 0..1) of the hypotheses that W ranks first."""
    chosen = statistics_of(lists)[lists.best(weights)]
    return float(lists.measure.scores(chosen.sum(axis=0, dtype=np.float64)))
