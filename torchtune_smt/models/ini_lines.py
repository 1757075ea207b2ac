"""Lines of Moses's configuration files."""

from __future__ import annotations


def content(line: str) -> str:
    """Return what a line says: without a comment, and without blanks and tabs around it."""
    return line.split("#", 1)[0].strip(" \t")


def header(line: str) -> str | None:
    """Return the name of the section that a line begins; None if it begins none."""
    text = content(line)
    return text[1:-1] if text.startswith("[") and text.endswith("]") else None
