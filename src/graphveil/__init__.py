"""Graph neural networks trained with differential privacy that holds.

The public names below load on first use (PEP 562), so ``import graphveil`` is instant and privacy
accounting never waits for torch:

======================  =================================================================
load                    a graph by name, or from files or tables of one's own
release_sums            noisy sums at the public rows of a typed graph, made once
from_networkx           a graph of NetworkX, by the attributes of its nodes
split                   a graph with random training, validation and test nodes
set_owners              a graph that knows whose its records are: an owner is one unit
cap_owners              a graph in which an owner has at most so many records
DPGNN                   a private graph network on capped neighbourhoods
LateGraph               a private network trained without edges, that predicts with them
GAP                     noisy sums over the neighbours, made once; predictions reuse them
DPAR                    private PageRank rows, and private steps on them
GraphDPSGD              whole graphs as records, each one loss term
GraphSplit              random groups without an edge between them, each one loss term
DPLink                  private link prediction: of people and public targets, of people, of edges
DPMLP                   a private network that reads no edge at all
MLPBaseline             an open network that reads no edge, for comparison
GNNBaseline             an open graph network, for comparison
GraphBaseline           an open network on whole graphs, for comparison
OpenDPAR                DPAR without noise, in the open, for comparison
DPPopularity            the targets that are linked most often, counted through noise
OpenLink                link prediction in the open, for comparison
Popularity              the targets that are linked most often, for comparison
ItemItem                targets in the same lists as one's own, in the open, for comparison
OpenGAP                 GAP without noise, in the open, for comparison
choose                  the method to take by public facts, its plan, and why
METHODS                 every method, by its name on the command line
Facts                   what is public of a graph: all that a plan may depend on
read                    a fitted method that was saved, or trained into a directory
runs                    runs as directories: train, go on after a crash, read back
export                  models as ONNX files, embeddings as tables
Guarantee               what is promised: unit, relation, epsilon, delta
Certificate             a guarantee with everything it rests on
Ledger                  what was ever spent on which data, with a budget for life
epsilon_of              the epsilon of an event at a given delta
delta_of                the delta of an event at a given epsilon
calibrate               the least noise that keeps an event within epsilon and delta
Gaussian                adds normal noise, and names the event to charge for it
Laplace                 adds Laplace noise, and names the event to charge for it
GumbelTopK              picks the k largest scores privately, and names the event
make_private            a private training step for a module and loss of your own
seeded                  the reproducible random stream, for weights and splits
secret                  the unpredictable random stream, for noise and batches
======================  =================================================================

Errors, each a kind of those it stands below::

    GraphveilError                 the base of every error here
    ├── InvalidInputError          a value, file or option is wrong; also a ValueError
    │   └── NotFittedError         a method was not fitted; also scikit-learn's NotFittedError
    ├── RefusedError               graphveil could run this but will not
    │   ├── UnprovenError          no theorem covers the request
    │   │   └── UnsupportedEventError   an event that cannot be priced
    │   ├── BudgetError            the request would spend more than is left
    │   └── VerificationError      a signed certificate that does not hold up
    ├── ToleranceError             a reproduced figure is out of tolerance
    └── BrokenPromiseError         an audit saw less privacy than is promised
"""

from typing import TYPE_CHECKING

from graphveil._lazy import lazy_names

if TYPE_CHECKING:
    from graphveil import export, runs
    from graphveil._errors import (
        BrokenPromiseError,
        BudgetError,
        GraphveilError,
        InvalidInputError,
        NotFittedError,
        RefusedError,
        ToleranceError,
        UnprovenError,
        UnsupportedEventError,
        VerificationError,
    )
    from graphveil.data import from_networkx, load
    from graphveil.grads import make_private
    from graphveil.graph.owners import set_owners
    from graphveil.graph.splits import cap_owners, split
    from graphveil.mechanisms import Gaussian, GumbelTopK, Laplace
    from graphveil.methods import (
        DPAR,
        DPGNN,
        DPMLP,
        GAP,
        METHODS,
        DPLink,
        DPPopularity,
        Facts,
        GNNBaseline,
        GraphBaseline,
        GraphDPSGD,
        GraphSplit,
        ItemItem,
        LateGraph,
        MLPBaseline,
        OpenDPAR,
        OpenGAP,
        OpenLink,
        Popularity,
    )
    from graphveil.methods.choosing import choose
    from graphveil.methods.public_sums import release_sums
    from graphveil.privacy.accounting import calibrate, delta_of, epsilon_of
    from graphveil.privacy.guarantee import Certificate, Guarantee
    from graphveil.privacy.ledger import Ledger
    from graphveil.rng import secret, seeded
    from graphveil.runs.saving import read

__version__ = "0.2.0"

__all__ = [
    "DPAR",
    "DPGNN",
    "DPMLP",
    "GAP",
    "METHODS",
    "BrokenPromiseError",
    "BudgetError",
    "Certificate",
    "DPLink",
    "DPPopularity",
    "Facts",
    "GNNBaseline",
    "Gaussian",
    "GraphBaseline",
    "GraphDPSGD",
    "GraphSplit",
    "GraphveilError",
    "Guarantee",
    "GumbelTopK",
    "InvalidInputError",
    "ItemItem",
    "Laplace",
    "LateGraph",
    "Ledger",
    "MLPBaseline",
    "NotFittedError",
    "OpenDPAR",
    "OpenGAP",
    "OpenLink",
    "Popularity",
    "RefusedError",
    "ToleranceError",
    "UnprovenError",
    "UnsupportedEventError",
    "VerificationError",
    "__version__",
    "calibrate",
    "cap_owners",
    "choose",
    "delta_of",
    "epsilon_of",
    "export",
    "from_networkx",
    "load",
    "make_private",
    "read",
    "release_sums",
    "runs",
    "secret",
    "seeded",
    "set_owners",
    "split",
]

_NAMES_OF = {
    "graphveil._errors": "BrokenPromiseError BudgetError GraphveilError InvalidInputError "
    "NotFittedError RefusedError ToleranceError UnprovenError UnsupportedEventError "
    "VerificationError",
    "graphveil.data": "from_networkx load",
    "graphveil.export": "export",  # the module itself
    "graphveil.grads": "make_private",
    "graphveil.graph.owners": "set_owners",
    "graphveil.graph.splits": "cap_owners split",
    "graphveil.mechanisms": "Gaussian GumbelTopK Laplace",
    "graphveil.methods": "DPAR DPGNN DPLink DPMLP DPPopularity GAP METHODS Facts GNNBaseline "
    "GraphBaseline GraphDPSGD GraphSplit ItemItem LateGraph MLPBaseline OpenDPAR OpenGAP OpenLink "
    "Popularity",
    "graphveil.methods.choosing": "choose",
    "graphveil.methods.public_sums": "release_sums",
    "graphveil.privacy.accounting": "calibrate delta_of epsilon_of",
    "graphveil.privacy.guarantee": "Certificate Guarantee",
    "graphveil.privacy.ledger": "Ledger",
    "graphveil.rng": "secret seeded",
    "graphveil.runs.saving": "read",
    "graphveil.runs": "runs",  # the module itself
}
__getattr__, __dir__ = lazy_names(globals(), _NAMES_OF)
