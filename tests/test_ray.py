"""The engine on a Ray cluster of two nodes on this machine; skipped where Ray is not installed."""

import importlib.util
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from commands import train
from toy_workers import OpenToy

from torchtune_smt.core.errors import InputError
from torchtune_smt.parallel.on_ray import RayEngine

PLAIN = [(n, "") for n in range(9)]


@pytest.fixture(autouse=True)
def ray():
    if importlib.util.find_spec("ray") is None:
        with pytest.raises(InputError, match=r"pip install 'torchtune-smt\[ray\]'"):
            RayEngine()
    return pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster(repository):
    """A cluster with a head that computes nothing, and two nodes."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    before = os.environ.get("PYTHONPATH")
    # Processes of Ray import the package and the toys.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(repository), str(repository / "tests")])
    memory = {"object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **memory})
    cluster.nodes = [cluster.add_node(num_cpus=1, **memory) for _ in range(2)]
    yield cluster
    cluster.shutdown()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="module")
def engine(cluster, tmp_path_factory):
    engine = RayEngine(cluster.address, workers=2, deadline=30)
    engine.serve(OpenToy(tmp_path_factory.mktemp("toys")))
    yield engine
    engine.close()


def test_results_are_in_the_order_of_tasks(engine):
    tasks = [(n, "slow" if n in (0, 5) else "") for n in range(9)]
    assert [value for value, _ in engine.map(7, tasks)] == [7 * n for n in range(9)]
    assert [value for value, _ in engine.map(3, PLAIN)] == [3 * n for n in range(9)]


def test_errors_come_here(engine):
    with pytest.raises(InputError, match="^file:3: is bad; make it good$"):
        list(engine.map(1, [(0, "bad")]))
    with pytest.raises(RuntimeError, match="KeyError: 'a bug'"):
        list(engine.map(1, [(0, "bug")]))


def test_a_worker_that_is_killed_is_replaced(engine, capsys):
    tasks = [(n, "kill once" if n == 1 else "") for n in range(5)]
    assert [value for value, _ in engine.map(5, tasks)] == [5 * n for n in range(5)]
    assert "a worker was lost (" in capsys.readouterr().err
    with pytest.raises(InputError, match="3 workers were lost over one task"):
        list(engine.map(5, [(2, "kill")]))


def test_time_that_a_task_takes(engine, monkeypatch, capsys):
    monkeypatch.setattr(engine, "deadline", 4.0)
    tasks = [(n, "hang once" if n == 1 else "") for n in range(3)]
    assert [value for value, _ in engine.map(5, tasks)] == [0, 5, 10]
    assert "a worker took more than 4 s (engine.deadline)" in capsys.readouterr().err
    # What is ready has not taken too long, however long it lies there.
    engine.deadline = 3.0
    results = engine.map(2, [(n, "slow") for n in range(9)])
    found = [next(results)[0]]
    time.sleep(4)
    found += [value for value, _ in results]
    assert found == [2 * n for n in range(9)]
    # There are two cores, and as many tasks are given at a time as workers are asked for.
    engine.deadline = 7.0
    monkeypatch.setattr(engine, "workers", 4)
    assert [value for value, _ in engine.map(2, [(n, "slower") for n in range(4)])] == [0, 2, 4, 6]
    assert "another takes its place" not in capsys.readouterr().err


def test_time_of_opening_is_not_that_of_the_first_task(cluster, engine, tmp_path, capsys):
    """But an opening that hangs is ended, too."""
    assert len(list(engine.map(1, PLAIN))) == len(PLAIN)
    slow = RayEngine(cluster.address, workers=2, deadline=7)
    slow.serve(OpenToy(tmp_path, seconds=4))
    assert [value for value, _ in slow.map(5, [(n, "slower") for n in range(2)])] == [0, 5]
    assert "another takes its place" not in capsys.readouterr().err
    hanging = RayEngine(cluster.address, workers=1, deadline=2, attempts=2)
    hanging.serve(OpenToy(tmp_path, seconds=1000))
    with pytest.raises(InputError, match=r"2 workers were lost .* took more than 2 s \(engine.de"):
        list(hanging.map(5, PLAIN))


def test_tuning_is_that_of_the_local_engine(engine, cluster, place):
    """`engine` has joined the cluster already, and so has this process."""
    assert len(list(engine.map(1, PLAIN))) == len(PLAIN)
    options = ["parallel=itermix", "parallel.shards=3", "tuner.result=last", "data.test=null"]
    local = train(place, "on_local_engine", *options, "engine.workers=1")
    address = f"engine.address={cluster.address}"
    ray = train(place, "on_ray_engine", *options, "engine=ray", address, "engine.workers=2")
    for name in ("weights.txt.gz", "dev.translations.txt"):
        assert (ray.folder / name).read_bytes() == (local.folder / name).read_bytes()


def test_a_node_that_dies(engine, cluster):
    """Last: it does not come back."""
    results = engine.map(2, [(n, "slow") for n in range(12)])
    found = [next(results)[0]]
    cluster.remove_node(cluster.nodes[0], allow_graceful=False)
    found += [value for value, _ in results]
    assert found == [2 * n for n in range(12)]


def test_ray_that_does_not_answer(ray, monkeypatch):
    """By default it is one of its own, whatever cluster runs; signals stay with who had them."""
    given = []

    def init(**options):
        given.append(options)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise ConnectionError("no")

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as taken:
        # Nobody listens there, and nobody else can: Ray would try for minutes.
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for engine, said in (
            (RayEngine(address), rf"^engine.address={address}: no Ray .*refused"),
            (RayEngine("somewhere"), "^engine.address=somewhere: no Ray cluster answers"),
            (RayEngine("auto"), "engine.address=auto: no Ray cluster answers"),
            (RayEngine(), r"engine=ray: Ray does not start here \(no\)"),
        ):
            if engine.address in (None, "auto", "local"):
                monkeypatch.setattr(ray, "init", init)
            engine.serve(OpenToy(Path()))
            with pytest.raises(InputError, match=said):
                next(engine.map(1, PLAIN))
    assert given[-1]["address"] == "local" and signal.getsignal(signal.SIGTERM) == before
