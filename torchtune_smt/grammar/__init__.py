"""Synchronous grammars: rules, their files, and the part of them that a sentence needs."""

from torchtune_smt.grammar.alignment import read_alignments, write_alignments
from torchtune_smt.grammar.base import Grammar
from torchtune_smt.grammar.extracted_grammar import ExtractedGrammar
from torchtune_smt.grammar.extraction import extract_grammar
from torchtune_smt.grammar.file_grammar import FileGrammar
from torchtune_smt.grammar.formats import read_grammar, write_grammar
from torchtune_smt.grammar.store import load_grammar, save_grammar

# `align` is imported from torchtune_smt.grammar.alignment, so that sil-thot is loaded only by
# those who align.
__all__ = [
    "ExtractedGrammar",
    "FileGrammar",
    "Grammar",
    "extract_grammar",
    "load_grammar",
    "read_alignments",
    "read_grammar",
    "save_grammar",
    "write_alignments",
    "write_grammar",
]
