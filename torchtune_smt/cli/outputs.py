"""The translations, the references and the sets of systems that are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from omegaconf import DictConfig, OmegaConf

from torchtune_smt.cli.errors import option_errors
from torchtune_smt.cli.systems import paths_of
from torchtune_smt.cli.wire import make_dataset
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.weights_io import read_origin
from torchtune_smt.data.bitext import Corpus
from torchtune_smt.data.dataset import Dataset
from torchtune_smt.kbest.formats import read_lists
from torchtune_smt.kbest.lists import Source
from torchtune_smt.runs.outputs import (
    Output,
    Outputs,
    check_text,
    columns_of,
    is_list_line,
    of_skipped,
)
from torchtune_smt.runs.records import lacks_words, recorded_data

if TYPE_CHECKING:
    from torchtune_smt.core.snapshot import FrozenWeights
    from torchtune_smt.decoders.base import Decoder

# What of a run's data the text of a set depends on, apart from the set's own files.
_TEXT: Final = "source_language target_language folders normalize tokenize lowercase empty".split()


def open_run(
    split: str, weights: Path, corpus: Corpus, more: Sequence[Any] = ()
) -> tuple[Decoder, FrozenWeights, list[Source]]:
    """Return the decoder of a run, given by its weights, these, and a set as it is to decode it.

    Sentences of ``train`` alone are looked up in the bitext that the decoder's model was built
    from, and are left out of it, as in tuning. `more` is as for
    `torchtune_smt.cli.decoding.tuned_of`.
    """
    # Most comparisons need no decoder.
    from torchtune_smt.cli.decoding import tuned_of

    decoder, own, train_index = tuned_of(weights, more, corpus if split == "train" else None)
    sources = [Source(i, words, train_index.get(i, -1)) for i, words in enumerate(corpus.source)]
    return decoder, own, sources


def templates_of_others(weights: Sequence[Path]) -> list[list[Any]]:
    """Return what `torchtune_smt.cli.decoding.templates_of_others` does, which imports decoders."""
    from torchtune_smt.cli.decoding import templates_of_others as found

    return found(weights)


def read_set(
    data: Mapping[str, Any], split: str, runs: Iterable[Path], chosen: int | None = None
) -> Corpus:
    """Read a set, which is to be decoded by runs, given by their weights; one sentence, or all.

    Raises InputError: there is no such set or sentence; or one has more words than a run decodes,
        which is found before any of them does.
    """
    with option_errors("data", data):
        dataset = Dataset(**data)
    corpus = dataset.read(split)
    if corpus is None:
        raise InputError(
            f"there is no set {split} in the data (data.{split} is null); choose another one, as "
            "with split=dev"
        )
    if chosen is not None and chosen >= len(corpus):
        raise InputError(
            f"sentence={chosen + 1}: {split} has {len(corpus):,} sentences; give one of 1 to "
            f"{len(corpus)}"
        )
    for weights in runs:
        from torchtune_smt.cli.decoding import longest_source

        most = longest_source(weights)
        for i in range(len(corpus)) if chosen is None else [chosen]:
            words = len(corpus.source[i])
            if most is not None and words > most:
                raise InputError(
                    f"has {words} words, and at most {most} are decoded with {weights}; split the "
                    f"sentence, or tune with decoder.max_words={words} or more",
                    path=dataset.source_file(split),
                    line=corpus.lines[i],
                )
    return corpus


def read_outputs(
    cfg: DictConfig, systems: Mapping[str, Sequence[Output]], *, with_source: bool
) -> Outputs:
    """Return the translations of all outputs; weights translate the set of the data first.

    References are those of the files that are given, of the data that are given, or else of the
    data that the runs have in common. `with_source` says whether the corpus is wanted even where
    only its references, if anything of it, are needed.

    Raises InputError: there are no references; files do not have a line for each sentence; or there
        are weights, and nobody says what they are to translate.
    """
    every = [output for outputs in systems.values() for output in outputs]
    check_words([output.path for output in every if output.kind == "run"], cfg.split)
    data = common_data(cfg, every)
    untranslated = _untranslated(cfg, every, data)
    corpus: Corpus | None = None
    if data is not None and (cfg.references is None or untranslated or with_source):
        runs = [output.weights for output in untranslated if output.weights is not None]
        corpus = read_set(data, cfg.split, runs)
    lists: dict[Output, list[list[str]]] = {}
    made: dict[Output, list[str]] = {}
    files: dict[Output, Path] = {}
    for output in every:
        if output.kind == "lists":
            stored = read_lists(output.path, dense=[]).lists
            lists[output] = [[kbest.text(h) for h in range(len(kbest))] for kbest in stored]
            made[output] = [entries[0] for entries in lists[output]]
        elif output not in untranslated:
            files[output] = _translations(cfg, output)
        elif corpus is not None:
            # Most comparisons translate nothing.
            from torchtune_smt.tuners.sentences import translate

            assert output.weights is not None
            made[output] = translate(*open_run(cfg.split, output.weights, corpus))
        elif cfg.references is not None:
            raise InputError(
                f"{cfg.split} is still to be translated with these weights, and nobody says "
                "what it is; give data=NAME",
                path=output.path,
            )
    rows: list[list[str]]
    if cfg.references is not None:
        # Of files that are given: those of all lines.
        references = paths_of("references", cfg.references)
        skipped = None
        columns = columns_of([], [*references, *map(str, files.values())], len(references))
        rows = [list(row) for row in zip(*columns[: len(references)], strict=True)]
        for path, lines in zip(references, columns, strict=False):
            check_text(path, lines)
        columns = columns[len(references) :]
    elif corpus is not None:
        skipped = corpus
        rows = [[" ".join(words) for words in row] for row in corpus.references]
        first = [row[0] for row in rows]
        columns = columns_of([first], [*map(str, files.values())], 0, corpus)[1:]
    else:
        raise InputError(
            "there is nothing to compare with: give references=[FILE,...], or data=NAME, whose "
            f"references of {cfg.split} are taken"
        )
    read = dict(zip(files, columns, strict=True))
    for output, lines in read.items():
        if output.kind == "translations" and lines and is_list_line(lines[0]):
            raise InputError(
                "holds n-best lists, which are read from plain files alone; copy what comes from "
                "it to one",
                path=output.path,
            )
        if output.kind == "translations":
            check_text(output.path, lines)
    for output, lines in made.items():
        if len(lines) != len(rows):
            raise InputError(
                f"has translations of {len(lines)} sentences, and there are references of "
                f"{len(rows)}{of_skipped(skipped, len(lines))}",
                path=output.path,
            )
    if corpus is not None and len(corpus.source) != len(rows):
        # The references that were given are of something else.
        corpus = None
    return Outputs({o: (read | made)[o] for o in every}, rows, corpus, lists)


def check_words(runs: Iterable[Path], split: str) -> None:
    """Raise InputError if a run has no translations of a set, as its lists have no words."""
    for folder in runs:
        if lacks_words(folder, split):
            raise InputError(
                f"has no translations of {split}: features.dat has no words; BLEU by scores.dat is "
                f"bleu/{split}_tuned in metrics.jsonl, and analyse progress compares such runs",
                path=folder,
            )


def common_data(
    cfg: DictConfig, outputs: Sequence[Output], *, references: bool = True
) -> dict[str, Any] | None:
    """Return the data that are given, or else those of the runs; None: there are none.

    `references` says whether the command takes any in the place of data.
    """
    if "data" in cfg:
        make_dataset(cfg)
        return {
            str(name): None if OmegaConf.is_missing(cfg.data, name) else value
            for name, value in OmegaConf.to_container(cfg.data, resolve=True).items()  # type: ignore[union-attr]
        }
    found: dict[str, Any] | None = None
    first: Path | None = None
    for output in outputs:
        folder = output.folder
        data = None if folder is None else recorded_data(folder)
        if folder is None or data is None:
            continue
        other = found is not None and _of_set(data, cfg.split) != _of_set(found, cfg.split)
        tokens = _has_other_tokens(output, data)
        if (tokens or other) and references and cfg.references is not None:
            return None
        if tokens:
            raise InputError(
                "was made of text that was lowercased before it was tokenised, which splits it in "
                "other places than the order of now; tune anew"
                + (", or give references=[FILE,...] that are split so, too" if references else ""),
                path=folder,
            )
        if other:
            raise InputError(
                f"was tuned with other data than {first}, or text that is prepared in another "
                "way; say what is to be compared: data=NAME"
                + (", or references=[FILE,...]" if references else ""),
                path=folder,
            )
        if found is None:
            found, first = data, folder
    return found


def _of_set(data: Mapping[str, Any], split: str) -> dict[str, Any]:
    return {name: data.get(name) for name in (*_TEXT, split)}


def _has_other_tokens(output: Output, data: Mapping[str, Any]) -> bool:
    """Return whether a run made other tokens of the text than these data make now."""
    origin = None if output.weights is None else read_origin(output.weights)
    return origin is not None and origin.lowercased_first and bool(data.get("lowercase"))


def _untranslated(
    cfg: DictConfig, outputs: Sequence[Output], data: Mapping[str, Any] | None
) -> list[Output]:
    """Return the outputs whose weights must translate the set: no run has done it."""
    found = []
    for output in outputs:
        if output.folder is None:
            continue
        own = recorded_data(output.folder)
        other = (
            data is not None
            and own is not None
            and (
                _of_set(own, cfg.split) != _of_set(data, cfg.split)
                or _has_other_tokens(output, data)
            )
        )
        if output.kind == "weights" or other or not _translations(cfg, output).is_file():
            found.append(output)
    return found


def _translations(cfg: DictConfig, output: Output) -> Path:
    run = output.kind == "run"
    return output.path / f"{cfg.split}.translations.txt" if run else output.path
