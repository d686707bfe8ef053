"""The student: regularised regression on beliefs, and only in disjoint predictions."""

import math

import pytest
import torch
from methods_cases import changed, graph
from sklearn.linear_model import LogisticRegression
from torch.nn import functional as F

from graphveil.graph.caps import cap_senders
from graphveil.graph.messages import weigh_messages
from graphveil.graph.propagation import spread_rows
from graphveil.methods import DPAR
from graphveil.methods.distillation import teach_student
from graphveil.methods.terms import no_messages

DATA = graph(nodes=90, edges=200)


def around(data):
    return weigh_messages(cap_senders(data.edge_index, len(data.x), None, seed=0), len(data.x))


@pytest.mark.parametrize("share", [1.0, 0.1], ids=["dense", "sparse"])
def test_it_is_the_regularised_regression(share):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(90, 40, generator=generator)
    x = x * (torch.rand(90, 40, generator=generator) <= share)
    labels, decay = DATA.y, 0.02
    data = changed(DATA, x=x)
    found = teach_student(F.one_hot(labels, 3).float(), x, around(data), decay)
    own = F.normalize(x, dim=1)
    rows = torch.cat([own, F.normalize(spread_rows(own, around(data), 2, 0.1), dim=1)], 1)
    regression = LogisticRegression(C=1 / (90 * decay), fit_intercept=False, tol=1e-10)
    expected = regression.fit(rows.numpy(), labels.numpy()).predict_log_proba(rows.numpy())
    assert (found - torch.from_numpy(expected)).abs().max() < 0.01


def test_it_mends_beliefs_that_noise_has_turned():
    """Beliefs that are wrong here and there, without regard to the rows, are put right."""
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(400) % 4
    x = F.one_hot(y, 4) + 0.15 * torch.randn(400, 4, generator=generator)
    other = torch.randint(4, (400,), generator=generator)
    told = torch.where(torch.rand(400, generator=generator) < 0.4, other, y)
    data = changed(graph(nodes=400, edges=300), x=x)
    found = teach_student(F.one_hot(told, 4).float(), x, around(data), 1e-3)
    assert (told == y).float().mean() < 0.8
    assert (found.argmax(1) == y).float().mean() > 0.9


def test_disjoint_predictions_ask_it_and_visible_ones_do_not():
    method = DPAR(epsilon=8.0, steps=4).fit(DATA)
    other = graph(seed=5, nodes=70, edges=150)
    with torch.no_grad():
        x = method.prepare(other)
        own = method.network_.on_graph(x, no_messages(70)).log_softmax(1)
        plain = spread_rows(own, around(other), 2, 0.25)
    noise = method.plan_.details["noise_multiplier"] / math.sqrt(4)
    learned = teach_student(plain.softmax(1), x, around(other), 0.5 * math.sqrt(noise) / 70)
    kept = 0.5 / (1 + 2 * noise)
    expected = (kept * own + (1 - kept) * learned).softmax(1)
    torch.testing.assert_close(method.predict_proba(other, mode="disjoint"), expected)
    torch.testing.assert_close(method.predict_proba(other, mode="visible"), plain.softmax(1))
    method.student = False
    torch.testing.assert_close(method.predict_proba(other, mode="disjoint"), plain.softmax(1))


def test_a_graph_without_edges_has_a_student_too():
    method = DPAR(epsilon=8.0, steps=4).fit(DATA)
    lonely = changed(DATA, edge_index=torch.empty(2, 0, dtype=torch.long))
    assert method.predict_proba(lonely, mode="disjoint").isfinite().all()
