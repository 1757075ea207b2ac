"""The table of small changes that tests must notice is true of the package as it is."""

import ast
import runpy


def test_each_change_can_be_made(repository):
    script = runpy.run_path(str(repository / "scripts" / "dev" / "mutants.py"))
    found = list(script["mutants"]())
    assert len(found) >= 150
    for mutant in found:
        assert mutant.new != mutant.old
        # It raises where the line is not there, or more than once.
        ast.parse(mutant.text(repository))
        for name in mutant.tests:
            assert (repository / "tests" / name).is_file(), name
    assert len({str(mutant) for mutant in found}) == len(found)
