"""The recipes of Daigavane et al.: Table 6 as printed, planned on the sizes of the data."""

import math

import pytest

from graphveil.methods import Facts
from graphveil.methods.recipes import recipes

FACTS = {
    "ogbn-arxiv:undirected": Facts(
        num_nodes=169_343, num_features=128, num_classes=40, num_train=90_941, directed=False
    ),
    "ogbn-products": Facts(
        num_nodes=2_449_029, num_features=100, num_classes=47, num_train=196_615, directed=False
    ),
    "ogbn-mag:undirected": Facts(
        num_nodes=736_389, num_features=128, num_classes=349, num_train=629_571, directed=False
    ),
}
RECIPES = {name: recipe for name, recipe in recipes().items() if name.startswith("daigavane-")}
# Learning rate, batch, activation, encoder and decoder layers, lambda, C_f, K.
TABLE_6 = {
    "arxiv-adam": (0.003, 10_000, "tanh", 1, 2, 1.0, 1.0, 7),
    "products-adam": (0.003, 10_000, "relu", 1, 1, 0.8, 1.0, 10),
    "mag-adam": (0.001, 4096, "tanh", 1, 2, 1.0, 4.0, 5),
    "arxiv-sgd": (1.0, 10_000, "tanh", 1, 1, 1.0, 1.0, 7),
    "products-sgd": (1.0, 10_000, "relu", 1, 1, 0.8, 1.0, 10),
    "mag-sgd": (1.0, 10_000, "relu", 1, 2, 1.0, 1.0, 5),
}
OPEN = {
    "gcn-arxiv": (0.001, 1000, "relu", 2, 1, 10),
    "gcn-products": (0.001, 1000, "relu", 2, 1, 10),
    "gcn-mag": (0.001, 5000, "relu", 1, 1, 5),
}
PERCEPTRONS = {
    "mlp-arxiv": (0.001, 1000, "relu", 2 + 1, None),
    "mlp-products": (0.001, 1000, "relu", 1 + 2, None),
    "mlp-mag": (0.01, 1000, "tanh", 2 + 2, None),
    "dp-mlp-arxiv": (0.003, 10_000, "tanh", 1 + 2, 1.0),
    "dp-mlp-products": (0.002, 10_000, "relu", 1 + 2, 0.8),
    "dp-mlp-mag": (0.001, 10_000, "relu", 2 + 2, 1.0),
}


@pytest.mark.parametrize("name", TABLE_6)
def test_dp_gnn_has_the_settings_of_table_6(name):
    made = RECIPES[f"daigavane-{name}"].make()
    assert TABLE_6[name] == (
        made.learning_rate,
        made.batch_size,
        made.activation,
        made.encoder_layers,
        made.decoder_layers,
        made.noise_ratio,
        made.clip_factor,
        made.sender_cap,
    )
    assert (made.paper, made.sampler, made.features, made.averaged) == (True, "released", "raw", 0)
    assert made.optimizer == name.partition("-")[2]
    assert made.momentum == 0 or made.optimizer == "adam"


@pytest.mark.parametrize("name", OPEN)
def test_the_open_gcn_has_the_settings_of_table_6(name):
    made = RECIPES[f"daigavane-{name}"].make()
    assert OPEN[name] == (
        made.learning_rate,
        made.batch_size,
        made.activation,
        made.encoder_layers,
        made.decoder_layers,
        made.sender_cap,
    )
    assert (made.num_layers, made.normalisation) == (1, "inverse-degree")


@pytest.mark.parametrize("name", PERCEPTRONS)
def test_perceptrons_have_the_settings_of_table_6(name):
    recipe = RECIPES[f"daigavane-{name}"]
    made, facts = recipe.make(), FACTS[recipe.data]
    rate, batch, activation, layers, noise = PERCEPTRONS[name]
    assert (made.learning_rate, made.activation, made.num_layers) == (rate, activation, layers)
    if noise is None:
        assert made.batch_size == batch
    else:
        assert made.sample_rate * facts.num_train == pytest.approx(batch, rel=1e-3)
        multiplier = made.plan(facts).details["noise_multiplier"]
        assert multiplier == pytest.approx(noise, rel=0.03)


@pytest.mark.parametrize("name", [name for name in RECIPES if "mlp" not in name])
def test_the_networks_plan_on_the_sizes_of_their_data(name):
    recipe = RECIPES[name]
    plan = recipe.make().plan(FACTS[recipe.data])
    if recipe.method == "gnn":
        assert plan.claim is None
        return
    assert 29.8 < plan.claim.epsilon <= 30  # until the budget is spent
    assert plan.details["steps"] < recipe.settings["steps"]
    assert math.isinf(plan.epsilon)
    assert "thresholds" in plan.void_because[0]


def test_thresholds_by_hand_make_the_recipe_provable():
    recipe = RECIPES["daigavane-arxiv-adam"]
    layers = ("encoder.linears.0", "convs.0.lin", "decoder.linears.0", "decoder.linears.1")
    plan = recipe.make(max_grad_norm=dict.fromkeys(layers, 1.0)).plan(FACTS[recipe.data])
    assert plan.claim.epsilon < 30 < plan.epsilon < 70
    assert not plan.void_because


def test_every_recipe_says_what_differs_and_where_it_stands():
    assert len(RECIPES) == 19
    for recipe in RECIPES.values():
        assert "Table" in recipe.source
        assert recipe.differs
        assert recipe.data in FACTS
        assert all(sentence.endswith(".") for sentence in recipe.differs)
