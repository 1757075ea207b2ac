"""Synchronous grammars: rules, their files, and the part of them that a sentence needs."""

from torchtune_smt.grammar.base import Grammar, SentenceGrammar
from torchtune_smt.grammar.file_grammar import FileGrammar
from torchtune_smt.grammar.formats import read_grammar, write_grammar

__all__ = ["FileGrammar", "Grammar", "SentenceGrammar", "read_grammar", "write_grammar"]
