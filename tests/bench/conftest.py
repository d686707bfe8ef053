"""A small graph as a file, and descriptions of runs on it."""

import numpy as np
import pytest

from graphveil.data.synthetic import social_network
from graphveil.graph.splits import split


@pytest.fixture(scope="session")
def graph(tmp_path_factory):
    """The path of a small graph with masks."""
    data = split(social_network(num_nodes=60, num_classes=3, num_features=5, seed=1), seed=0)
    names = ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask")
    path = tmp_path_factory.mktemp("graphs") / "a.npz"
    np.savez(path, num_classes=np.int64(3), **{name: data[name].numpy() for name in names})
    return path


@pytest.fixture
def described_as(tmp_path):
    """Write a description, and return its path."""

    def call(text, name="gap-table2.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return call
