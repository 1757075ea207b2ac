"""The sets that a system is built from, tuned on and tested with, read in one way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.resources import PACKAGE, example_folder
from torchtune_smt.data.bitext import Corpus, find_files, read_corpus
from torchtune_smt.data.preprocess import LengthFilter, Preprocessor


@dataclass(frozen=True)
class Dataset:
    """Where the text of some sets is, and how it becomes tokens.

    Parameters
    ----------
    name : str
    source_language, target_language : str
        The endings of file names.
    folders : str or sequence of str, optional
        In the first of them that there is the sets that are named are looked for; by default in
        that of the bundled example.
    train, dev, test : str or sequence of str, optional
        The name of a set; or its files, the source before the references.
    lowercase, normalize, tokenize : bool
        See `Preprocessor`.
    empty : {"error", "skip"}
        See `read_corpus`.
    max_length, max_ratio
        Training pairs that are longer, or whose lengths differ more, are left out.
    """

    name: str
    source_language: str
    target_language: str
    folders: str | Sequence[str] | None = None
    train: str | Sequence[str] | None = "train"
    dev: str | Sequence[str] | None = "dev"
    test: str | Sequence[str] | None = "test"
    lowercase: bool = False
    normalize: bool = False
    tokenize: bool = False
    empty: Literal["error", "skip"] = "error"
    max_length: int = 80
    max_ratio: float = 9

    def description(self) -> str:
        """Return the languages, and how text is prepared."""
        steps = [name for name in ("lowercase", "normalize", "tokenize") if getattr(self, name)]
        return " ".join([f"{self.source_language}-{self.target_language}", *steps])

    def text(self, language: str) -> Preprocessor:
        """Return what makes tokens of lines of a language."""
        return Preprocessor(
            language=language,
            lowercase=self.lowercase,
            normalize=self.normalize,
            tokenize=self.tokenize,
        )

    def read(
        self, split: str, *, training: bool = False, max_words: int | None = None
    ) -> Corpus | None:
        """Read a set (``train``, ``dev``, ``test``); None if there is none.

        Parameters
        ----------
        training : bool
            Leave out what `max_length` and `max_ratio` leave out.
        max_words : int, optional
            A source sentence with more words, which could not be decoded, is an error.

        Raises
        ------
        InputError
            As `read_corpus` and `find_files`; or the data is in none of the folders.
        """
        where = getattr(self, split)
        if where is None:
            return None
        languages = self.source_language, self.target_language
        if isinstance(where, str):
            source, references = find_files(self._folder(), where, *languages)
        else:
            paths = [Path(str(path)) for path in where]
            if len(paths) < 2:
                files = f"{split}.{languages[0]},{split}.{languages[1]}"
                raise InputError(
                    f"data.{split} names {len(paths)} files; give the source and at least one "
                    f"reference, as in 'data.{split}=[{files}]'"
                )
            source, references = paths[0], paths[1:]
        return read_corpus(
            source,
            references,
            empty=self.empty,
            source_text=self.text(self.source_language),
            target_text=self.text(self.target_language),
            lengths=LengthFilter(self.max_length, self.max_ratio) if training else None,
            max_words=max_words,
        )

    def require(
        self, split: str, *, training: bool = False, max_words: int | None = None
    ) -> Corpus:
        """Read a set that is needed; see `read`."""
        corpus = self.read(split, training=training, max_words=max_words)
        if corpus is None:
            raise InputError(f"data.{split} is null, and it is needed; name its files")
        return corpus

    def _folder(self) -> Path:
        """Return the first of the folders that exists."""
        if self.folders is None:
            return example_folder()
        names = [self.folders] if isinstance(self.folders, str) else list(self.folders)
        # Relative to where the command runs, or to the clone that the package lies in.
        candidates = [base / name for name in names for base in (Path(), PACKAGE.parent)]
        for candidate in candidates:
            if candidate.is_dir():
                return candidate
        raise InputError(
            f"the data of {self.name} is in none of {', '.join(names)}: fetch it with "
            f"scripts/get_data.py {self.name}, or say where it is with data.folders=[FOLDER]"
        )
