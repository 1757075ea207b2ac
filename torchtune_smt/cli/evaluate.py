"""``evaluate``: the scores of a system; ``compare`` by another name, as text."""

from torchtune_smt.cli.compare import run


def main() -> int:
    """Print the scores of systems."""
    return run("evaluate")
