"""What weights belong to: a grammar, a language model and features, or k-best lists.

It stands in comment lines at the top of a weights file, for people and for this package::

    # torchtune_smt weights, which belong to
    # grammar: outputs/models/example (de-en) [3f786850e387550f]
    # language model: outputs/models/example (de-en) [89e6c98d92887913]
    # features: dense rule_id rule_shape source_ngram [2b66fd261ee5c6cf]
    # text: de-en normalize tokenize lowercase

or, where there was no model, which would know its dense features::

    # torchtune_smt weights, which belong to
    # k-best lists: dev.nbest.gz
    # dense features: LanguageModel LanguageModel_OOV WordPenalty

In brackets are the first 16 digits of a checksum: that of a file, of a model's bitext and settings
(so that a model which is built again, elsewhere, too, is the same one), or of the features.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from torchtune_smt.core.archive import checksum
from torchtune_smt.core.errors import InputError

_TITLE: Final = "torchtune_smt weights, which belong to"
_MODEL: Final = ("grammar", "language model", "features", "text")
_LISTS: Final = ("k-best lists",)
# Not needed to be whole: there was a time when files did not have it.
_DENSE: Final = "dense features"
_NO_NAME: Final = "-"
_DIGITS: Final = 16
_PART: Final = re.compile(r"([a-z-]+(?: [a-z]+)?): (.*?)(?: \[([0-9a-f]{16})\])?")


class Part(NamedTuple):
    """One of the things that weights belong to.

    Attributes
    ----------
    name : str
        For people.
    digest : str
        Tells whether two are the same; empty where only the name does.
    """

    name: str
    digest: str = ""

    def __str__(self) -> str:
        return f"{self.name} [{self.digest}]" if self.digest else self.name


@dataclass(frozen=True)
class Origin:
    """What weights belong to.

    Parameters
    ----------
    parts : mapping of str to Part
        Those of a model, or of k-best lists.
    dense : sequence of str, optional
        The dense features of k-best lists, if they are known: names do not tell.
    """

    parts: Mapping[str, Part]
    dense: Sequence[str] | None = None

    @classmethod
    def of_model(cls, grammar: Part, language_model: Part, features: Part, text: str) -> Origin:
        """Return the origin of weights that a decoder was tuned to.

        Parameters
        ----------
        grammar, language_model, features : Part
        text : str
            The languages, and how text was prepared.
        """
        parts = (grammar, language_model, features, Part(text))
        return cls(dict(zip(_MODEL, parts, strict=True)))

    @classmethod
    def of_lists(cls, names: Sequence[str], dense: Sequence[str] | None = None) -> Origin:
        """Return the origin of weights that were tuned on k-best lists.

        Parameters
        ----------
        names : sequence of str
            Of the lists.
        dense : sequence of str, optional
            The dense features, if they are known.
        """
        return cls({_LISTS[0]: Part(" ".join(names))}, dense)

    @classmethod
    def parse(cls, comments: Sequence[str], path: str | os.PathLike[str]) -> Origin | None:
        """Return the origin that a weights file names; None if it names none.

        Parameters
        ----------
        comments : sequence of str
            The comments at its top.
        path : path
            The file.

        Raises
        ------
        InputError
            The comments are not whole.
        """
        if _TITLE not in comments:
            return None
        behind = comments[comments.index(_TITLE) + 1 :]
        found = [_PART.fullmatch(line) for line in behind]
        parts = [(m[1], Part(m[2], m[3] or "")) for m in found if m and m[1] in _MODEL + _LISTS]
        if tuple(kind for kind, _ in parts) not in (_MODEL, _LISTS):
            raise InputError(
                f"does not name all that the weights belong to ({', '.join(_MODEL)}); take the "
                "file as it was written, or remove all comments at its top",
                path=path,
            )
        origin = cls(dict(parts))
        named = [line.split()[2:] for line in behind if line.startswith(f"{_DENSE}: ")]
        if origin.is_model or not named:
            return origin
        names = [] if named[0] == [_NO_NAME] else [unquote(name) for name in named[0]]
        return replace(origin, dense=names)

    @property
    def is_model(self) -> bool:
        """Whether the weights belong to a model, and not to lists."""
        return tuple(self.parts) == _MODEL

    @property
    def text(self) -> str:
        """The languages of a model, and how text was prepared."""
        return self.parts["text"].name

    @property
    def lowercased_first(self) -> bool:
        """Whether text was lowercased before its other steps, as it was once, and no longer is.

        It has other tokens then: the tokeniser looks at case.
        """
        _, *steps = self.text.split() if self.is_model else [""]
        return steps[:2] in (["lowercase", "normalize"], ["lowercase", "tokenize"])

    def comments(self) -> list[str]:
        """Return the comments for a weights file."""
        # A name in one line: that of a folder may have anything in it.
        named = {
            kind: part._replace(name=" ".join(part.name.replace("\0", " ").split()) or "-")
            for kind, part in self.parts.items()
        }
        lines = [_TITLE, *(f"{kind}: {part}" for kind, part in named.items())]
        if self.dense is not None:
            lines.append(f"{_DENSE}: {' '.join(map(_quoted, self.dense)) or _NO_NAME}")
        return lines

    def difference(self, other: Origin) -> str | None:
        """Return what this has and the other one has in its place; None if they are the same.

        Lists are never another model: many belong to one.
        """
        kinds = [
            kind
            for kind, part in self.parts.items()
            if part.digest and part.digest != other.parts.get(kind, Part("")).digest
        ]
        if not kinds:
            return None
        here = kinds if other.is_model else other.parts
        return f"{_list(self.parts, kinds)}, and not to {_list(other.parts, here)}"

    def digests(self) -> dict[str, str]:
        """Return the digests by the name of the part."""
        return {kind: part.digest for kind, part in self.parts.items() if part.digest}


def digest_of(content: Any) -> str:
    """Return a digest of what JSON can write."""
    return short(checksum(json.dumps(content, sort_keys=True).encode()))


def short(checksum: str) -> str:
    """Return the digest that stands for a checksum."""
    return checksum[:_DIGITS]


def _quoted(name: str) -> str:
    """Return the name of a feature as one word."""
    if name == _NO_NAME:
        return "%2D"
    return "".join(quote(c) if c in "%\0" or c.isspace() else c for c in name)


def _list(parts: Mapping[str, Part], kinds: Sequence[str] | Mapping[str, Part]) -> str:
    return " and ".join(f"the {kind} {parts[kind]}" for kind in kinds)
