"""Where the files lie that come with the package: configurations and the example corpus."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]

EXAMPLE = "pkg://torchtune_smt/example"
"""What configurations call the folder of the bundled example corpus, wherever it lies."""


def from_here(path: Path) -> Path:
    """Return a path as it is called from the current folder, if it leads into it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def config_folder() -> Path:
    """Return ``conf`` inside an installed package, or at the top of the repository."""
    inside = PACKAGE / "conf"
    return inside if inside.is_dir() else PACKAGE.parent / "conf"


def example_folder() -> Path:
    """Return the folder of the bundled example corpus."""
    return PACKAGE / "example"
