"""Accuracy at a proven epsilon, defaults only, one seed. Slow, and PubMed must be at hand."""

import os
from pathlib import Path

import pytest

from graphveil.data import load
from graphveil.graph.splits import split
from graphveil.methods import DPGNN, DPMLP, LateGraph, MLPBaseline

pytestmark = pytest.mark.slow
_GIVEN = os.environ.get("GRAPHVEIL_DATA")
ROOT = Path(_GIVEN) if _GIVEN else Path(__file__).resolve().parents[2].parent / "shared" / "data"


@pytest.fixture(scope="module")
def pubmed():
    if not (ROOT / "PubMed").is_dir():
        pytest.skip(f"no {ROOT / 'PubMed'}; set GRAPHVEIL_DATA to a folder with the raw files")
    return split(load("pubmed", root=ROOT), seed=0)


@pytest.mark.parametrize("method", [DPMLP, LateGraph])
def test_on_pubmed_defaults_are_good_at_epsilon_8(method, pubmed):
    fitted = method(epsilon=8.0).fit(pubmed)
    spent = fitted.certificate_.guarantee
    assert spent.unit == "node"
    assert spent.epsilon <= 8
    assert spent.delta <= 1e-5
    assert fitted.score(pubmed) >= 0.865


def test_on_the_social_network_graph_information_beats_privacys_price():
    """The embedded example, which is synthetic."""
    data = split(load("social"), seed=0)
    plain = MLPBaseline().fit(data).score(data)
    private = {kind.name: kind(epsilon=8.0).fit(data).score(data) for kind in (LateGraph, DPGNN)}
    assert max(private.values()) > plain, private
