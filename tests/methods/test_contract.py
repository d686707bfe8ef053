"""What every method promises, asked of each entry of METHODS: to add one is to test it."""

import copy
import dataclasses
import inspect
import math
from functools import cache

import numpy as np
import pytest
import torch
from methods_cases import (
    CLASSES,
    NODES,
    OF_NODES,
    changed,
    data_for,
    graph,
    made,
    weights,
)
from sklearn.base import clone
from torch import nn
from torch_geometric.data import Data

from graphveil._errors import GraphveilError, InvalidInputError
from graphveil.graph.splits import separate, split
from graphveil.methods import METHODS, Facts
from graphveil.privacy.guarantee import Certificate

PRIVATE = [name for name, kind in METHODS.items() if kind.private]
OPEN = [name for name in METHODS if name not in PRIVATE]
every_method = pytest.mark.parametrize("name", METHODS)
every_classifier = pytest.mark.parametrize(  # links have tests of their own: test_dp_link.py
    "name", [name for name, kind in METHODS.items() if kind.record != "link"]
)
COUNTING = ("popularity", "dp-popularity", "item-item")  # which take no steps
every_method_with_steps = pytest.mark.parametrize(
    "name", [name for name in METHODS if name not in COUNTING]
)
every_method_for_nodes = pytest.mark.parametrize("name", OF_NODES)
DATA = {name: data_for(name) for name in METHODS}
FACTS = {name: Facts.of(data) for name, data in DATA.items()}


@cache
def fitted(name):
    """One fit for all tests that only look."""
    return made(name).fit(DATA[name])


# --- settings -------------------------------------------------------------------------------------


@every_method
def test_the_table_of_contents_says_the_methods_own_names(name):
    assert METHODS[name].name == name


@every_method
def test_settings_are_keywords_with_defaults_but_for_epsilon_which_comes_first(name):
    parameters = list(inspect.signature(METHODS[name]).parameters.values())
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in parameters)
    required = [p.name for p in parameters if p.default is inspect.Parameter.empty]
    assert required == (["epsilon"] if METHODS[name].private else [])
    if METHODS[name].private:
        assert parameters[0].name == "epsilon"
        with pytest.raises(TypeError, match="epsilon"):
            METHODS[name]()
    with pytest.raises(TypeError):
        METHODS[name](8.0)


@every_method
def test_settings_go_round_through_scikit_learn(name):
    method = made(name, seed=7)
    twin = clone(method)
    assert twin is not method
    assert twin.get_params() == method.get_params()
    again = eval(repr(method), {METHODS[name].__name__: METHODS[name]})
    assert again.get_params() == method.get_params()
    assert method.set_params(seed=8) is method
    assert method.seed == 8
    assert twin.seed == 7
    assert {method: 1}[method] == 1  # hashable


@every_method
def test_repr_names_what_was_changed_and_nothing_else(name):
    text = repr(METHODS[name](**({"epsilon": 2.0} if METHODS[name].private else {}), seed=3))
    settings = "epsilon=2.0, seed=3" if METHODS[name].private else "seed=3"
    assert text == f"{METHODS[name].__name__}({settings})"


@every_method
def test_every_setting_is_documented_in_one_line_that_help_shows(name):
    for setting in dataclasses.fields(METHODS[name]):
        if setting.init:
            line = setting.metadata["doc"]
            assert line.endswith(".")
            assert "\n" not in line
            assert f"{setting.name}: " in METHODS[name].__doc__
            assert line in METHODS[name].__doc__


def steps_of(name):
    """What a method calls its first steps."""
    return "steps" if "steps" in inspect.signature(METHODS[name]).parameters else "open_steps"


@every_method
def test_wrong_values_are_refused_by_the_constructor(name):
    with pytest.raises(InvalidInputError, match="seed"):
        made(name, seed=-1)
    if name not in COUNTING:
        with pytest.raises(InvalidInputError, match="steps"):
            made(name, **{steps_of(name): "many"})
    if METHODS[name].private:
        with pytest.raises(InvalidInputError, match="epsilon"):
            made(name, epsilon=0)


@every_method
def test_a_clone_of_a_fitted_method_is_not_fitted(name):
    assert not hasattr(clone(fitted(name)), "network_")


@every_method
def test_settings_that_no_method_has_are_refused_by_name(name):
    with pytest.raises(TypeError, match="epsilom"):
        METHODS[name](epsilom=8.0)
    with pytest.raises(ValueError, match="epsilom"):
        made(name).set_params(epsilom=8.0)


BAD = {
    "epsilon": [0, -1, math.nan, math.inf, "8"],
    "delta": [0, -1, 1, 1 / NODES],
    "steps": [0, -1, 2.5, 10.0, "3"],
    "sample_rate": [0, 1.5],
    "max_grad_norm": [0, -1, "x", None, {"decoder.0": 1.0}],
    "clipping": ["none"],
    "optimizer": ["lion"],
    "averaged": [-0.5, 2, "x", math.nan],
    "momentum": [-0.1, 1, 2, "x", math.nan],
    "features": ["pca"],
    "feature_scale": [0, -1],
    "projection": [0],
    "project_above": [0],
    "centred": [1, "x"],
    "hidden_channels": [0, 2.5],
    "activation": ["nope"],
    "learning_rate": [0, -1],
    "seed": [-1, 0.5, "a"],
    "num_layers": [-1, 21, 1.0],
    "reading": ["x"],
    "smoothing_steps": [-1],
    "rounds": [-1, 1.5],
    "likeness": [-0.1, 1, math.nan],
    "teleport": [2],
    "conv": ["transformer"],
    "heads": [0],
    "attention": ["x"],
    "sender_cap": [0, None, 1.0],
    "receiver_cap": [0, 2.5],
    "delivery": [0, 1.5, math.nan],
    "unit": ["graph"],
    "relation": ["x", "remove"],
    "public_degree": [3],
    "sampler": ["x"],
    "encoder_layers": [-1],
    "decoder_layers": [-1],
    "dropout": [-1, 1.5],
    "weight_decay": [-1],
    "paper": [],  # see test_paper_mode.py
    "messages": ["x"],
    "weighting": ["x"],
    "similarity": ["x"],
    "hops": [0, 2.5],
    "combine": ["x"],
    "capping": ["x"],
    "public_edges": [0, 1.5],
    "similar": [0, 1.5],
    "damping": [-1, math.inf],
    "encoder_share": [0, 2, 0.5],  # there is no encoder to pay for by default
    "attention_share": [0, 2, 0.5],
    "aggregation_share": [0, 2, 1.0],
    "open_steps": [0, 2.5],
    "head_steps": [0, 1.5, "x"],
    "open_batch": [0, 1.5, "x"],
    "epochs": [0, 1.5, "x"],
    "halved": [1, "x"],
    "attention_noise": [0, -1, "x", 1.0],
    "claimed_delta": [0, 1, "x", 1e-5],
    "open_learning_rate": [0],
    "folds": [1, 2.5],
    "variant": ["x", "em2", 0],
    "structure_share": [-0.1, 1.0, math.nan, "x"],
    "rows": [0, 46, 2.5, 10.0],  # there are 45 training nodes
    "neighbours": [0, NODES + 1, 2.5],
    "row_bound": [0, 1.5, math.nan],
    "own_weight": [-0.1, 1],
    "train_on": ["all"],
    "steps_epsilon": [0, 1.0],  # two budgets are the paper's
    "column_cap": [0, 2.5],
    "ranking": ["x"],
    "ranking_teleport": [0, 1],
    "rho": [0, 1],
    "graph_rate": [0, 1.5],
    "student": [],
    "splits": [0, NODES + 1, 2.5],
    "clip_by": ["x"],
    "members": [0, 2.5],
    "fresh_groups": [0, 2.5],
    "claimed_noise": [],  # see test_graph_split.py
    "decay": [0, 1.5],
    "pool": ["median"],
    "norm": ["batch"],
    "head_layers": [0, 1.0],
    "head_channels": [0, 2.5],
    "normalisation": ["x"],
    "scale": [0, math.nan],
    "degree": [1],
    "geometry": ["yes"],
    "loss": ["hinge", "binary"],  # there are three classes
    "class_weights": ["counted", [1.0], [1.0, -1.0, 1.0], 3],
    "weights_share": [0, 1.0],
    "norm_first": [1],
    "noise_multiplier": [0, math.nan, 1.0],  # 1.0: without paper=True
    "noise_times_bound": [1, False],
    "max_steps": [0, 2.5],
    "batch_size": [0, 2.5],
    "clip_factor": [0, -1, math.nan, 2.0],  # without the paper's mode
    "noise_ratio": [0, -1, math.nan, 2.0],
    "cycles": [-1, 0.5],
    "keep": ["x"],
    "hash_columns": [0, 2.5],
    "huber": [0, 1.5, "x"],
    "scorer": ["cosine"],
    "popularity": [1, "x"],
    "prior": [-1, math.nan],
    "links_kept": [0, 2.5],
    "links_in": [0, 2.5, 3],  # 3: targets are public, and nobody counts who names them
    "negatives": [0, 2.5],
}
# What is bad for others, and here stands for a choice.
FINE = {
    ("graph-dpsgd", "max_grad_norm"): [None],
    ("gap", "max_grad_norm"): [None],  # then a rule decides
    ("gap", "encoder_share"): [0.5],  # beliefs come from an encoder
    ("gap", "sender_cap"): [None],
    ("gnn", "sender_cap"): [None],
}


@every_method
def test_every_setting_is_checked_by_the_plan_before_anything_is_spent(name):
    """A new setting needs a line in BAD. The message has the value, the rule and the way out."""
    for setting in inspect.signature(METHODS[name]).parameters:
        for value in [each for each in BAD[setting] if each not in FINE.get((name, setting), [])]:
            with pytest.raises(GraphveilError) as refusal:
                made(name, **{setting: value}).plan(FACTS[name])
            message = str(refusal.value)
            assert "\n" not in message
            assert message.endswith(".")
            assert "must" in message or ";" in message, message


# --- plan -----------------------------------------------------------------------------------------


@every_method
def test_a_plan_needs_facts_alone_and_comes_out_the_same_twice(name):
    method = made(name)
    before = copy.deepcopy(vars(method))
    torch.manual_seed(1)
    stream = torch.get_rng_state()
    plan = method.plan(FACTS[name])
    assert vars(method) == before
    assert torch.equal(torch.get_rng_state(), stream)
    torch.manual_seed(2)
    assert made(name).plan(FACTS[name]) == plan
    assert plan.method == name


@every_method
def test_the_certificate_is_the_plans(name):
    method = fitted(name)
    plan = made(name).plan(FACTS[name])
    assert method.plan_ == plan
    assert method.certificate_ == plan.certificate()
    assert method.certificate_.guarantee.epsilon == plan.epsilon


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_a_private_method_spends_what_was_asked_for_and_not_more(name, epsilon):
    spent = made(name, epsilon=epsilon).fit(DATA[name]).certificate_.guarantee
    assert 0.98 * epsilon < spent.epsilon <= epsilon
    assert spent.delta < 1 / NODES


@pytest.mark.parametrize("name", OPEN)
def test_an_open_baseline_promises_nothing(name):
    assert math.isinf(fitted(name).certificate_.guarantee.epsilon)


@every_method
def test_a_certificate_survives_json(name):
    certificate = fitted(name).certificate_
    assert Certificate.from_json(certificate.to_json()) == certificate
    assert str(certificate)


@pytest.mark.parametrize("name", PRIVATE)
def test_a_plan_costs_less_noise_for_more_epsilon(name):
    noise = [
        made(name, epsilon=e).plan(FACTS[name]).details["noise_multiplier"] for e in (0.5, 8.0)
    ]
    assert noise[0] > noise[1]


# --- fit ------------------------------------------------------------------------------------------


@every_method
def test_fit_returns_the_method_and_what_it_learned_ends_in_an_underscore(name):
    method = made(name)
    settings = set(method.get_params())
    assert method.fit(DATA[name]) is method
    learned = set(vars(method)) - settings
    assert {"plan_", "certificate_", "network_", "charges_"} <= learned
    assert all(word.endswith("_") for word in learned)
    assert method.get_params() == made(name).get_params()


@every_method_with_steps
def test_fitting_takes_progress(name):
    seen = []

    def progress(steps):
        for step in steps:
            seen.append(step)
            yield step

    made(name).fit(DATA[name], progress=progress)
    trained = 2 if name == "gap" else 1  # a classifier of rows, and the head
    assert seen == trained * list(range(getattr(made(name), steps_of(name))))


@every_method
def test_no_private_data_stays_on_a_fitted_method(name):
    method = made(name).fit(DATA[name])
    method.predict_proba(DATA[name])
    released = [*method.network_.state_dict().values(), getattr(method, "cache_", None)]
    released = {value.data_ptr() for value in released if value is not None}
    for path, value in reachable(method, "method"):
        assert not isinstance(value, (np.ndarray, Data)), path
        if isinstance(value, torch.Tensor):
            assert value.data_ptr() in released, path
        if isinstance(value, (list, tuple, dict, set, str, bytes)):
            assert len(value) < NODES or isinstance(value, str), path
    if name in PRIVATE:
        assert all(p.grad is None for p in method.network_.parameters())


def reachable(root, path):
    """Everything that hangs on an object, with the way to it."""
    todo, met = [(path, root)], set()
    while todo:
        path, value = todo.pop()
        if id(value) in met or isinstance(value, type) or inspect.ismodule(value):
            continue
        met.add(id(value))
        yield path, value
        if isinstance(value, torch.Tensor):
            continue
        if isinstance(value, dict) or hasattr(value, "items"):
            todo += [(f"{path}[{key!r}]", item) for key, item in value.items()]
        elif isinstance(value, (list, tuple, set, frozenset)):
            todo += [(f"{path}[{place}]", item) for place, item in enumerate(value)]
        if inspect.isfunction(value):
            cells = value.__closure__ or ()
            todo += [(f"{path}.closure", cell.cell_contents) for cell in cells]
        elif hasattr(value, "__dict__"):
            todo += [(f"{path}.{key}", item) for key, item in vars(value).items()]
        if inspect.ismethod(value):
            todo.append((f"{path}.self", value.__self__))


def test_the_search_for_private_data_finds_what_is_hidden():
    method = made("mlp").fit(DATA["mlp"])
    kept = DATA["mlp"].x[:2]
    method.network_.register_forward_hook(lambda *_: kept)
    assert any(value is kept for _, value in reachable(method, "method"))


@every_method_with_steps
def test_another_seed_gives_other_weights(name):
    method = made(name, seed=1).fit(DATA[name])
    first = weights(method)
    assert not torch.equal(weights(method.set_params(seed=2).fit(DATA[name])), first)


@pytest.mark.parametrize("name", PRIVATE)
def test_noise_is_not_seeded(name):
    assert not torch.equal(weights(made(name).fit(DATA[name])), weights(made(name).fit(DATA[name])))


@pytest.mark.parametrize("name", OPEN)
def test_an_open_baseline_can_be_repeated(name):
    torch.manual_seed(1)
    first = weights(made(name).fit(DATA[name]))
    torch.manual_seed(2)
    assert torch.equal(weights(made(name).fit(DATA[name])), first)


@every_method_with_steps
def test_a_fit_cut_short_leaves_nothing_of_an_earlier_one(name):
    method = made(name).fit(DATA[name])

    def progress(steps):
        yield next(iter(steps))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        method.fit(data_for(name, 3), progress=progress)
    with pytest.raises(InvalidInputError, match="has not been fitted"):
        method.predict_proba(DATA[name])


@every_classifier
def test_data_that_is_refused_leaves_an_earlier_fit_alone(name):
    method = made(name).fit(DATA[name])
    before = weights(method)
    with pytest.raises(InvalidInputError):
        method.fit(changed(DATA[name], y=None))
    assert torch.equal(weights(method), before)
    method.predict(DATA[name])


@every_method
def test_data_is_not_modified(name):
    data = data_for(name, 2)
    before = copy.deepcopy(data.to_dict())
    method = made(name).fit(data)
    method.predict_proba(data)
    method.score(data)
    assert set(before) == set(data.keys())
    for key, value in before.items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(data[key])), key


# --- prediction -----------------------------------------------------------------------------------


@every_classifier
@pytest.mark.parametrize("mode", ["visible", "disjoint"])
def test_predictions_are_probabilities_of_every_class_for_every_node(name, mode):
    method, other = fitted(name), data_for(name, 5, 31)
    found = method.predict_proba(other, mode=mode)
    assert found.shape == (31, CLASSES)
    assert (found >= 0).all()
    torch.testing.assert_close(found.sum(1), torch.ones(31))
    assert not found.requires_grad
    assert torch.equal(method.predict(other, mode=mode), found.argmax(1))
    assert torch.equal(method.predict_proba(other, mode=mode), found)


@every_classifier
def test_a_score_is_the_share_of_right_answers_on_a_mask(name):
    method = fitted(name)
    right = method.predict(DATA[name]) == DATA[name].y
    assert method.score(DATA[name]) == pytest.approx(
        right[DATA[name].test_mask].float().mean().item()
    )
    found = method.score(DATA[name], mask="val_mask")
    assert found == pytest.approx(right[DATA[name].val_mask].float().mean().item())


@every_classifier
def test_a_score_on_a_disjoint_test_graph_needs_nobody_to_train_on(name):
    _, testing = separate(split(DATA[name], seed=1))
    assert not testing.train_mask.any()
    method = fitted(name)
    right = method.predict(testing, mode="disjoint") == testing.y
    assert method.score(testing, mode="disjoint") == pytest.approx(right.float().mean().item())


@every_classifier
def test_a_score_leaves_out_unlabelled_nodes(name):
    y = torch.where(DATA[name].test_mask, -1, DATA[name].y)
    some = DATA[name].test_mask.nonzero()[0]
    y[some] = fitted(name).predict(DATA[name])[some]
    assert fitted(name).score(changed(DATA[name], y=y)) == 1


@every_classifier
def test_a_score_that_cannot_be_is_refused(name):
    for data, mask in [
        (DATA[name], "no_mask"),
        (changed(DATA[name], y=None), "test_mask"),
        (changed(DATA[name], test_mask=torch.zeros(NODES, dtype=torch.bool)), "test_mask"),
    ]:
        with pytest.raises(InvalidInputError):
            fitted(name).score(data, mask=mask)


@every_method
def test_predictions_need_no_labels_and_no_masks(name):
    plain = changed(DATA[name], y=None, train_mask=None, val_mask=None, test_mask=None)
    assert torch.equal(fitted(name).predict_proba(plain), fitted(name).predict_proba(DATA[name]))


@every_method
def test_predictions_that_cannot_be_are_refused(name):
    with pytest.raises(InvalidInputError, match="has not been fitted"):
        made(name).predict_proba(DATA[name])
    method = fitted(name)
    with pytest.raises(InvalidInputError, match="columns"):
        method.predict_proba(changed(DATA[name], x=DATA[name].x[:, :3]))
    with pytest.raises(InvalidInputError, match="mode"):
        method.predict_proba(DATA[name], mode="quiet")
    with pytest.raises(InvalidInputError, match="epsilon" if "noisy" in method.modes else "mode"):
        method.predict_proba(DATA[name], mode="noisy")
    with pytest.raises(InvalidInputError, match="epsilon"):
        method.predict_proba(DATA[name], epsilon=1.0)
    with pytest.raises(InvalidInputError):
        method.predict_proba(DATA[name], mode="noisy", epsilon=-1.0)


@pytest.mark.parametrize("name", ["dp-mlp", "graph-dpsgd", *OPEN])
def test_there_is_no_noisy_mode_without_a_promise_or_without_neighbours(name):
    with pytest.raises(InvalidInputError, match="noisy"):
        fitted(name).predict_proba(DATA[name], mode="noisy", epsilon=1.0)


@pytest.mark.parametrize("name", PRIVATE)
def test_every_mode_of_prediction_has_its_line_on_the_certificate(name):
    method = made(name).fit(DATA[name])
    epsilon = method.certificate_.guarantee.epsilon
    assert [line.split(":")[0] for line in method.certificate_.inference] == [method.modes[0]]
    for _ in range(2):
        method.predict_proba(DATA[name], mode="disjoint")
        method.predict_proba(DATA[name])
    lines = [method.modes[0], "disjoint"]
    assert method.certificate_.guarantee.epsilon == epsilon
    if name not in ("dp-mlp", "graph-dpsgd", "dp-link", "dp-popularity"):
        for _ in range(2):
            method.predict_proba(DATA[name], mode="noisy", epsilon=1.0)
        lines.append("noisy")
        assert "own node only" in method.certificate_.released_to
    assert [line.split(":")[0] for line in method.certificate_.inference] == lines


# --- data -----------------------------------------------------------------------------------------

NO_MASK = torch.zeros(NODES, dtype=torch.bool)
REFUSED = {
    "not a graph": lambda data: {"x": data.x},
    "no features": lambda data: changed(data, x=None),
    "whole-number features": lambda data: changed(data, x=data.x.long()),
    "NaN features": lambda data: changed(data, x=data.x.clone().fill_diagonal_(math.nan)),
    "no edges given": lambda data: changed(data, edge_index=None),
    "float edges": lambda data: changed(data, edge_index=data.edge_index.float()),
    "an edge to an absent node": lambda data: changed(
        data, edge_index=torch.tensor([[0], [len(data.x)]])
    ),
    "no labels": lambda data: changed(data, y=None),
    "float labels": lambda data: changed(data, y=data.y.float()),
    "an unlabelled training node": lambda data: changed(data, y=torch.full((NODES,), -1)),
    "one class": lambda data: changed(data, y=torch.zeros(NODES, dtype=torch.long)),
    "a label beyond the classes": lambda data: changed(data, num_classes=2),
    "a missing mask": lambda data: changed(data, val_mask=None),
    "a mask of numbers": lambda data: changed(data, train_mask=data.train_mask.long()),
    "masks that overlap": lambda data: changed(data, test_mask=data.train_mask),
    "nobody to train on": lambda data: changed(data, train_mask=NO_MASK),
}


@every_classifier
@pytest.mark.parametrize("why", REFUSED)
def test_data_unfit_to_train_on_is_refused_in_one_line(name, why):
    with pytest.raises(InvalidInputError) as refusal:
        made(name).fit(REFUSED[why](DATA[name]))
    said = str(refusal.value)
    assert "must be" in said
    assert "Got" in said
    assert ";" in said
    assert "\n" not in said


def odd_data(name):
    data = DATA[name]
    loops = torch.arange(len(data.x)).repeat(2, 1)
    rare = torch.where(data.train_mask, data.y.clamp(max=1), data.y)
    isolated = data.edge_index[:, (data.edge_index < len(data.x) // 2).all(0)]
    one_way = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
    first = torch.arange(len(data.x)).unsqueeze(1) % CLASSES == 0
    return {
        "isolated nodes": changed(data, edge_index=isolated),
        "self-loops": changed(data, edge_index=torch.cat([data.edge_index, loops], 1)),
        "repeated edges": changed(data, edge_index=data.edge_index.repeat(1, 2)),
        "directed": changed(data, edge_index=one_way),
        "no edges": changed(data, edge_index=torch.empty(2, 0, dtype=torch.long)),
        "an absent class": changed(data, y=rare),
        "more classes than labels": changed(data, num_classes=7),
        "zero rows": changed(data, x=torch.where(first, 0.0, data.x)),
        "double precision": changed(data, x=data.x.double()),
        "nobody to validate on": changed(data, val_mask=NO_MASK),
    }


@every_classifier
def test_odd_data_is_trained_on_and_predicted(name):
    for why, data in odd_data(name).items():
        found = made(name).fit(data).predict_proba(data)
        assert found.shape == (NODES, 7 if "more" in why else CLASSES), why
        assert torch.isfinite(found).all(), why


@every_classifier
def test_self_loops_and_repeated_edges_change_nothing(name):
    odd, method = odd_data(name), fitted(name)
    for why in ("self-loops", "repeated edges"):
        assert Facts.of(odd[why]) == FACTS[name]
        torch.testing.assert_close(method.predict_proba(odd[why]), method.predict_proba(DATA[name]))


def test_wide_features_are_projected_without_looking_at_them():
    data = graph(features=1100)
    method = made("dp-mlp", project_above=1024, projection=16).fit(data)
    assert next(method.network_.parameters()).shape[1] == 16
    shuffled = changed(data, x=data.x.flip(0))
    torch.testing.assert_close(
        method.predict_proba(shuffled), method.predict_proba(data).flip(0), rtol=1e-4, atol=1e-5
    )


@every_method_for_nodes
def test_features_are_prepared_row_by_row(name):
    """One row changed changes one row: no mean, no variance, no vocabulary of the whole graph."""
    for how in ("power", "row", "raw"):
        method = made(name, features=how)
        other = DATA[name].x.clone()
        other[3] = 100.0
        changed_x = changed(DATA[name], x=other)
        differs = (method.prepare(DATA[name]) != method.prepare(changed_x)).any(1)
        assert differs.nonzero().flatten().tolist() == [3]


def test_the_facts_of_a_graph_are_what_is_public_of_it():
    data, facts = DATA["mlp"], FACTS["mlp"]
    assert dataclasses.asdict(facts) == {
        "num_nodes": NODES,
        "num_features": 5,
        "num_classes": CLASSES,
        "num_train": 45,
        "directed": False,
        "record": "node",
        "task": "multiclass",
        "value_range": None,
        "target_features": None,
        "num_owners": None,
        "train_rows": None,
        "owner_rows": None,
    }
    assert Facts.of(graph(directed=True)).directed
    assert Facts.of(changed(graph(directed=True), directed=None)).directed is None
    stranger = changed(
        graph(seed=9), train_mask=data.train_mask, val_mask=NO_MASK, test_mask=NO_MASK
    )
    assert Facts.of(stranger) == facts
    assert FACTS["graph-gnn"] == dataclasses.replace(facts, record="graph")


def test_networks_are_modules_that_torch_can_save(tmp_path):
    data = DATA["late-graph"]
    method = made("late-graph").fit(data)
    torch.save(method.network_.state_dict(), tmp_path / "weights.pt")
    other = made("late-graph", seed=4).fit(split(data, seed=4))
    other.network_.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    torch.testing.assert_close(other.predict_proba(data), method.predict_proba(data))
    assert isinstance(method.network_, nn.Module)
