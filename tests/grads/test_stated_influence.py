"""Terms that overlap say how many of them one unit touches, and nobody is charged for fewer."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.grads import make_private
from graphveil.graph.messages import weigh_messages
from graphveil.graph.neighbourhoods import RootedTerms
from graphveil.nn import NodeClassifier
from graphveil.privacy.guarantee import Certificate

NODES, FEATURES, CLASSES = 40, 4, 3
X = torch.randn(NODES, FEATURES, generator=torch.Generator().manual_seed(0))
Y = torch.arange(NODES) % CLASSES
STAR = torch.stack([torch.zeros(NODES - 1, dtype=torch.long), torch.arange(1, NODES)])
EDGES = torch.cat(
    [STAR, torch.randint(NODES, (2, 200), generator=torch.Generator().manual_seed(1))], 1
)
ROOTS = torch.arange(NODES)


def losses(module, batch):
    around, labels = batch
    return F.cross_entropy(module(around), labels, reduction="none")


def raw(num_layers=1, **settings):
    """Over messages that the caller made, of which nobody knows how they were capped."""
    edges = EDGES[:, EDGES[0] != EDGES[1]].unique(dim=1)
    return RootedTerms(X, Y, weigh_messages(edges, NODES), ROOTS, num_layers, **settings)


def capped(num_layers=1, max_sent=3, edges=EDGES, **settings):
    return RootedTerms.capped(X, Y, edges, ROOTS, num_layers, max_sent=max_sent, **settings)


def private(terms, **settings):
    torch.manual_seed(0)
    module = NodeClassifier(FEATURES, 4, CLASSES, num_layers=terms.num_layers)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    return make_private(
        module, optimizer, terms, losses=losses, sample_rate=0.5, noise_multiplier=2.0, **settings
    )


def charged(step):
    step()
    return step.event.removed, step.event.altered


def test_messages_without_a_cap_alter_every_term():
    """One row of a hub is read by all: a certificate for one altered term would be false."""
    terms = raw()
    module = NodeClassifier(FEATURES, 4, CLASSES).eval()
    x = X.clone()
    x[0] = 5.0
    others = RootedTerms(x, Y, terms.messages, ROOTS, 1)
    pairs = zip(terms.batches(ROOTS), others.batches(ROOTS), strict=True)
    with torch.no_grad():
        changed = [losses(module, batch) != losses(module, other) for batch, other in pairs]
    assert int(torch.cat(changed).sum()) == NODES
    assert terms.influence() == (0, NODES)
    with pytest.raises(UnprovenError, match=f"altered={NODES} or more.*altered=1 instead"):
        private(terms, altered=1)
    with pytest.raises(UnprovenError, match=f"may alter all {NODES}.*max_sent=K"):
        private(terms)
    with pytest.raises(UnprovenError, match="altered=39 instead"):
        private(terms, altered=NODES - 1)  # a root without a loss of its own alters them all
    assert charged(private(terms, removed=0, altered=NODES)) == (0, NODES)


@pytest.mark.parametrize(("num_layers", "altered"), [(1, 3), (2, 12)])
def test_capped_messages_are_charged_by_their_cap(num_layers, altered):
    terms = capped(num_layers)
    assert terms.influence() == (1, altered)
    assert charged(private(terms)) == (1, altered)
    assert charged(private(terms, altered=altered + 2)) == (1, altered + 2)
    for given in ({"altered": altered - 1}, {"removed": 0, "altered": altered}, {"removed": 1}):
        with pytest.raises(UnprovenError, match=f"removed=1, altered={altered} or more"):
            private(terms, **given)


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("max_read", [None, 2])
def test_no_row_is_read_by_more_terms_than_stated(num_layers, max_read):
    """By brute force: every node withheld, features and list."""
    torch.manual_seed(1)
    module = NodeClassifier(FEATURES, 4, CLASSES, num_layers=num_layers).eval()

    @torch.no_grad()
    def each(x, edges):
        terms = RootedTerms.capped(
            x, Y, edges, ROOTS, num_layers, max_sent=2, max_read=max_read, normalisation="symmetric"
        )
        found = torch.zeros(NODES)
        for place in range(NODES):
            ((around, labels),) = terms.batches(torch.tensor([place]))
            found[place] = losses(module, (around, labels))
        return found

    removed, altered = capped(num_layers, 2, max_read=max_read).influence()
    before, most = each(X, EDGES), 0
    for v in range(0, NODES, 3):
        x = X.clone()
        x[v] = 0.0
        changed = (each(x, EDGES[:, EDGES[0] != v]) != before).nonzero().flatten().tolist()
        most = max(most, len(changed))
    assert 1 < most <= removed + altered


def test_terms_without_layers_are_their_own_units():
    assert charged(private(raw(0))) == (1, 0)


def test_whoever_caps_elsewhere_gives_his_word_and_the_certificate_says_so():
    step = private(raw(touched=(1, 5)))
    assert charged(step) == (1, 5)
    with pytest.raises(UnprovenError, match="altered=5 or more"):
        private(raw(touched=(1, 5)), altered=4)
    said = str(step.certificate(unit="node", delta=1e-3))
    assert (
        "The owner vouches that taking one node away removes at most 1 and alters at most 5" in said
    )
    known = private(capped())
    known()
    assert "taking one node away" not in str(known.certificate(unit="node", delta=1e-3))


def test_a_certificate_for_another_unit_needs_its_own_influence():
    """One kept message is 1 altered term for a node, and 4 for an undirected edge."""
    step = private(capped(max_sent=1))
    step()
    assert step.certificate(unit="node", delta=1e-3).guarantee.unit == "node"
    with pytest.raises(UnprovenError, match="altered=4 or more, as one edge-undirected"):
        step.certificate(unit="edge-undirected", delta=1e-3)
    with pytest.raises(UnprovenError, match="altered=8 or more"):
        step.certificate(unit="node", delta=1e-3, relation="remove", public_degree=7)
    more = private(capped(max_sent=1), altered=4)
    more()
    assert more.certificate(unit="edge-undirected", delta=1e-3).guarantee.unit == "edge-undirected"


def test_what_cannot_be_seen_is_vouched_for_on_the_certificate():
    module = nn.Linear(FEATURES, CLASSES)
    step = make_private(
        module, torch.optim.SGD(module.parameters(), lr=1.0), (X, Y), sample_rate=0.5,
        noise_multiplier=2.0,
    )  # fmt: skip
    step()
    certificate = step.certificate(unit="node", delta=1e-3, vouched=["rows were checked by hand"])
    said = str(certificate)
    assert "VOUCHED FOR" in said
    assert "The owner vouches that the loss of an example is a function of that example's" in said
    assert (
        "The owner vouches that taking one node away removes at most 1 and alters at most 0" in said
    )
    assert "The owner vouches that rows were checked by hand." in said
    assert "## Vouched for" in certificate.to_markdown()
    assert Certificate.from_json(certificate.to_json()) == certificate


class Mine:
    """Says of itself how many terms one unit touches."""

    def __len__(self):
        return NODES

    def batches(self, drawn):
        yield X[drawn], Y[drawn]

    def influence(self, unit="node", **relation):
        return 1, 2


class Known(RootedTerms):
    """Whose author may have written other batches."""


def test_whoever_writes_examples_vouches_for_the_influence_they_state():
    module = nn.Linear(FEATURES, CLASSES)
    mine = make_private(
        module, torch.optim.SGD(module.parameters(), lr=1.0), Mine(), sample_rate=0.5,
        noise_multiplier=2.0,
    )  # fmt: skip
    for step in (mine, private(Known.capped(X, Y, EDGES, ROOTS, 1, max_sent=2))):
        assert charged(step) == (1, 2)
        said = str(step.certificate(unit="node", delta=1e-3))
        assert "The owner vouches that every example drawn is in one batch" in said
        assert "vouches that taking one node away removes at most 1 and alters at most 2" in said


def test_the_owner_vouches_that_no_loss_turns_on_its_last_bits():
    step = private(capped())
    step()
    said = str(step.certificate(unit="node", delta=1e-3))
    assert "The owner vouches that no loss turns on its last bits" in said


def test_a_certificate_from_before_there_were_such_lines_is_read():
    import json

    module = nn.Linear(FEATURES, CLASSES)
    step = make_private(
        module, torch.optim.SGD(module.parameters(), lr=1.0), (X, Y), sample_rate=0.5,
        noise_multiplier=2.0,
    )  # fmt: skip
    step()
    old = json.loads(step.certificate(unit="node", delta=1e-3).to_json())
    del old["vouched"]
    assert Certificate.from_json(json.dumps(old)).vouched == ()


def test_neighbourhoods_of_another_kind_need_to_be_told_how_they_overlap():
    class Walks:
        num_layers = 2

        def __len__(self):
            return NODES

        def batches(self, drawn):
            yield X[drawn], Y[drawn]

    module = nn.Linear(FEATURES, CLASSES)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    settings = {"sample_rate": 0.5, "noise_multiplier": 2.0}
    with pytest.raises(InvalidInputError, match="give 'altered'"):
        make_private(module, optimizer, Walks(), **settings)
    step = make_private(module, optimizer, Walks(), altered=6, **settings)
    assert charged(step) == (1, 6)
    assert "every example drawn is in one batch" in str(step.certificate(unit="node", delta=1e-3))


def test_delta_is_compared_with_the_number_of_nodes_not_of_losses():
    """Nodes without a loss are protected, too: their rows are read."""
    few = RootedTerms.capped(X, Y, EDGES, ROOTS[:10], 1, max_sent=2)
    delta = 1.5 / NODES  # above 1/n for the nodes, below it for the losses
    step = private(few)
    with pytest.raises(UnprovenError, match=f"{NODES} units"):
        step.certificate(unit="node", delta=delta)
    assert step.certificate(unit="node", delta=0.5 / NODES)
    with pytest.raises(UnprovenError, match=f"{NODES * (NODES - 1) // 2} units"):
        private(few, removed=0, altered=9).certificate(unit="edge-undirected", delta=0.5 / NODES)
