"""The synthetic hospital: messy tables with a public schema, learnable, and the same every time."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import average_precision_score, r2_score

from graphveil._errors import InvalidInputError
from graphveil.data import available, load, sizes_of
from graphveil.data.class_list import Notice
from graphveil.data.files import _read_tables
from graphveil.data.hospital import DIAGNOSES, VARIANTS, WARDS, hospital, schema_of, tables, write
from graphveil.data.schema import Schema

TASKS = {
    "": "binary",
    "lab": "regression",
    "triage": "ordinal",
    "diagnoses": "multilabel",
    "ward": "multiclass",
}


@pytest.fixture(scope="module")
def graphs():
    return {variant: hospital("hospital", Path(), variant) for variant in VARIANTS}


def test_tables_are_as_messy_as_tables_are():
    nodes, edges = tables()
    assert len(nodes) == 5000
    assert nodes["patient_id"].is_unique
    assert nodes["patient_id"].str.fullmatch(r"P-\d{5}").all()
    assert nodes["postcode"].str.startswith("0").all()
    assert set(nodes["smoker"]) == {"yes", "no", "NA"}
    assert (nodes["age"] == "999").sum() > 0
    for name in ("crp", "creatinine", "haemoglobin", "sodium", "lactate"):
        assert 0.02 < (nodes[name] == "NA").mean() < 0.3
    assert (nodes["admitted"] == "").any()
    assert 0.02 < (nodes["died"] == "yes").mean() < 0.04
    assert set(edges["patient"]) | set(edges["contact"]) <= set(nodes["patient_id"])
    again, _ = tables()
    pd.testing.assert_frame_equal(nodes, again)
    assert not nodes.equals(tables(seed=1)[0])


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_has_its_task(graphs, variant):
    data, name = graphs[variant], "hospital" + (f":{variant}" if variant else "")
    assert data.task == TASKS[variant]
    assert (data.unit_name, data.directed) == ("patient", False)
    sizes = sizes_of(name)
    assert (sizes.num_records, sizes.num_features) == tuple(data.x.shape)
    assert sizes.num_classes == getattr(data, "num_classes", 1)  # one value
    assert (sizes.task, sizes.value_range) == (data.task, getattr(data, "value_range", None))
    assert Schema.from_dict(data.schema) == schema_of(variant)
    assert data.x.abs().max() <= 1
    if variant == "lab":
        low, high = data.value_range
        assert data.y.dtype == torch.float32
        assert low <= data.y.min() < data.y.max() <= high
    elif variant == "diagnoses":
        assert data.y.shape == (5000, len(DIAGNOSES))
        assert data.class_names == list(DIAGNOSES)
        assert (data.y.float().mean(0) > 0.02).all()
    else:
        shares = data.y.bincount() / 5000
        assert len(shares) == data.num_classes
        assert shares.min() > 0.02
    if variant == "triage":
        assert data.class_names == ["5", "4", "3", "2", "1"]
    if variant == "ward":
        assert data.class_names == list(WARDS)
        assert not any("ward" in column for column in data.columns)


@pytest.mark.parametrize("name", ["hospital", "hospital:triage", "hospital:ward"])
def test_the_catalog_knows_it(graphs, name):
    data = load(name)
    assert data.x.equal(graphs[name.partition(":")[2]].x)
    assert available(name)
    with pytest.raises(InvalidInputError, match="hospital:wards"):
        load("hospital:wards")


@pytest.mark.parametrize("variant", VARIANTS)
def test_its_tables_give_the_same_graph(graphs, variant, tmp_path):
    out = tmp_path / "ward"
    assert write("hospital" + (f":{variant}" if variant else ""), out) == (5000, len(tables()[1]))
    with pytest.warns(Notice, match="'age' "):
        data = _read_tables(out, None, False, Schema.read(out / "schema.toml"))
    other = graphs[variant]
    assert data.x.equal(other.x)
    assert data.y.equal(other.y)
    assert data.edge_index.equal(other.edge_index)
    assert (data.schema, data.columns) == (other.schema, other.columns)


def test_tables_are_written_over_by_force_alone(tmp_path):
    write("hospital", tmp_path / "a")
    with pytest.raises(InvalidInputError, match="--force"):
        write("hospital", tmp_path / "a")
    write("hospital:ward", tmp_path / "a", force=True)
    assert Schema.read(tmp_path / "a" / "schema.toml").label.column == "ward"
    (tmp_path / "a" / "mine.txt").write_text("mine")
    with pytest.raises(InvalidInputError, match="something else"):
        write("hospital", tmp_path / "a", force=True)
    assert (tmp_path / "a" / "mine.txt").read_text() == "mine"
    for name in ("social", "hospital:x"):
        with pytest.raises(InvalidInputError, match="hospital"):
            write(name, tmp_path / "b")


def rows_of(data):
    """A patient's own row, and that beside the mean of the contacts' rows; who is trained on."""
    x, count = data.x.numpy(), len(data.x)
    ones = np.ones(data.edge_index.shape[1])
    sums = sparse.csr_array((ones, data.edge_index.numpy()), shape=(count, count))
    means = (sums @ x) / np.maximum(sums.sum(axis=1), 1)[:, None]
    training = np.random.default_rng(0).random(count) < 0.75
    return x, np.hstack([x, means]), training


def test_a_linear_model_learns_and_contacts_help(graphs):
    """Own rows say more than nothing, contacts add to it, and much stays open."""
    own, both, training = rows_of(graphs[""])

    def rank(rows, y):
        model = LogisticRegression(max_iter=1000).fit(rows[training], y[training])
        return average_precision_score(y[~training], model.predict_proba(rows[~training])[:, 1])

    died = graphs[""].y.numpy()
    one, two = rank(own, died), rank(both, died)
    assert 0.08 < one < two - 0.02 < 0.6

    albumin = graphs["lab"].y.numpy()

    def explain(rows):
        model = Ridge().fit(rows[training], albumin[training])
        return r2_score(albumin[~training], model.predict(rows[~training]))

    assert 0.2 < explain(own) < explain(both) - 0.05 < 0.8

    for variant, gain in (("triage", 0.02), ("ward", 0.15)):
        own, both, training = rows_of(graphs[variant])
        y = graphs[variant].y.numpy()
        scores = []
        for rows in (own, both):
            model = LogisticRegression(max_iter=1000).fit(rows[training], y[training])
            scores.append(model.score(rows[~training], y[~training]))
        commonest = np.bincount(y).max() / len(y)
        assert commonest + 0.05 < scores[0] < scores[1] - gain < 0.85

    y = graphs["diagnoses"].y.numpy()
    ranked = [rank(rows_of(graphs["diagnoses"])[0], y[:, place]) for place in range(len(DIAGNOSES))]
    assert y.mean() + 0.1 < np.mean(ranked) < 0.8
