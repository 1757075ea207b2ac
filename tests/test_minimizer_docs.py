"""The examples of docs/minimizer.md do what the page says."""

import re

import numpy as np


def test_the_example_of_the_page(repository, capsys):
    page = (repository / "docs" / "minimizer.md").read_text(encoding="utf-8")
    code, noise = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(compile(code, "docs/minimizer.md", "exec"), names)
    found = names["found"]
    assert found.reached and found.messages == ()
    assert np.flatnonzero(found.groups >= 0).tolist() == [2, 3, 4, 5]
    assert found.weights[5] < 0 < found.weights[2:5].min()
    printed = capsys.readouterr().out.splitlines()
    assert re.match(r"objective .* of it above the minimum; KKT residual ", printed[0])
    assert printed[1].startswith("4 features in ")
    counts = [int(line.split()[1]) for line in printed[-5:]]
    assert counts[0] <= 1 and counts == sorted(counts) and counts[-1] > 4
    assert all(line.endswith("True") for line in printed[-5:])
    exec(compile(noise, "docs/minimizer.md", "exec"), names)
    assert np.flatnonzero(names["found"].groups >= 0).tolist() == list(range(2, 10))
