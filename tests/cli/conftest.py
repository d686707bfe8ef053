"""A tiny graph in every format, and commands run in this process."""

import json

import numpy as np
import pytest

import prices
from graphveil import cli
from graphveil.data.synthetic import social_network
from graphveil.graph.splits import split
from graphveil.methods import budget, class_weights, inference


@pytest.fixture(autouse=True, scope="session")
def prices_are_remembered():
    """Many commands here plan the same run."""
    with prices.remembered(budget, inference, class_weights):
        yield


@pytest.fixture
def run(capsys):
    """Run a command in this process: exit code, stdout, stderr."""

    def call(line):
        with pytest.raises(SystemExit) as left:
            cli.main(line.split() if isinstance(line, str) else line)
        captured = capsys.readouterr()
        return left.value.code, captured.out, captured.err

    return call


@pytest.fixture
def answer(run):
    """The JSON object of a command that must succeed."""

    def call(line):
        code, out, err = run(line + " --json")
        assert (code, err) == (0, "")
        assert out.count("\n") == 1
        return json.loads(out)

    return call


@pytest.fixture
def refused(run):
    """The one line of a command that must fail."""

    def call(line, code=2):
        found, out, err = run(line)
        assert (found, out) == (code, "")
        assert err.startswith("graphveil: ")
        assert err.count("\n") == 1
        assert "unexpected" not in err
        return err

    return call


@pytest.fixture(scope="session")
def arrays():
    """A small graph as arrays, split."""
    data = split(social_network(num_nodes=60, num_classes=3, num_features=5, seed=1), seed=0)
    names = ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask")
    return {name: data[name].numpy() for name in names} | {"num_classes": np.int64(3)}


@pytest.fixture(scope="session")
def learnable(tmp_path_factory):
    """A graph with enough test nodes to tell what was learnt from chance."""
    data = split(social_network(num_nodes=600, num_classes=3, num_features=5, seed=1), seed=0)
    names = ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask")
    path = tmp_path_factory.mktemp("learnable") / "graph.npz"
    np.savez(path, num_classes=np.int64(3), **{name: data[name].numpy() for name in names})
    return path


@pytest.fixture
def save(tmp_path, arrays):
    """Write the small graph, some arrays changed or left out, and return its path."""

    def call(name="graph.npz", **changed):
        every = {key: value for key, value in {**arrays, **changed}.items() if value is not None}
        np.savez(tmp_path / name, **every)
        return tmp_path / name

    return call


@pytest.fixture
def graph(save):
    return save()
