"""The sets that a system is built from, tuned on and tested with, read in one way."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from torchtune_smt.core.accepts import Checked, accepting, integer, least, one_of
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import EXAMPLE, PACKAGE, example_folder
from torchtune_smt.core.textio import iterate_lines
from torchtune_smt.data.bitext import Corpus, find_files, read_corpus
from torchtune_smt.data.compounds import FILLERS, CompoundSplitter
from torchtune_smt.data.preprocess import Preprocessor

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Dataset(Checked):
    """Where the text of some sets is, and how it becomes tokens.

    source_language, target_language: the endings of file names.
    folders: in the first of them that there is the sets that are named are looked for. `EXAMPLE` is
        that of the bundled example.
    train, dev, test: the name of a set; or its files, the source before the references.
    normalize, lowercase: see `Preprocessor`.
    tokenize (bool or {"source", "target"}): both sides, none, or one of them: the other is
        tokenised already.
    split_compounds: split compounds of the source language as in this one; see `CompoundSplitter`.
    compounds: take the frequencies of words from this file; by default those of the training text.
    empty ("error", "skip"): see `read_corpus`.
    max_length, max_ratio: training pairs that are longer, or whose lengths differ more, are left
        out.
    """

    accepts = accepting(
        tokenize=one_of(True, False, "source", "target"),
        split_compounds=one_of(*FILLERS).or_null(),
        max_length=integer(1),
        max_ratio=least(1, infinite=True),
    )

    name: str
    source_language: str
    target_language: str
    folders: str | Sequence[str] | None = None
    train: str | Sequence[str] | None = "train"
    dev: str | Sequence[str] | None = "dev"
    test: str | Sequence[str] | None = "test"
    normalize: bool = False
    tokenize: bool | Literal["source", "target"] = False
    lowercase: bool = False
    split_compounds: Literal["de"] | None = None
    compounds: Path | None = None
    empty: Literal["error", "skip"] = "error"
    max_length: int = 80
    max_ratio: float = 9

    def __post_init__(self) -> None:
        super().__post_init__()
        for side in ("source", "target") if self.normalize or self.tokenize else ():
            code = getattr(self, f"{side}_language")
            if not re.fullmatch("[a-z]{2,3}", code):
                raise InputError(
                    f"{side}_language={code} is no code of two or three small letters, such as fr, "
                    "by which text is made tokens"
                )

    def without_rules(self) -> list[str]:
        """Return a sentence for each language that the tokenizer has no rules of its own for."""
        from sacremoses.corpus import NonbreakingPrefixes

        known = NonbreakingPrefixes().available_langs.values()
        return [
            f"the tokenizer has no rules for {side}_language={text.language}, and takes English's"
            for side, text in (("source", self._text("source")), ("target", self._text("target")))
            if text.tokenize and text.language not in known
        ]

    def description(self) -> str:
        """Return the languages, and how text is prepared, step by step."""
        said = [f"{self.source_language}-{self.target_language}"]
        for name in ("normalize", "tokenize", "lowercase", "split_compounds"):
            if value := getattr(self, name):
                said.append(name if value is True else f"{name}={value}")
        return " ".join(said)

    @property
    def source_text(self) -> Preprocessor:
        """What makes tokens of lines of the source language."""
        return replace(self._text("source"), compounds=self.splitter)

    @property
    def target_text(self) -> Preprocessor:
        """What makes tokens of lines of the target language."""
        return self._text("target")

    def _text(self, side: Literal["source", "target"]) -> Preprocessor:
        return Preprocessor(
            language=self.source_language if side == "source" else self.target_language,
            normalize=self.normalize,
            tokenize=self.tokenize in (True, side),
            lowercase=self.lowercase,
        )

    @cached_property
    def splitter(self) -> CompoundSplitter | None:
        """What splits compounds, if they are to be split."""
        if self.split_compounds is None:
            return None
        if self.compounds is not None:
            return CompoundSplitter.load(self.split_compounds, self.compounds)
        if self.train is None:
            raise InputError(
                "data.split_compounds takes the frequencies of words from the training text, and "
                "data.train is null; name its files"
            )
        text = self._text("source")
        lines = iterate_lines(self.files("train")[0])
        return CompoundSplitter.of_text(self.split_compounds, map(text.tokens, lines))

    def read(
        self, split: str, *, training: bool = False, max_words: int | None = None
    ) -> Corpus | None:
        """Read a set (``train``, ``dev``, ``test``); None if there is none.

        Lines of it that were left out as they are empty are logged, but for a training bitext, of
        which what `max_length` and `max_ratio` leave out is left out, too. With `max_words` a
        source sentence with more, which could not be decoded, is an error.
        """
        if getattr(self, split) is None:
            return None
        source, *references = self.files(split)
        corpus = read_corpus(
            source,
            references,
            empty=self.empty,
            source_text=self.source_text,
            target_text=self.target_text,
            lengths=(self.max_length, self.max_ratio) if training else None,
            training=training,
            max_words=max_words,
        )
        # Of a training set a command says it with what else there is to say.
        if corpus.dropped and not training:
            logger.warning("%s: %s", split, corpus.summary())
        return corpus

    def require(
        self, split: str, *, training: bool = False, max_words: int | None = None
    ) -> Corpus:
        """Read a set that is needed; see `read`."""
        corpus = self.read(split, training=training, max_words=max_words)
        if corpus is None:
            raise InputError(f"data.{split} is null, and it is needed; name its files")
        return corpus

    def source_file(self, split: str) -> Path:
        """Return the file of the source sentences of a set, which must not be null."""
        return self.files(split)[0]

    def files(self, split: str) -> list[Path]:
        """Return the files of a set that is not null, the source before the references."""
        where, languages = getattr(self, split), (self.source_language, self.target_language)
        if isinstance(where, str):
            source, references = find_files(self._folder(split), where, *languages)
            return [source, *references]
        paths = [Path(str(path)) for path in where]
        if len(paths) < 2:
            raise InputError(
                f"data.{split} names {len(paths)} files; give the source and at least one "
                f"reference, as in {self._named(split)}"
            )
        return paths

    def _named(self, split: str) -> str:
        files = f"{split}.{self.source_language},{split}.{self.target_language}"
        return f"'data.{split}=[{files}]'"

    def _folder(self, split: str) -> Path:
        """Return the first of the folders that exists, for a set that is given by its name."""
        if not self.folders:
            raise InputError(
                f"data.{split}={getattr(self, split)} is the name of a set, and data.folders names "
                "no folder: say where it is with data.folders=[FOLDER], or name the files, as in "
                f"{self._named(split)}"
            )
        names = [self.folders] if isinstance(self.folders, str) else list(self.folders)
        for name in names:
            if name == EXAMPLE:
                return example_folder()
            # Relative to where the command runs, or to the clone that the package lies in.
            for base in (Path(), PACKAGE.parent):
                if (base / name).is_dir():
                    return base / name
        # What fetches them is imported only here, where nothing else is left to do.
        from torchtune_smt.data.corpora import CORPORA

        fetch = f"fetch it with torchtune-smt get-data {self.name}, or " * (self.name in CORPORA)
        raise InputError(
            f"the data of {self.name} is in none of {', '.join(names)}: {fetch}say where it is "
            "with data.folders=[FOLDER]"
        )
