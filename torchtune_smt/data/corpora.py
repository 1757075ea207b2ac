"""The public corpora of the experiments: where they come from, and how they are fetched.

Nothing of them is part of this package. Each is fetched from its authors' repository, checked,
and prepared as ``torchtune_smt.data.bitext.find_files`` expects it: ``train``, ``dev``,
``devtest`` and ``test``, lowercased and tokenised.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any, Final

from torchtune_smt.core.errors import InputError
from torchtune_smt.core.textio import lines_of
from torchtune_smt.data.bitext import Corpus, read_corpus, write_corpus, written_lines
from torchtune_smt.data.preprocess import Preprocessor, lowercased

Log = Callable[[str], None]


@dataclass(frozen=True)
class Part:
    """One part of a corpus (train, dev, ...).

    pieces: paths of parallel files below the corpus's address, the source before its references;
        ``.gz`` is unpacked. A part can be made of several pieces, one after the other.
    sha256: of each prepared file (not packed), where they are known: another content is an error.
    """

    name: str
    pieces: tuple[tuple[str, ...], ...]
    sha256: tuple[str, ...] = ()


@dataclass(frozen=True)
class PublicCorpus:
    """A corpus that anybody can fetch.

    folder: the name of the folder of its prepared files.
    base_url: the address that the files' paths are relative to.
    source_text, target_text: how the text is prepared.
    lowercase: each line is lowercased before that. Moses's tokeniser looks at case, and text with
        known checksums and scores was made in this order.
    """

    title: str
    homepage: str
    licence: str
    folder: str
    base_url: str
    source_language: str
    target_language: str
    parts: tuple[Part, ...]
    source_text: Preprocessor
    target_text: Preprocessor
    lowercase: bool = False

    def outputs(self, folder: Path, part: Part) -> list[Path]:
        """Return the files that a part is written to: the source, then the references."""
        packed = ".gz" if part.name == "train" else ""
        references = len(part.pieces[0]) - 1
        several = [f"{self.target_language}.{i}" for i in range(references)]
        targets = several if references > 1 else [self.target_language]
        return [folder / f"{part.name}.{end}{packed}" for end in [self.source_language, *targets]]


# The prepared files of each part; of Fisher those of the newest version.
_SHA256: Final = {
    ("multi30k", "train"): """
        cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505
        4f7b25e9bbfc6be6ef66ea2cedd35e2c11c6fa1831979a054fba52e8d5b27c9d
    """,
    ("multi30k", "dev"): """
        97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00
        46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec
    """,
    ("multi30k", "devtest"): """
        02067e4a9402786a4fcb8c1b6f4307e4a5073ced64800abead5273b54f5f31f6
        c9d1dfd7a26add989382e534af235af9f0f658b2a30e7eb0efdaf142496ee54f
    """,
    ("multi30k", "test"): """
        c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4
        5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2
    """,
    ("fisher", "train"): """
        bcc1932118e6c7d41a90ad5e391f7dd674a4e079662f0b1c11055a2b28e1629b
        ac554735e0e52b68f828064d1ac130f3a3d8df6125e938a89d1aef7e237431eb
    """,
    ("fisher", "dev"): """
        43347f81075a7255a4b051a9ad8a9013d252bcb50eef745753381d23caa21c0d
        0e8eb5e32320252c24e05384236d3e254460dfdf9b63f1f5636dcdd652069cb0
        e5fcf5feb06b0e07909227739cc4670f197e99459cad93302d2723729808018c
        e0976bfba8f1cdae200db41595608f06d7cacc60382d89ca6f47789fab7575c1
        7f651461cc6afd0aeb201d740cf324ac0e66c28557460ecb4cd817ae2b5c2430
    """,
    ("fisher", "devtest"): """
        dcc665cb9ae1d73b6d0899f8f2fe083e170998081ac6b8213adaa3766ff868a6
        f0d036941b88d68e312def4d3501751c797fcaab63adb583532d8d54f609fef8
        a36d04cccfef7d8f70b82e3b3cf6999c36b554ecf730722c7b7d8b6973fa10ce
        4696125ab3b417dc76301013d21445cb00b27340964c41bfab8ee38c0de95a2b
        7900acf6e1b43cf1f94eb54eae571dea2ddfaf33ef7d572f315f72bbdd04e161
    """,
    ("fisher", "test"): """
        79c47ef18cf8b5c1aba1d9b465566edd11e4200fb6c72b39121abbb29e0ca5ba
        8a6fc8a6d3034dc7a78ed1a012a2c26292daf9858dcf1a8cb8365cf343bd0a79
        6b542b47b13edc73638004feee7121326e4764131305a5f3c10a35da06a8b274
        95bb3337cb80a83af4f58bf3f976ea92c8d0ba6c8889bf01ecb0d23c60e2844d
        475ce5fb5f72e2ab0554986d254fe915e8472a337a4afa89999d52b8fc9757ce
    """,
    ("tanaka", "train"): """
        fc81a1434349ec98a449d7ae9cd2530057f689637684ecfed3501ea6a8a07ecc
        148b05dcd28638fe20ee84f2b1127001c80982be352007dda241fb759adadc76
    """,
    ("tanaka", "dev"): """
        cd534f56b8639dc130f86a365e5ec0aa70042000bdd740a622fbbf8b6be4acca
        04a2673449770657fd5e3b963cb856be3130923212b6db8ac7eaeef18f06c041
    """,
    ("tanaka", "test"): """
        d37dc460a81b064e4106c8913eb11fa300da05cf3f58a7a5bbfec7e20947ddef
        45edb380749ec2b49cca7618fc5a7595fc9f791180672ba466b90c873a4aa8bf
    """,
}
_REMOTE: Final = {
    "train": "train",
    "dev": "val",
    "devtest": "test_2017_flickr",
    "test": "test_2016_flickr",
}


def _sums(corpus: str, part: str) -> tuple[str, ...]:
    return tuple(_SHA256.get((corpus, part), "").split())


def _multi30k(kind: str, name: str, address: str, path: str, **text: Any) -> PublicCorpus:
    """Return Multi30k, of files ``path.format(part, language)``; what is split is lowercased."""
    texts = [Preprocessor(language, lowercase=False, **text) for language in ("de", "en")]
    return PublicCorpus(
        title=f"Multi30k, task 1: image captions, German-English, 29,000 training pairs, {kind}",
        homepage="https://github.com/multi30k/dataset",
        licence="for research, under the terms of Flickr30k; Elliott et al. 2016, Multi30K: "
        "Multilingual English-German Image Descriptions",
        folder=f"{name}-de-en",
        base_url=f"https://raw.githubusercontent.com/multi30k/dataset/{address}",
        source_language="de",
        target_language="en",
        parts=tuple(
            Part(
                part,
                (tuple(path.format(remote, language) for language in ("de", "en")),),
                _sums(name, part),
            )
            for part, remote in _REMOTE.items()
        ),
        source_text=texts[0],
        target_text=texts[1],
        lowercase=texts[0].tokenize,
    )


def _fisher() -> PublicCorpus:
    """Fisher and CALLHOME: what can be had of it without a licence of the LDC.

    The Spanish side is the path of the recogniser's lattice that is closest to the transcript:
    the transcripts themselves are the LDC's. No lattice paths of Fisher's training part are
    public, so CALLHOME's take its place.
    """

    def part(name: str, *remotes: str, references: int = 4) -> Part:
        ends = [f"en.{i}" for i in range(references)] if references > 1 else ["en"]
        pieces = ((f"oracle/{r}.es", *(f"ldc/{r}.{end}" for end in ends)) for r in remotes)
        return Part(name, tuple(pieces), _sums("fisher", name))

    texts = [
        Preprocessor(language, normalize=False, lowercase=False, protect=False)
        for language in ("es", "en")
    ]
    return PublicCorpus(
        title="Fisher and CALLHOME: telephone speech, Spanish-English, four references",
        homepage="https://github.com/joshua-decoder/fisher-callhome-corpus",
        licence="CC BY-SA 3.0; Post et al. 2013, Improved Speech-to-Text Translation with the "
        "Fisher and Callhome Spanish-English Speech Translation Corpus",
        folder="fisher-es-en",
        base_url="https://raw.githubusercontent.com/joshua-decoder/fisher-callhome-corpus/"
        "master/corpus",
        source_language="es",
        target_language="en",
        parts=(
            part("train", "callhome_train", "callhome_devtest", references=1),
            part("dev", "fisher_dev"),
            part("devtest", "fisher_dev2"),
            part("test", "fisher_test"),
        ),
        source_text=texts[0],
        target_text=texts[1],
        lowercase=True,
    )


def _tanaka() -> PublicCorpus:
    """Pairs of the Tanaka corpus of 4 to 16 words, as their author tokenised and split them."""
    pieces = {"train": [f"train.{{}}.{i:03}" for i in range(5)], "dev": ["dev.{}"]}
    pieces["test"] = ["test.{}"]
    text = Preprocessor("en", normalize=False, tokenize=False, lowercase=False)
    return PublicCorpus(
        title="Tanaka: short sentences, Japanese-English, 50,000 training pairs",
        homepage="https://github.com/odashi/small_parallel_enja",
        licence="CC BY 2.0 FR",
        folder="tanaka-ja-en",
        base_url="https://raw.githubusercontent.com/odashi/small_parallel_enja/"
        "bc6f160498e5f97a286ff679173e7f6ba9321d9f",
        source_language="ja",
        target_language="en",
        parts=tuple(
            Part(
                part, tuple((f.format("ja"), f.format("en")) for f in files), _sums("tanaka", part)
            )
            for part, files in pieces.items()
        ),
        source_text=text,
        target_text=text,
    )


CORPORA: Final = {
    # As its authors tokenised it: the text of most published results. The commit is the one that
    # added these files; train.en was edited later.
    "multi30k": _multi30k(
        "tokenised by its authors",
        "multi30k",
        "7bee46bc74186b4b6254603143610f730d40bf66/data/task1/tok",
        "{}.lc.norm.tok.{}",
        normalize=False,
        tokenize=False,
    ),
    # Prepared here by the same steps.
    "multi30k-raw": _multi30k(
        "from the raw text",
        "multi30k-raw",
        "master/data/task1/raw",
        "{}.{}.gz",
        escape=True,
        protect=False,
    ),
    "fisher": _fisher(),
    "tanaka": _tanaka(),
}


def fetch(
    corpus: PublicCorpus,
    folder: Path,
    *,
    base_url: str | None = None,
    check: bool = True,
    timeout: float = 60.0,
    log: Log = print,
) -> dict[str, Corpus]:
    """Fetch a corpus, prepare it, write it to a folder, and return the prepared parts by name.

    Nothing is written before every file is there and in order. A line that is empty on one side
    is left out of all sides, counted and reported.

    base_url: another address (http, https or file) that has the same files.
    check: compare the prepared files with the known sha256.
    timeout: seconds without an answer after which a file counts as unreachable.
    log: takes the lines that tell what was fetched and written.
    """
    prepared: dict[str, Corpus] = {}
    for part in corpus.parts:
        whole = Corpus([], [], [])
        for piece in part.pieces:
            urls = [f"{(base_url or corpus.base_url).rstrip('/')}/{file}" for file in piece]
            files = []
            for url in urls:
                content = _download(url, timeout)
                lines = lines_of(io.BytesIO(content), url)
                files.append(list(map(lowercased, lines) if corpus.lowercase else lines))
                digest = hashlib.sha256(content).hexdigest()
                log(f"{url}: {len(files[-1])} lines, sha256 {digest}")
            text = read_corpus(
                urls[0],
                urls[1:],
                lines=files,
                empty="skip",
                source_text=corpus.source_text,
                target_text=corpus.target_text,
            )
            whole = whole.followed_by(text)
        if check and part.sha256:
            _check_prepared(part, whole, corpus.outputs(folder, part))
        prepared[part.name] = whole
    for part in corpus.parts:
        outputs = corpus.outputs(folder, part)
        write_corpus(prepared[part.name], outputs[0], outputs[1:])
        log(f"{part.name}: {prepared[part.name].summary()}: {', '.join(map(str, outputs))}")
    return prepared


def _check_prepared(part: Part, text: Corpus, outputs: Sequence[Path]) -> None:
    """Raise InputError if a part's text is not the one that is known."""
    for path, side, expected in zip(outputs, written_lines(text), part.sha256, strict=True):
        digest = hashlib.sha256("".join(side).encode()).hexdigest()
        if digest != expected:
            raise InputError(
                f"would have the sha256 {digest} (not packed) and should have {expected}: what was "
                "fetched for it is another version; take it as it is without the check",
                path=path,
            )


def _download(url: str, timeout: float) -> bytes:
    """Return the content of a file on the network, unpacked if its name ends in ``.gz``."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            content: bytes = answer.read()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise InputError(
            f"cannot be fetched ({error}); check the address and the network, or copy the files to "
            "a folder by other means and name it with --base-url file:///...",
            path=url,
        ) from None
    if not url.endswith(".gz"):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"is no whole gzip file ({error}); fetch it again", path=url) from None


def listing() -> str:
    """Return what is known of every public corpus: title, homepage, licence, addresses."""
    entries = []
    for name, corpus in CORPORA.items():
        texts = f"{name}: {corpus.title}", f"  licence   {corpus.licence}"
        title, licence = (
            fill(text, 80, subsequent_indent=12 * " ", break_on_hyphens=False) for text in texts
        )
        lines = [title, f"  homepage  {corpus.homepage}", licence]
        pieces = [piece for part in corpus.parts for piece in part.pieces]
        lines += [f"  file      {corpus.base_url}/{file}" for piece in pieces for file in piece]
        entries.append("\n".join(lines))
    return "\n\n".join(entries)
