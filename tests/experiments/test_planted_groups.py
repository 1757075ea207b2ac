"""The table of planted groups counts what it says."""

import numpy as np
from planted_groups import N_DENSE, main, planted, right


def test_pairs_that_are_right():
    truth = np.array([0, 0, 0, 1, 1, -1, -1])
    groups = np.array([-1] * N_DENSE + [0, 0, -1, 0, 2, 2, 2])
    # Of 0, 0 and 1 one pair of three; of 1 and two that say nothing none.
    assert right(groups, truth) == (6, 1)


def test_a_table(capsys, monkeypatch):
    lists, group = planted(1, 2, 5, 3, 1.0)
    assert group.tolist()[-4:] == [4, -1, -1, -1] and lists[0].rows.limits[0] == 0
    given = "--seeds 1 --lists 20 --groups 4 --noise 10 --fractions 0.5 --shares 0.5"
    monkeypatch.setattr("sys.argv", ["planted_groups", *given.split()])
    main()
    rows = capsys.readouterr().out.splitlines()
    assert rows[0] == "14 of 24 features are true, for each seed"
    assert rows[3].startswith("| 0.5 of λ_max | 0.500 | ") and rows[4].startswith("| noise=0.5 | ")
