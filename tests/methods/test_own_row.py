"""Training without edges: two noisy sums, steps of own rows, and what decides them."""

import copy
import math

import dp_accounting as dpa
import pytest
import torch
from methods_cases import CLASSES, FEATURES, NODES, changed, graph, recorded, weights

from graphveil._errors import InvalidInputError
from graphveil.grads.own_rows import RowExamples
from graphveil.methods import METHODS, Facts, own_row
from graphveil.methods.execution import Execution
from graphveil.methods.parts import Release, Steps
from graphveil.methods.terms import no_messages
from graphveil.rng import secret

DATA = graph()
FACTS = Facts.of(DATA)
OWN_ROW = ["dp-mlp", "late-graph"]
both = pytest.mark.parametrize("name", OWN_ROW)


class Stop(BaseException):
    """Not an Exception: what a kill looks like from inside."""


def made(name, **settings):
    return METHODS[name](**({"epsilon": 8.0, "steps": 4} | settings))


def planned(name="late-graph", nodes=20_000, columns=500, classes=5, train=None, **settings):
    train = 3 * nodes // 4 if train is None else train
    facts = Facts(num_nodes=nodes, num_features=columns, num_classes=classes, num_train=train)
    return METHODS[name](**({"epsilon": 8.0} | settings)).plan(facts)


def withheld(data, node):
    """The node's row is zero, its label is gone, its list is empty; its id stays."""
    x, y = data.x.to_dense().clone(), data.y.clone()
    x[node], y[node] = 0.0, -1
    x = x.to_sparse_csr() if data.x.layout == torch.sparse_csr else x
    return changed(data, x=x, y=y, edge_index=data.edge_index[:, data.edge_index[0] != node])


# --- what one node can move -----------------------------------------------------------------------


def released(monkeypatch, method, data):
    """The values that go to the two Gaussians, by the names of their parts."""
    plan = method.plan(FACTS)
    with monkeypatch.context() as patch:
        seen = recorded(patch)
        execution = Execution(plan)
        if method.reads_prior:
            own_row._release_prior(execution, data)
        if own_row.is_centred(method, FACTS):
            own_row.release_mean(method, execution, data)
    named = [part.name for part in plan.parts if isinstance(part, Release)]
    for name, (mechanism, _, _) in zip(named, seen.releases, strict=True):
        assert mechanism == plan.part(name).mechanism
    return {name: value for name, (_, value, _) in zip(named, seen.releases, strict=True)}


def odd(data):
    """Rows of zeros, of one entry, enormous and tiny ones, and such as are no numbers."""
    x, train = data.x.clone(), data.train_mask.nonzero().flatten()
    x[train[0]] = 0.0
    x[train[1]] = torch.eye(FEATURES)[0]
    x[train[2]] = 1e38
    x[train[3]] = -1e-38
    x[train[4], 1] = torch.nan
    x[train[5], 2] = torch.inf
    y = data.y.clone()
    y[train[6]] = -1
    return changed(data, x=x, y=y)


@pytest.mark.parametrize("features", ["power", "row"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("make", [lambda data: data, odd], ids=["usual", "odd"])
def test_withholding_a_node_moves_each_sum_by_one_at_most(make, sparse, features, monkeypatch):
    data, method = make(DATA), made("late-graph", features=features)
    if sparse:
        data = changed(data, x=data.x.to_sparse_csr())
    whole, furthest = released(monkeypatch, method, data), {"mean": 0.0, "counts": 0.0}
    assert whole.keys() == furthest.keys()
    for node in range(NODES):
        other = released(monkeypatch, method, withheld(data, node))
        for name, value in whole.items():
            assert value.dtype == torch.float64
            assert torch.isfinite(value).all()
            moved = float(torch.linalg.vector_norm(value - other[name]))
            assert moved == 0 or data.train_mask[node]
            furthest[name] = max(furthest[name], moved)
    assert 0.99 < furthest["mean"] <= 1.0  # it is attained, and never exceeded
    assert furthest["counts"] == 1.0


def test_no_other_row_and_no_order_moves_the_sum_by_a_bit(monkeypatch):
    """Rows are on a grid, so that their sum is exact; floats would round."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(NODES, FEATURES, generator=generator) * 10.0 ** torch.randint(-6, 6, (NODES, 1))
    data, method = changed(DATA, x=x), made("dp-mlp", features="row")
    whole = released(monkeypatch, method, data)["mean"]
    train = data.train_mask.nonzero().flatten()
    alone = [
        whole - released(monkeypatch, method, withheld(data, int(node)))["mean"] for node in train
    ]
    assert torch.equal(torch.stack(alone[::-1]).sum(0), whole)


@both
def test_rows_of_the_mean_have_the_length_that_features_have(name, monkeypatch):
    """Lengths are divided out before noise, and multiplied back after it."""
    near = released(monkeypatch, made(name, feature_scale=1.0), DATA)["mean"]
    far = released(monkeypatch, made(name, feature_scale=50.0), DATA)["mean"]
    torch.testing.assert_close(near, far, rtol=1e-3, atol=1e-3)
    method = made(name, epsilon=1e6, feature_scale=50.0)
    centre = own_row.release_mean(method, Execution(method.plan(FACTS)), DATA)
    mean = method.prepare(DATA)[DATA.train_mask].mean(0)
    torch.testing.assert_close(centre, mean, rtol=1e-2, atol=1e-1)


def test_a_mean_that_is_not_bounded_is_noticed(monkeypatch):
    """The brute force above can fail: raw rows move a sum by their length."""
    monkeypatch.setattr("graphveil.graph.aggregation.bounded_rows", lambda rows: 3 * rows)
    method = made("dp-mlp")
    whole = released(monkeypatch, method, DATA)["mean"]
    node = int(DATA.train_mask.nonzero()[0])
    other = released(monkeypatch, method, withheld(DATA, node))["mean"]
    assert float((whole - other).norm()) > 1


@both
def test_withholding_a_node_removes_its_loss_term_and_alters_none(name):
    method, centre = made(name), torch.randn(FEATURES)
    whole = method.terms(DATA, centre)
    assert isinstance(whole, RowExamples)
    train = DATA.train_mask.nonzero().flatten().tolist()
    for node in range(NODES):
        other = method.terms(withheld(DATA, node), centre)
        same = (whole.labels == other.labels) & (whole.rows == other.rows).all(1)
        gone = [train[place] for place in (~same).nonzero().flatten()]
        assert gone == ([node] if node in train else [])
        assert all(other.labels[~same] == -1)  # no loss
    assert method.influence(FACTS) == (1, 0)


# --- what is charged ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "names"),
    [
        ("late-graph", {}, ["counts", "mean", "weights"]),
        ("late-graph", {"centred": False}, ["counts", "weights"]),
        ("late-graph", {"features": "raw"}, ["counts", "weights"]),
        ("dp-mlp", {}, ["mean", "weights"]),
        ("dp-mlp", {"centred": False}, ["weights"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("epsilon", [0.3, 8.0])
def test_all_that_is_released_is_charged_and_fits_the_budget(name, settings, names, epsilon):
    plan = planned(name, epsilon=epsilon, **settings)
    assert [part.name for part in plan.parts] == names
    assert len({charge.paid_for for charge in plan.charges}) == len(names)
    assert 0.98 * epsilon < plan.epsilon <= epsilon * (1 + 1e-9)
    # Full batches of terms that a node removes: Gaussians, whose squares of mu add up.
    steps = plan.part("weights")
    assert (steps.rate, steps.removed, steps.altered) == (1.0, 1, 0)
    squares = steps.count / steps.noise_multiplier**2
    for part in plan.parts[:-1]:
        assert part.mechanism.sensitivity == 1.0
        squares += part.mechanism.noise_multiplier**-2
    event = dpa.GaussianDpEvent(1 / math.sqrt(squares))
    accountant = dpa.pld.PLDAccountant(value_discretization_interval=1e-3).compose(event)
    exact = accountant.get_epsilon(plan.delta)
    assert plan.epsilon == pytest.approx(exact, rel=0.02)
    assert plan.epsilon >= exact - 0.01


def test_the_sums_get_their_shares():
    plan = planned(epsilon=2.0)
    squares = {part.name: part.mechanism.noise_multiplier**-2 for part in plan.parts[:-1]}
    assert squares["mean"] / squares["counts"] == pytest.approx(5)


@both
def test_a_fit_releases_the_parts_of_its_plan_and_no_more(name, monkeypatch):
    seen = recorded(monkeypatch)
    method = made(name).fit(DATA)
    sums = [part for part in method.plan_.parts if isinstance(part, Release)]
    assert len(seen.releases) == len(sums) + method.steps
    for part, (mechanism, value, _) in zip(sums, seen.releases, strict=False):
        assert mechanism == part.mechanism
        assert value.numel() == {"mean": FEATURES, "counts": CLASSES}[part.name]
    assert method.certificate_ == method.plan_.certificate()
    assert method.certificate_.guarantee.epsilon <= 8.0 * (1 + 1e-9)


# --- the mean row ---------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 2, 3])
@both
def test_the_network_reads_rows_as_they_are(name, layers, monkeypatch):
    """On rows less the centre, before it was folded in, it says what it says on rows after."""
    kept = {}
    train = Execution.train

    def keep(self, part, network, terms, losses):
        train(self, part, network, terms, losses)
        kept.update(network=copy.deepcopy(network), rows=terms.rows.clone())

    monkeypatch.setattr(Execution, "train", keep)
    method = made(name, num_layers=layers, epsilon=50.0).fit(DATA)
    assert method.plan_.details["centred"] == 1
    nodes = int(DATA.train_mask.sum())
    with torch.no_grad():
        before = kept["network"].on_graph(kept["rows"], no_messages(nodes))
        rows = method.prepare(DATA)[DATA.train_mask]
        after = method.network_.on_graph(rows, no_messages(nodes))
        assert (rows - kept["rows"]).abs().max() > 0.01  # there was something to fold
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("columns", "settings", "centred"),
    [
        (1024, {}, True),
        (1025, {}, False),
        (1025, {"centred": True}, True),
        (500, {"centred": False}, False),
        (5000, {"project_above": 1024}, True),  # 256 columns are left
        (500, {"features": "raw"}, False),
        (500, {"features": "raw", "centred": False}, False),
    ],
    ids=str,
)
def test_who_is_centred(columns, settings, centred):
    plan = planned("dp-mlp", columns=columns, **settings)
    assert ("mean" in {part.name for part in plan.parts}) == centred
    assert plan.details["centred"] == float(centred)


def test_raw_rows_are_never_centred():
    with pytest.raises(InvalidInputError, match=r"one length.*leave out 'centred'"):
        made("dp-mlp", features="raw", centred=True).plan(FACTS)


# --- killed and resumed ---------------------------------------------------------------------------


def stop_before(number):
    def progress(steps):
        for step in steps:
            if step == number:
                raise Stop
            yield step

    return progress


@pytest.mark.parametrize("after", [0, 2])
@both
def test_a_killed_run_reads_its_sums_back(name, after, tmp_path, monkeypatch):
    with pytest.raises(Stop):
        made(name).fit(DATA, directory=tmp_path, progress=stop_before(after))
    files = [tmp_path / f"{n}.safetensors" for n in ("mean", "counts")[: OWN_ROW.index(name) + 1]]
    kept = [file.read_bytes() for file in files]
    seen = recorded(monkeypatch)
    method = made(name).fit(DATA, directory=tmp_path)
    # Steps that were begun and not saved are taken again, and the sums are not.
    assert {value.numel() for _, value, _ in seen.releases} == {CLASSES * (FEATURES + 1)}
    assert [file.read_bytes() for file in files] == kept
    again = made(name).fit(DATA, directory=tmp_path)
    for one, other in zip(
        method.network_.state_dict().values(), again.network_.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other)
    assert again.certificate_ == method.certificate_


@both
def test_a_run_killed_before_the_mean_was_folded_gives_the_same_network(
    name, tmp_path, monkeypatch
):
    """The weights on disk read centred rows: the centre is folded in once, whenever it is."""
    train, trained = Execution.train, []

    def stop(self, part, network, terms, losses):
        train(self, part, network, terms, losses)
        trained.append(copy.deepcopy(network))
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(Execution, "train", stop)
        with pytest.raises(Stop):
            made(name).fit(DATA, directory=tmp_path)
    seen = recorded(monkeypatch)
    method = made(name).fit(DATA, directory=tmp_path)
    assert not seen.releases
    (before,) = trained
    after = method.network_
    assert torch.equal(before.decoder.linears[0].weight, after.decoder.linears[0].weight)
    assert not torch.equal(before.decoder.linears[0].bias, after.decoder.linears[0].bias)
    twice = made(name).fit(DATA, directory=tmp_path)
    assert torch.equal(weights(twice), weights(method))


# --- noise and steps ------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9, 0.99])
@pytest.mark.parametrize("averaged", [0.0, 0.02, 0.5, 1.0])
def test_the_noise_in_an_output_is_that_of_steps_without_gradients(momentum, averaged):
    """Torch's SGD on noise alone, many weights at a time; the last ones are averaged."""
    count, drawn, draws = 30, 40.0, 20_000
    steps = Steps(
        name="weights", count=count, rate=1.0, noise_multiplier=3.0, removed=1, altered=0,
        max_grad_norm=2.0, optimizer="sgd", momentum=momentum, learning_rate=0.7, averaged=averaged,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    weight = torch.zeros(draws, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=steps.learning_rate, momentum=momentum)
    last = []
    for _ in range(count):
        noise = torch.randn(draws, generator=generator, dtype=torch.float64)
        weight.grad = noise * steps.noise_multiplier * steps.max_grad_norm / drawn
        optimizer.step()
        last.append(weight.detach().clone())
    mean = torch.stack(last[-max(1, round(averaged * count)) :]).mean(0)
    expected = own_row.output_noise(steps, drawn, length=4.0)
    # The standard error of a standard deviation is one in sqrt(2 draws).
    assert 4.0 * float(mean.std()) == pytest.approx(expected, rel=4 / math.sqrt(2 * draws))


def test_the_noise_in_an_output_is_that_of_a_real_fit():
    """Rows of zeros but their labels gone: nothing but noise reaches the weights."""
    nodes = DATA.num_nodes
    data = changed(DATA, x=torch.zeros(nodes, 400))
    facts, deviations = Facts.of(data), []
    method = made("dp-mlp", steps=20, centred=False, epsilon=2.0)
    plan = method.plan(facts)
    data.y = torch.full((nodes,), -1)
    for seed in range(4):
        method.run(plan, data, rng=secret(fixed_seed=seed))
        deviations.append(method.network_.decoder.linears[0].weight.detach().double())
    spread = float(torch.stack(deviations).std())
    expected = own_row.output_noise(plan.part("weights"), facts.num_train, length=4.0)
    assert 4.0 * spread == pytest.approx(expected, rel=4 / math.sqrt(2 * 4 * 400 * CLASSES))


def test_the_learning_rate_makes_the_noise_in_an_output_what_it_may_be():
    for settings in ({"epsilon": 1.0}, {"epsilon": 0.5, "steps": 30}, {"momentum": 0.5}):
        plan = planned(nodes=3000, **settings)
        steps = plan.part("weights")
        noise = own_row.output_noise(steps, steps.rate * plan.facts.num_train, 4.0)
        assert steps.learning_rate < 5
        assert noise == pytest.approx(0.8)
        assert plan.details["learning_rate"] == steps.learning_rate


@pytest.mark.parametrize(("scale", "longest"), [(4.0, 5.0), (8.0, 1.25), (1.0, 80.0)])
def test_steps_are_no_longer_than_rows_allow(scale, longest):
    plan = planned(nodes=2_000_000, train=1_500_000, epsilon=50.0, feature_scale=scale)
    steps = plan.part("weights")
    assert steps.learning_rate == longest
    assert own_row.output_noise(steps, steps.rate * 1_500_000, scale) < 0.8


@pytest.mark.parametrize(
    ("settings", "optimizer", "rate"),
    [
        ({"num_layers": 2}, "adam", 0.02),
        ({"optimizer": "adam"}, "adam", 0.02),
        ({"learning_rate": 0.123}, "sgd", 0.123),
        ({"num_layers": 3, "learning_rate": 0.5}, "adam", 0.5),
        ({"num_layers": 2, "optimizer": "sgd", "learning_rate": 0.5}, "sgd", 0.5),
    ],
    ids=str,
)
def test_who_sets_an_optimizer_or_a_rate_has_it(settings, optimizer, rate):
    steps = planned(**settings).part("weights")
    assert (steps.optimizer, steps.learning_rate) == (optimizer, rate)


@pytest.mark.parametrize(
    ("train", "rate"), [(100, 1.0), (50_000, 1.0), (50_001, 50_000 / 50_001), (200_000, 0.25)]
)
def test_steps_draw_about_fifty_thousand_terms(train, rate):
    plan = planned(nodes=300_000, train=train)
    assert plan.part("weights").rate == plan.details["sample_rate"] == rate
    assert plan.epsilon <= 8.0 * (1 + 1e-9)


def test_who_sets_a_sample_rate_has_it():
    assert planned(nodes=300_000, sample_rate=0.1).part("weights").rate == 0.1
    assert planned(nodes=300_000, sample_rate=1.0).part("weights").rate == 1.0


@pytest.mark.parametrize(
    "settings",
    [
        {"num_layers": 2},
        {"num_layers": 3, "optimizer": "sgd", "activation": "relu"},
        {"optimizer": "adam"},
        {"sample_rate": 0.3},
        {"momentum": 0.0, "averaged": 0.0},
        {"clipping": "automatic"},
        {"clipping": "quantile"},
        {"clipping": "per_layer"},
        {"clipping": "per_layer", "max_grad_norm": {"decoder.linears.0": 1.5}},
        {
            "clipping": "per_layer",
            "num_layers": 2,
            "max_grad_norm": {"encoder.linears.0": 0.7, "decoder.linears.0": 1.5},
        },
        {"features": "raw", "max_grad_norm": 1},
        {"project_above": 3, "projection": 4},
    ],
    ids=str,
)
@both
def test_every_way_to_train_runs_what_it_planned(name, settings):
    method = made(name, **settings).fit(DATA)
    assert method.certificate_ == method.plan_.certificate()
    assert method.certificate_.guarantee.epsilon <= 8.0 * (1 + 1e-9)
    chances = method.predict_proba(DATA)
    assert torch.isfinite(chances).all()
    torch.testing.assert_close(chances.sum(1), torch.ones(NODES))


def test_one_layer_starts_from_nothing_and_more_do_not(monkeypatch):
    first = []

    def keep(self, part, network, terms, losses):
        first.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
        raise Stop

    monkeypatch.setattr(Execution, "train", keep)
    for layers in (1, 2):
        with pytest.raises(Stop):
            made("dp-mlp", num_layers=layers).fit(DATA)
    assert not first[0].any()
    assert first[1].any()
