"""A handful of small trained runs, their pages, and HTML as a tree."""

import json
import shutil

import pytest
from report_cases import trimmed

from graphveil import runs
from graphveil.data.synthetic import social_network
from graphveil.methods import DPGNN, DPMLP, GAP, GNNBaseline, MLPBaseline
from graphveil.report import evidence, page, plan_page

NAMES = ["cats", "dogs", "elks"]
# Every term in every step: a plain Gaussian, which is priced at once.
QUICK = {"steps": 3, "sample_rate": 1.0}
METHODS = {
    "one": lambda: DPMLP(epsilon=1.0, centred=False, **QUICK),
    "eight": lambda: DPGNN(epsilon=8.0, **QUICK),
    "parts": lambda: GAP(epsilon=3.0, **QUICK),
    "edge": lambda: GAP(epsilon=2.0, unit="edge", open_steps=5),
    "claimed": lambda: GAP(epsilon=2.0, unit="edge", paper=True, open_steps=5),
    "void": lambda: DPGNN(epsilon=8.0, paper=True, sampler="printed", sender_cap=2, steps=3),
    "mlp": lambda: MLPBaseline(steps=3),
    "gnn": lambda: GNNBaseline(steps=3),
}


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Runs of all kinds on one small graph, as a folder of directories."""
    folder = tmp_path_factory.mktemp("runs")
    source = runs.Source(data="social")
    data = social_network(num_nodes=90, num_classes=3, num_features=5, seed=1)
    data.class_names = NAMES
    arranged = source.arrange(data)
    for name, make in METHODS.items():
        runs.Run(folder / name).train(make(), source, arranged=arranged)
    return folder


@pytest.fixture(scope="session")
def read(trained):
    """The evidence of a run by its name; read once."""
    known = {}

    def call(name):
        if name not in known:
            known[name] = evidence.read(str(trained / name))
        return known[name]

    return call


@pytest.fixture(scope="session")
def rendered(read):
    """The page of some runs."""
    return lambda *names: page.render([read(name) for name in names])


@pytest.fixture
def copied(trained, tmp_path):
    """A copy of a run to be damaged, and a way to change one of its JSON files."""

    def call(name="one", to="copy"):
        directory = tmp_path / to
        shutil.copytree(trained / name, directory)

        def change(file, edit):
            content = json.loads((directory / file).read_text())
            edit(content)
            (directory / file).write_text(json.dumps(content))

        return directory, change

    return call


@pytest.fixture
def few(monkeypatch):
    """Make grids of plans small."""

    def call(*names, most=2):
        every = plan_page._axes
        monkeypatch.setattr(plan_page, "_axes", lambda m: trimmed(every(m), names, most))

    return call
