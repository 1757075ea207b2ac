"""Reading and writing n-gram models as ARPA text."""

from __future__ import annotations

import re
from os import PathLike

import numpy as np

from torchtune_smt.core.arrays import Float32, Int32, Int64, UInt8
from torchtune_smt.core.errors import InputError
from torchtune_smt.core.text_kernels import POWERS
from torchtune_smt.core.textio import atomic_writer, check_utf8, read_packed, read_text
from torchtune_smt.core.vocabulary import Vocabulary
from torchtune_smt.lm import arpa_kernels as kernels
from torchtune_smt.lm.ngrams import BEGIN, END, MAX_ORDER, UNKNOWN, Ngrams

# What an ARPA without <unk> gives to unknown words, as KenLM has it.
UNKNOWN_PROB = -100.0

_BINARIES = {
    b"mmap lm http://kheafield.com": "is a binary of KenLM; give the ARPA file that it was built "
    "from"
}

_COUNT = re.compile(rb"ngram[ \t]+(\d{1,18})[ \t]*=[ \t]*(\d{1,18})")


def read_arpa(path: str | PathLike[str]) -> Ngrams:
    r"""Read an ARPA file, plain or gz.

    Fields are separated by tabs or blanks; a missing back-off weight is 1 (log10: 0); what stands
    before ``\data\`` is skipped. Without ``<unk>`` unknown words get log10 probability -100.
    ``<UNK>`` is read as ``<unk>``.

    Raises InputError, with the line: it is no such file, counts do not hold, a word stands twice or
    not among the unigrams, which lack ``<s>`` or ``</s>``; the order is above 6; invalid UTF-8.
    """
    return parse_arpa(read_packed(path), path)


def parse_arpa(packed: bytes, path: str | PathLike[str]) -> Ngrams:
    """Read the bytes of an ARPA file as they lie on the disk; errors are those of `read_arpa`."""
    data = read_text(path, refused=_BINARIES, packed=packed)
    check_utf8(data, path)
    return _Reader(path, data).read()


class _Reader:
    """One pass over the bytes of an ARPA file."""

    def __init__(self, path: str | PathLike[str], data: bytearray) -> None:
        self.path = path
        self.data = data
        self.text: UInt8 = np.frombuffer(data, np.uint8)
        self.position = 0

    def read(self) -> Ngrams:
        counts = self._header()
        words = Vocabulary([UNKNOWN])
        rows: list[Int32] = []
        prob: list[Float32] = []
        backoff: list[Float32] = []
        section_line: list[int] = []
        for n, count in enumerate(counts, start=1):
            self._expect(f"\\{n}-grams:")
            section = self.position
            section_line.append(self._line(section))
            spans, prob_n, backoff_n = self._section(n, count, has_backoff=n < len(counts))
            if n == 1:
                ids = self._unigrams(words, *spans, section)
                prob.append(np.full(len(words), UNKNOWN_PROB, np.float32))
                backoff.append(np.zeros(len(words), np.float32))
                prob[0][ids] = prob_n
                backoff[0][ids] = backoff_n
                rows.append(np.arange(len(words), dtype=np.int32)[:, None])
                order_of_row = np.argsort(ids)
            else:
                ids = words.lookup_spans(self.text, *spans)
                if (ids < 0).any():
                    begin, end = (int(span[(ids < 0).argmax()]) for span in spans)
                    word = self.data[begin:end].decode("utf-8")
                    message = f"the word '{word}' of this {n}-gram is not among the unigrams"
                    raise self._error(message, begin)
                rows.append(ids.reshape(count, n))
                prob.append(prob_n)
                backoff.append(backoff_n)
        self._expect("\\end\\")
        missing_unknown = prob[0].size - counts[0]

        def line_of(n: int, row: int) -> int:
            if n == 1:
                row = int(order_of_row[max(row - missing_unknown, 0)])
            return section_line[n - 1] + row

        return Ngrams(words, rows, prob, backoff, self.path, line_of)

    def _line(self, position: int) -> int:
        return self.data.count(b"\n", 0, position) + 1

    def _error(self, message: str, position: int) -> InputError:
        return InputError(message, path=self.path, line=self._line(position))

    def _next_line(self) -> tuple[bytes, int]:
        """Return the next line that is not blank, and where it starts; b"" at the end."""
        size = len(self.data)
        while self.position < size:
            begin = self.position
            end = self.data.find(b"\n", begin)
            end = size if end < 0 else end
            self.position = min(end + 1, size)
            line = bytes(self.data[begin:end]).strip(b" \t")
            if line:
                return line, begin
        return b"", size

    def _expect(self, wanted: str) -> None:
        line, begin = self._next_line()
        if line != wanted.encode():
            raise self._error(
                f"{wanted} was expected here, after as many n-grams as the header counts; correct "
                "the header, or copy the file again",
                begin,
            )

    def _header(self) -> list[int]:
        r"""Read up to ``\1-grams:`` and return the count of each order."""
        self.position = (
            0 if self.data.startswith(b"\\data\\") else self.data.find(b"\n\\data\\") + 1
        )
        if self._next_line()[0] != b"\\data\\":
            raise InputError("has no line \\data\\: it is no ARPA file", path=self.path)
        counts: list[int] = []
        while True:
            line, begin = self._next_line()
            if line.startswith(b"\\") and counts:
                self.position = begin
                return counts
            n = len(counts) + 1
            match = _COUNT.fullmatch(line)
            if match is None or int(match[1]) != n:
                raise self._error(f"the header needs a line like 'ngram {n}=1000' here", begin)
            count = int(match[2])
            if n > MAX_ORDER:
                raise self._error(f"n-grams of order {n}: at most {MAX_ORDER} are supported", begin)
            # No line is shorter than a number and n words of one letter each.
            if 2 * count * (n + 1) > len(self.data):
                raise self._error(f"{count} n-grams do not fit into a file of this size", begin)
            counts.append(count)

    def _section(
        self, n: int, count: int, has_backoff: bool
    ) -> tuple[tuple[Int64, Int64], Float32, Float32]:
        """Read the n-grams of one order."""
        prob: Float32 = np.zeros(count, np.float32)
        backoff: Float32 = np.zeros(count, np.float32)
        word_begin: Int64 = np.zeros(count * n, np.int64)
        word_end: Int64 = np.zeros(count * n, np.int64)
        code, row, self.position = kernels.parse_section(
            self.text, self.position, has_backoff, prob, backoff, word_begin, word_end, POWERS
        )
        if code != kernels.DONE:
            raise self._error(
                {
                    kernels.ENDS_EARLY: f"the header counts {count} {n}-grams, and here they end"
                    f" after {row}; correct the header, or copy the file again",
                    kernels.BAD_NUMBER: "a log probability or back-off weight is no finite number",
                    kernels.NO_WORD: f"a {n}-gram needs a log probability and {n} words",
                    kernels.EXTRA_FIELD: f"too many fields for a {n}-gram"
                    + ("" if has_backoff else " of the highest order, which has no back-off"),
                    kernels.POSITIVE: "a log probability above 0; build the model again",
                }[code],
                self.position,
            )
        return (word_begin, word_end), prob, backoff

    def _unigrams(self, words: Vocabulary, begin: Int64, end: Int64, section: int) -> Int32:
        """Fill `words`, and return the id of each unigram."""
        ids = words.intern_spans(self.text, begin, end)
        _, first = np.unique(ids, return_index=True)
        if first.size < ids.size:
            row = int(np.setdiff1d(np.arange(ids.size), first)[0])
            word = words[int(ids[row])]
            raise self._error(f"the word '{word}' stands twice among the unigrams", int(begin[row]))
        for name in (BEGIN, END):
            if name not in words:
                raise self._error(f"the unigrams lack {name}", section)
        return ids


def write_arpa(path: str | PathLike[str], ngrams: Ngrams) -> None:
    """Write an ARPA file (gz by the name), numbers with seven digits behind the point."""
    letters, begin = ngrams.words.symbols, ngrams.words.begin
    room: UInt8 = np.empty(1 << 20, np.uint8)
    with atomic_writer(path) as file:
        file.write("\\data\\\n")
        for n, rows in enumerate(ngrams.rows, start=1):
            file.write(f"ngram {n}={rows.shape[0]}\n")
        for n, rows in enumerate(ngrams.rows, start=1):
            file.write(f"\n\\{n}-grams:\n")
            prob, backoff = ngrams.prob[n - 1], ngrams.backoff[n - 1]
            row = 0
            while row < rows.shape[0]:
                start = row
                row, used = kernels.format_rows(
                    room, rows, prob, backoff, n < ngrams.order, letters, begin, row
                )
                if row == start:
                    room = np.empty(2 * room.size, np.uint8)
                file.write(room[:used].tobytes().decode("utf-8"))
        file.write("\n\\end\\\n")
