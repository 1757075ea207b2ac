"""Tuning of translation models, and of any log-linear reranker, with many sparse features."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

__version__ = "0.1.0"

# What the package offers, and where it lives. Nothing is imported before it is asked for, so that
# those who only decode or rerank do without torch.
_WHERE: Final = {
    # k-best lists
    "KBest": "kbest.lists",
    "KBestLists": "kbest.lists",
    "Source": "kbest.lists",
    "Sentences": "kbest.sentences",
    "Rows": "core.rows",
    "Vocabulary": "core.vocabulary",
    "measured": "metrics.lists",
    "minimum_risk": "metrics.lists",
    "reranked": "kbest.rerank",
    # weights
    "FrozenWeights": "core.snapshot",
    "Snapshot": "core.snapshot",
    "Weights": "core.weights",
    "read_weights": "core.weights_io",
    "save_weights": "core.weights_io",
    # what a run is made of
    "Dataset": "data.dataset",
    "BitextModel": "models.built",
    "FileModel": "models.files",
    "Model": "models.base",
    "MosesModel": "models.files",
    "PhraseModel": "models.built",
    "load_model": "models.folder",
    "Decoder": "decoders.base",
    "HieroDecoder": "decoders.hiero",
    "KBestFiles": "decoders.kbest_files",
    "PhraseDecoder": "decoders.phrase",
    "Parts": "runs.parts",
    "Recipe": "core.recipe",
    "Run": "runs.run",
    # tuning
    "Gradient": "tuners.gradient",
    "gradient": "tuners.gradient",
    "Learner": "tuners.learner",
    "tune": "tuners.solver",
    "Auto": "tuners.mert",
    "KBestMira": "tuners.mira",
    "Mert": "tuners.mert",
    "Pro": "tuners.pro",
    "Stochastic": "tuners.stochastic",
    # evaluation
    "Evaluation": "evaluation",
    "ListSet": "evaluation.tuned",
    "tune_lists": "evaluation.tuned",
    "corpus_bleu": "metrics.corpus",
    "evaluate": "tuners.sentences",
    "score_corpus": "tuners.sentences",
    "translate": "tuners.sentences",
}
_PARTS: Final = ("features", "losses", "metrics", "optim", "regularizers", "samplers")

__all__ = [*_WHERE, *_PARTS]


def __getattr__(name: str) -> Any:
    """Import what is asked for."""
    if name in _PARTS:
        return import_module(f"{__name__}.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return all names, imported already or not."""
    return sorted({*globals(), *__all__})
