"""Graph neural networks trained with differential privacy that holds.

The public names below load on first use (PEP 562), so ``import graphveil`` is instant and privacy
accounting never waits for torch:

=============  ==========================================================================
load           a graph by name, or from files of one's own
split          a graph with random training, validation and test nodes
DPGNN          a private graph network on capped neighbourhoods
LateGraph      a private network trained without edges, that predicts with them
GAP            noisy sums over the neighbours, made once: predictions keep their secrets, too
DPAR           private PageRank rows, and private steps on them; PageRank in prediction
GraphDPSGD     whole graphs as records, each one loss term
GraphSplit     random groups without an edge between them, each one loss term
DPMLP          a private network that reads no edge at all
METHODS        every method, by its name on the command line
Facts          what is public of a graph: all that a plan may depend on
Guarantee      what is promised: unit, relation, epsilon, delta
Certificate    a guarantee with everything it rests on
Ledger         what was ever spent on which data, with a budget for life
epsilon        the epsilon of an event at a given delta
delta          the delta of an event at a given epsilon
calibrate      the least noise that keeps an event within a given epsilon and delta
Gaussian       adds normal noise, and names the event to charge for it
Laplace        adds Laplace noise, and names the event to charge for it
GumbelTopK     picks the k largest scores privately, and names the event to charge for it
make_private   a private training step for a module, loss and optimiser of your own
seeded         the reproducible random stream, for weights and splits
secret         the unpredictable random stream, for noise and batches
=============  ==========================================================================
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphveil.data import load
    from graphveil.grads import make_private
    from graphveil.graph.splits import split
    from graphveil.mechanisms import Gaussian, GumbelTopK, Laplace
    from graphveil.methods import (
        DPAR,
        DPGNN,
        DPMLP,
        GAP,
        METHODS,
        Facts,
        GraphDPSGD,
        GraphSplit,
        LateGraph,
    )
    from graphveil.privacy.accounting import calibrate, delta, epsilon
    from graphveil.privacy.guarantee import Certificate, Guarantee
    from graphveil.privacy.ledger import Ledger
    from graphveil.rng import secret, seeded

__version__ = "0.1.0"

__all__ = [
    "DPAR",
    "DPGNN",
    "DPMLP",
    "GAP",
    "METHODS",
    "Certificate",
    "Facts",
    "Gaussian",
    "GraphDPSGD",
    "GraphSplit",
    "Guarantee",
    "GumbelTopK",
    "Laplace",
    "LateGraph",
    "Ledger",
    "__version__",
    "calibrate",
    "delta",
    "epsilon",
    "load",
    "make_private",
    "secret",
    "seeded",
    "split",
]

_MODULE_OF = {
    "load": "graphveil.data",
    "split": "graphveil.graph.splits",
    "DPGNN": "graphveil.methods",
    "LateGraph": "graphveil.methods",
    "GAP": "graphveil.methods",
    "DPAR": "graphveil.methods",
    "GraphSplit": "graphveil.methods",
    "GraphDPSGD": "graphveil.methods",
    "DPMLP": "graphveil.methods",
    "METHODS": "graphveil.methods",
    "Facts": "graphveil.methods",
    "Guarantee": "graphveil.privacy.guarantee",
    "Certificate": "graphveil.privacy.guarantee",
    "Ledger": "graphveil.privacy.ledger",
    "epsilon": "graphveil.privacy.accounting",
    "delta": "graphveil.privacy.accounting",
    "calibrate": "graphveil.privacy.accounting",
    "Gaussian": "graphveil.mechanisms",
    "Laplace": "graphveil.mechanisms",
    "GumbelTopK": "graphveil.mechanisms",
    "make_private": "graphveil.grads",
    "seeded": "graphveil.rng",
    "secret": "graphveil.rng",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module the first time it is asked for."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value  # the next look-up finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
