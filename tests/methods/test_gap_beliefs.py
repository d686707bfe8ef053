"""GAP with beliefs: what a node reads of its own list, what comes first, what rules choose."""

import math

import dp_accounting as dpa
import pytest
import torch
from methods_cases import changed, graph

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.graph.aggregation import Sent, bounded_rows, incoming
from graphveil.mechanisms import Gaussian
from graphveil.methods import DPMLP, GAP, Facts, hop_training, own_row
from graphveil.methods.base import Method
from graphveil.rng import secret

DATA = graph()
FACTS = Facts.of(DATA)


def made(**settings):
    return GAP(**{"epsilon": 8.0, "steps": 3, **settings})


def sent_by(edges, nodes, *, sender_cap=1, cap="soft", seed=0):
    """Random rows along given messages."""
    generator = torch.Generator().manual_seed(seed)
    rows = bounded_rows(torch.randn(nodes, 3, generator=generator))
    messages = incoming(edges, nodes, seed=0, sender_cap=sender_cap, cap=cap)
    return Sent(messages, rows, messages.weights)


@pytest.mark.parametrize("sender_cap", [1, 2, 5])
@pytest.mark.parametrize("cap", ["soft", "hard"])
def test_the_squared_weights_of_a_sender_add_up_to_its_cap_at_most(cap, sender_cap):
    sent = sent_by(DATA.edge_index, len(DATA.x), sender_cap=sender_cap, cap=cap)
    weight = torch.ones(len(sent.messages.senders)) if sent.weight is None else sent.weight
    spent = torch.zeros(len(DATA.x), dtype=torch.float64)
    spent.index_add_(0, sent.messages.senders, weight.double().square())
    assert spent.max() <= sender_cap
    if cap == "soft" and sender_cap == 1:
        sends = torch.bincount(sent.messages.senders, minlength=len(spent)) > 0
        assert spent[sends].min() > 0.99  # nothing is left over


@pytest.mark.parametrize("cap", ["soft", "hard"])
def test_list_sums_are_what_the_formula_says(cap):
    sent = sent_by(DATA.edge_index, len(DATA.x), sender_cap=2, cap=cap)
    sums = torch.randn(len(DATA.x), 3, dtype=torch.float64)
    read = sent.list_sums(sums)
    weights = [1.0] * len(sent.messages.senders) if sent.weight is None else sent.weight.tolist()
    for node in range(len(DATA.x)):
        heard, count = torch.zeros(3, dtype=torch.float64), 0
        senders, receivers = sent.messages.senders.tolist(), sent.messages.receivers.tolist()
        ends = zip(senders, receivers, weights, strict=True)
        for sender, receiver, weight in ends:
            if sender == node:
                heard += sums[receiver] - weight * sent.rows[node].double()
                count += 1
        assert torch.allclose(read[node].double(), heard / max(count, 1) ** 0.5, atol=1e-5)


def test_a_list_says_nothing_of_what_its_own_node_sent():
    """Else a training node would read its own label, and a tested one could not."""
    sent = sent_by(DATA.edge_index, len(DATA.x))
    for node in (0, 7, 20):
        rows = sent.rows.clone()
        rows[node] = -rows[node]
        other = Sent(sent.messages, rows, sent.weight)
        before, after = (one.list_sums(one.sums())[node] for one in (sent, other))
        assert not torch.equal(sent.sums(), other.sums())
        assert torch.allclose(before, after, atol=1e-6)


def test_list_sums_read_the_own_list_and_released_sums_and_nothing_else():
    """Other nodes' lists and rows leave what a list says as it is, to the last bit."""
    sums = torch.randn(len(DATA.x), 3)
    before = sent_by(DATA.edge_index, len(DATA.x)).list_sums(sums)
    for node in (0, 3, 11):
        kept = DATA.edge_index[:, DATA.edge_index[0] != node]
        after = sent_by(kept, len(DATA.x)).list_sums(sums)
        others = torch.arange(len(DATA.x)) != node
        assert torch.equal(before[others], after[others])
        assert (after[node] == 0).all()
        assert (before[node] != 0).any()


def test_the_noise_of_a_list_sum_is_that_of_one_sum():
    data = graph(nodes=600, edges=3000)
    sent = sent_by(data.edge_index, 600)
    noise = torch.randn(600, 3, dtype=torch.float64)
    reads = torch.bincount(sent.messages.senders, minlength=600) > 0
    drawn = (sent.list_sums(sent.sums() + noise) - sent.list_sums(sent.sums()))[reads]
    assert drawn.std().item() == pytest.approx(1.0, rel=0.1)


def test_given_the_released_sums_a_prediction_moves_with_its_own_row_and_list_alone(monkeypatch):
    given = torch.randn(len(DATA.x), 3)
    monkeypatch.setattr(Sent, "noisy_sums", lambda *_: given)
    monkeypatch.setattr(hop_training, "step", lambda *_: None)
    monkeypatch.setattr(own_row, "release_mean", lambda *_: torch.full((DATA.x.shape[1],), 0.1))
    whole = made().fit(DATA)
    before = whole.predict_proba(DATA)
    for node in (0, 5, 17):
        x, y = DATA.x.clone(), DATA.y.clone()
        x[node], y[node] = -x[node], (y[node] + 1) % 3
        kept = DATA.edge_index[:, DATA.edge_index[0] != node]
        other = changed(DATA, x=x, y=y, edge_index=kept)
        after = made().fit(other).predict_proba(other)
        moved = (after != before).any(1).nonzero().flatten().tolist()
        assert moved == [node]


def test_the_encoder_comes_first_and_untrained_nodes_send_what_it_says():
    sent, noisy = [], Sent.noisy_sums

    def note(self, mechanism, rng, ranks):
        sent.append(self.rows)
        return noisy(self, mechanism, rng, ranks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sent, "noisy_sums", note)
        method = made().fit(DATA, rng=secret(fixed_seed=1))
    assert [part.name for part in method.plan_.parts] == [
        "mean",
        "encoder",
        "hop1",
        "classifier",
    ]
    rows, train = sent[0], DATA.train_mask
    assert torch.equal(rows[train].argmax(1), DATA.y[train])
    assert torch.allclose(rows[train].norm(dim=1), torch.ones(int(train.sum())), atol=1e-3)
    beliefs = method.network_.log_probabilities(hop_training.read_rows(method, DATA))
    assert torch.equal(rows[~train].argmax(1), beliefs[~train].argmax(1))
    assert (rows[~train].norm(dim=1) < 1).all()
    assert method.cache_.shape == (len(DATA.x), 2, 3)


@pytest.mark.parametrize(
    "settings, error, said",
    [
        ({"unit": "edge", "messages": "belief"}, UnprovenError, "own list"),
        ({"messages": "belief", "weighting": "similarity"}, UnprovenError, "must not depend"),
        ({"messages": "belief", "weighting": "attention"}, UnprovenError, "soft cap|must not"),
        ({"messages": "label", "centred": True}, InvalidInputError, "must be left out"),
        ({"messages": "belief", "paper": True}, UnprovenError, "papers send encodings"),
    ],
)
def test_what_has_no_proof_is_refused(settings, error, said):
    with pytest.raises(error, match=said):
        made(**settings).plan(FACTS)


def test_the_first_classifier_has_the_recipe_of_own_rows():
    """The steps of dp-mlp, with the noise of a share of the budget and the size it allows."""
    mine, own = (cls(epsilon=8.0).plan(FACTS) for cls in (GAP, DPMLP))
    first, alone = mine.part("encoder"), own.part("weights")
    for name in ("count", "rate", "max_grad_norm", "optimizer", "momentum", "averaged"):
        assert getattr(first, name) == getattr(alone, name)
    assert first.noise_multiplier > alone.noise_multiplier
    noise = own_row.output_noise(first, FACTS.num_train, 4.0)
    assert noise == pytest.approx(own_row.output_noise(alone, FACTS.num_train, 4.0)) == 0.8
    ratio = mine.part("mean").mechanism.noise_multiplier / first.noise_multiplier
    same = own.part("mean").mechanism.noise_multiplier / alone.noise_multiplier
    assert ratio == pytest.approx(same, rel=0.05)  # the mean's share is one of the classifier's


def test_no_node_moves_the_mean_row_further_than_is_charged(monkeypatch):
    summed, release = [], Gaussian.release

    def note(self, value, rng, **block):
        if value.shape == DATA.x.shape[1:]:
            summed.append(value)
        return release(self, value, rng, **block)

    monkeypatch.setattr(Gaussian, "release", note)
    monkeypatch.setattr(hop_training, "step", lambda *_: None)
    monkeypatch.setattr(Method, "_check_plan", lambda *_: None)
    monkeypatch.setattr(Method, "restore", lambda *_: None)
    made().fit(DATA)
    moved = []
    for node in DATA.train_mask.nonzero().flatten()[:8].tolist():
        x = DATA.x.clone()
        x[node] = 0.0
        made().fit(changed(DATA, x=x))
        moved.append((summed[-1] - summed[0]).norm().item())
    part = made().plan(FACTS).part("mean")
    assert part.mechanism.sensitivity == 1.0
    assert 0.99 < max(moved) <= 1 + 1e-6


def test_beliefs_are_no_surer_than_the_noise_in_them_allows(monkeypatch):
    method, before = made(), []

    def note(method, execution, name, network, terms):
        if name == "encoder":
            with torch.no_grad():
                network.weight.fill_(1.0)
            before.append(network.weight.clone())
        execution.spent[name] = dpa.NoOpDpEvent()

    monkeypatch.setattr(hop_training, "step", note)
    method.fit(DATA)
    trust = (method.network_.encoders[0].linear.weight / before[0]).unique()
    part = method.plan_.part("encoder")
    noise = own_row.output_noise(part, FACTS.num_train, 4.0)
    assert trust.item() == pytest.approx(1 / (1 + math.pi / 8 * noise**2) ** 0.5, rel=1e-5)
    assert trust.item() < 1


def test_what_a_user_sets_wins_over_the_rule():
    plan = GAP(epsilon=8.0).plan(FACTS)
    encoder, head = plan.part("encoder"), plan.part("classifier")
    assert (encoder.count, encoder.rate, encoder.optimizer) == (100, 1.0, "sgd")
    assert (head.count, head.rate, head.optimizer) == (100, 1.0, "sgd")
    given = {"steps": 7, "sample_rate": 0.25, "optimizer": "adam", "learning_rate": 0.03}
    plan = GAP(epsilon=8.0, max_grad_norm=0.7, **given).plan(FACTS)
    for name in ("encoder", "classifier"):
        part = plan.part(name)
        assert (part.count, part.rate, part.optimizer) == (7, 0.25, "adam")
        assert (part.learning_rate, part.max_grad_norm) == (0.03, 0.7)
    assert GAP(epsilon=8.0, messages="label").plan(FACTS).part("classifier").count == 150
    assert GAP(epsilon=8.0, optimizer="adam").plan(FACTS).part("classifier").learning_rate == 0.02


def test_few_nodes_spend_more_on_their_own_rows():
    few, many = (
        Facts(num_nodes=n, num_features=50, num_classes=5, num_train=n // 2, directed=False)
        for n in (4_000, 6_000)
    )
    shares = [GAP(epsilon=1.0).plan(facts).details["encoder_share"] for facts in (few, many)]
    assert shares == pytest.approx([0.8, 0.45])
    assert GAP(epsilon=8.0).plan(few).details["encoder_share"] == pytest.approx(0.45)


def test_sparse_rows_stay_sparse_and_say_the_same():
    sparse = changed(DATA, x=DATA.x.to_sparse_csr())
    assert made().prepare(sparse).layout == torch.sparse_csr
    fits = [made().fit(data, rng=secret(fixed_seed=1)) for data in (DATA, sparse)]
    dense, other = fits[0].predict_proba(DATA), fits[1].predict_proba(sparse)
    assert torch.allclose(dense, other, atol=1e-4)


def test_wide_rows_are_read_whole_unless_a_user_projects_them():
    facts = Facts(num_nodes=60, num_features=5000, num_classes=3, num_train=45, directed=False)
    assert made().network(facts).in_channels == 5000
    assert made(project_above=1024).network(facts).in_channels == 256
    assert made(messages="label").network(facts).in_channels == 256


@pytest.mark.parametrize("hops", [1, 2])
def test_parameters_are_counted(hops):
    description = made(hops=hops).network(FACTS)
    built = sum(weight.numel() for weight in description.build().parameters())
    assert description.num_parameters == built
