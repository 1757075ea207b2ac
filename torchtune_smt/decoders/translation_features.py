"""Features of whole translations, which no search looks at: its lists get a new order from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from torchtune_smt.core.snapshot import Snapshot
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.features.templates import (
    UNKNOWN_CLASS,
    RuleTemplate,
    Template,
    TranslationTemplate,
    check_classes,
    checked_names,
    escape,
    of_classes,
)
from torchtune_smt.kbest.columns import with_dense
from torchtune_smt.kbest.lists import KBestLists
from torchtune_smt.kbest.rerank import reranked
from torchtune_smt.lm.classes import WordClasses
from torchtune_smt.lm.model import NgramModel

CLASS_MODEL: Final = "ClassLM"
"""The feature of a language model of classes: log10 of a translation's probability."""


class TranslationFeatures:
    """What translations are given besides the features of their rules; true if there is anything.

    templates: those among them that look at whole translations.
    classes: of words, if there are any. A word without one is of the class `UNKNOWN_CLASS`.
    class_model: language model of the classes of the target side, whose feature is dense.

    As attributes:
    templates: of sparse features.
    dense_names: dense features.

    Raises ValueError: a template needs the classes of words, and there are none.
    """

    def __init__(
        self,
        templates: Sequence[Template],
        classes: WordClasses | None,
        class_model: NgramModel | None,
    ) -> None:
        self.templates = [one for one in templates if isinstance(one, TranslationTemplate)]
        self._classes = {} if classes is None else classes.target
        self._class_model = class_model
        self.dense_names = [] if class_model is None else [CLASS_MODEL]
        check_classes(self.templates, classes is not None)

    def __bool__(self) -> bool:
        return bool(self.templates or self.dense_names)

    def _added(self, lists: KBestLists) -> KBestLists:
        """Return lists that have these features, too.

        A feature that a whole list has stays: another list of the sentence may lack it.
        """
        assert lists.features is not None and lists.words is not None
        begin, tokens = lists.strings()
        features = lists.features
        used, place = np.unique(tokens, return_inverse=True)
        words = lists.words.names(used)
        classes = [self._classes.get(word, UNKNOWN_CLASS) for word in words]
        if self._class_model is not None:
            score = self._class_model.score_ids(self._class_model.word_ids(classes)[place], begin)
            lists = with_dense(lists, self.dense_names, score[:, None])
        spans = list(pairwise(begin.tolist()))
        texts = [np.array([*map(escape, some), ""], object) for some in (words, classes)]
        for template in self.templates:
            text = texts[of_classes(template)][place].tolist()
            fired = [template.translation_features(text[a:b]) for a, b in spans]
            for some in fired:
                if not (isinstance(some, list) and all(isinstance(name, str) for name in some)):
                    checked_names(template, some)
            names = Vocabulary()
            id = names.intern([name for some in fired for name in some]).astype(np.int64)
            known = checked_names(template, names.names(range(len(names))))
            owner = np.repeat(np.arange(len(fired)), [len(some) for some in fired])
            pair, count = np.unique(owner * max(len(known), 1) + id, return_counts=True)
            owner, id = np.divmod(pair, max(len(known), 1))
            ids = features.intern(known)[id]
            rows = lists.rows.with_entries(owner, ids, count.astype(np.float64))
            lists = replace(lists, rows=rows)
        return lists

    def ranked(self, lists: KBestLists, snapshot: Snapshot, k: int | None) -> KBestLists:
        """Return lists with these features, best first, of `k` hypotheses at most.

        lists: with names of features, which get new ones, and with words.
        """
        if not len(lists):
            return lists
        return reranked(self._added(lists), snapshot, k)


def rule_templates(templates: Sequence[Template]) -> list[RuleTemplate]:
    """Return the templates that look at rules, and not at whole translations."""
    return [one for one in templates if not isinstance(one, TranslationTemplate)]
