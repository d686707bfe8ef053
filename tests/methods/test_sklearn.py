"""scikit-learn: clones and pipelines work, and whoever fits many times is refused in a line."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from methods_cases import graph, made
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import BaggingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import (
    GridSearchCV,
    RandomizedSearchCV,
    cross_val_predict,
    cross_val_score,
    cross_validate,
    learning_curve,
)
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import check_is_fitted
from test_prediction_table import IDS, people

import graphveil
from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.methods import METHODS

ROWS, LABELS = np.ones((20, 2)), np.arange(20) % 2

REPEATED = {
    "cross_val_score": lambda method, x, y: cross_val_score(method, x, y, cv=2),
    "cross_val_score in parallel": lambda method, x, y: cross_val_score(
        method, x, y, cv=2, n_jobs=2
    ),
    "cross_validate": lambda method, x, y: cross_validate(method, x, y, cv=2),
    "cross_val_predict": lambda method, x, y: cross_val_predict(method, x, y, cv=2),
    "learning_curve": lambda method, x, y: learning_curve(method, x, y, cv=2),
    "GridSearchCV": lambda method, x, y: GridSearchCV(method, {}, cv=2, scoring="accuracy").fit(
        x, y
    ),
    "RandomizedSearchCV": lambda method, x, y: RandomizedSearchCV(
        method, {"seed": [1]}, n_iter=1, cv=2
    ).fit(x, y),
    "CalibratedClassifierCV": lambda method, x, y: CalibratedClassifierCV(method, cv=2).fit(x, y),
    "BaggingClassifier": lambda method, x, y: BaggingClassifier(method).fit(x, y),
}


def assert_points_to_tune(run):
    with pytest.raises(UnprovenError) as caught:
        run()
    message = str(caught.value)
    assert "\n" not in message
    assert "graphveil tune" in message
    assert "docs/sklearn.md" in message


@pytest.mark.parametrize("name", REPEATED)
def test_who_fits_many_times_is_refused_in_a_line(name):
    assert_points_to_tune(lambda: REPEATED[name](made("late-graph"), ROWS, LABELS))


@pytest.mark.parametrize("name", METHODS)
def test_no_method_is_cross_validated_on_its_graph(name):
    assert_points_to_tune(lambda: cross_val_score(made(name), graph(), cv=2))


def scale(tables):
    """By public ranges, row by row."""
    nodes, edges = tables
    return nodes.assign(age=nodes["age"].clip(0, 1) * 2 - 1, b=nodes["b"].clip(-4, 4) / 4), edges


def read(tables, classes):
    nodes, edges = tables
    return graphveil.load(nodes=nodes, edges=edges, classes=classes)


def pipeline(method):
    names = {"classes": ["well", "sick"]}
    steps = [
        ("scale", FunctionTransformer(scale)),
        ("read", FunctionTransformer(read, kw_args=names)),
        ("model", method),
    ]
    return Pipeline(steps)


def test_a_pipeline_is_not_cross_validated_either():
    model = pipeline(made("late-graph"))
    assert_points_to_tune(lambda: cross_val_score(model, people(), cv=2))
    assert_points_to_tune(lambda: GridSearchCV(model, {"model__seed": [1, 2]}, cv=2).fit(people()))


def test_a_pipeline_of_rows_fits_predicts_and_scores():
    tables = people()
    model = pipeline(made("late-graph"))
    assert model.fit(tables) is model
    data = read(scale(tables), ["well", "sick"])
    method = model[-1]
    assert torch.equal(model.predict_proba(tables), method.predict_proba(data))
    assert torch.equal(model.predict(tables), method.predict(data))
    assert model.score(tables) == method.score(data)
    assert model.classes_.tolist() == ["well", "sick"]
    table = method.predict_frame(model[:-1].transform(tables))
    assert table["id"].tolist() == IDS
    again = clone(model)
    assert not hasattr(again[-1], "network_")
    assert again[-1].get_params() == method.get_params()


def test_the_steps_before_read_each_row_by_itself():
    """What the page says of the example is true of it: a row in, the same row out."""
    (nodes, edges), row = people(), 17
    whole = scale((nodes, edges))[0].iloc[[row]].reset_index(drop=True)
    alone = scale((nodes.iloc[[row]].reset_index(drop=True), edges))[0]
    pd.testing.assert_frame_equal(whole, alone)


def test_labels_beside_the_data_are_refused():
    for function in (made("dp-mlp").fit, made("dp-mlp").fit(graph()).score):
        with pytest.raises(InvalidInputError, match="labels must stand in the data"):
            function(graph(), graph().y)


@pytest.mark.parametrize("name", METHODS)
def test_clones_have_the_settings_and_nothing_else(name):
    method = made(name, seed=7)
    other = clone(method)
    assert other is not method
    assert type(other) is type(method)
    assert (other.get_params(), vars(other)) == (method.get_params(), vars(method))
    other.set_params(seed=8)
    assert method.seed == 7


def test_whether_it_is_fitted_is_asked_as_of_others():
    method = made("dp-mlp")
    with pytest.raises(NotFittedError):
        check_is_fitted(method)
    check_is_fitted(method.fit(graph()))


def test_a_loop_of_ones_own_over_splits_is_ones_own_word():
    """What the page offers for public data."""
    scores = [
        clone(made("mlp")).fit(part).score(part)
        for part in (graphveil.split(graph(), seed=seed) for seed in range(2))
    ]
    assert all(0 <= score <= 1 for score in scores)


def test_the_pipeline_of_the_page_runs_as_it_stands():
    page = (Path(__file__).parents[2] / "docs" / "sklearn.md").read_text()
    section = page.partition("## A pipeline")[2]
    block = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    names = dict(zip(("nodes", "edges"), people(), strict=True))
    exec(block[1], names)
    table = names["table"]
    assert list(table) == ["id", "prediction", "probability_well", "probability_sick"]
    assert table["id"].tolist() == IDS
