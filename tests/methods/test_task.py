"""Figures of classification: by hand, by sklearn, and where they mean nothing."""

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, multilabel_confusion_matrix, roc_auc_score
from torch_geometric.data import Data

from graphveil.methods.task import METRICS, Classification


def drawn(classes, records=200, seed=0):
    rng = np.random.default_rng(seed)
    y = torch.from_numpy(rng.integers(0, classes, records))
    chances = torch.from_numpy(rng.random((records, classes)))
    chances[torch.arange(records), y] += 0.3
    return chances / chances.sum(1, keepdim=True), y


def test_two_classes_are_about_class_one():
    y = torch.tensor([1, 1, 1, 0, 0])
    chances = torch.tensor([[0.2, 0.8], [0.6, 0.4], [0.3, 0.7], [0.9, 0.1], [0.4, 0.6]])
    figures = Classification(num_classes=2).measure(chances, y)
    assert figures["sensitivity"] == pytest.approx(2 / 3)
    assert figures["specificity"] == pytest.approx(1 / 2)
    assert figures["f1"] == pytest.approx(2 / 3)
    assert figures["roc_auc"] == pytest.approx(5 / 6)


@pytest.mark.parametrize("classes", [3, 7])
def test_several_classes_are_each_against_the_rest(classes):
    chances, y = drawn(classes)
    figures = Classification(num_classes=classes).measure(chances, y)
    assert set(figures) == set(METRICS)
    tables = multilabel_confusion_matrix(y, chances.argmax(1))
    tn, fp, fn, tp = tables.reshape(-1, 4).T
    assert figures["sensitivity"] == pytest.approx(np.mean(tp / (tp + fn)))
    assert figures["specificity"] == pytest.approx(np.mean(tn / (tn + fp)))
    hits = np.eye(classes)[y]
    assert figures["micro_auc"] == pytest.approx(roc_auc_score(hits, chances, average="micro"))
    assert figures["roc_auc"] == pytest.approx(roc_auc_score(hits, chances, average="macro"))
    assert figures["f1"] == figures["micro_f1"] == figures["accuracy"]


def test_classes_without_a_record_are_left_out():
    task = Classification(num_classes=3)
    chances = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]])
    figures = task.measure(chances, torch.tensor([0, 1, 1]))
    assert figures["sensitivity"] == pytest.approx(3 / 4)  # of classes 0 (1) and 1 (1/2)
    assert figures["specificity"] == pytest.approx((1 + 1 + 2 / 3) / 3)
    assert figures["roc_auc"] is None
    assert figures["micro_auc"] is not None
    alone = task.measure(chances, torch.zeros(3, dtype=torch.long))
    assert alone["sensitivity"] == pytest.approx(1 / 3)
    assert task.measure(chances[:0], torch.empty(0, dtype=torch.long)) == dict.fromkeys(METRICS)
    lost = task.measure(chances * float("nan"), torch.tensor([0, 1, 2]))
    assert (lost["roc_auc"], lost["micro_auc"]) == (None, None)


def test_confusion_counts_test_records_by_class_and_decision():
    chances, y = drawn(4)
    y[::9] = -1
    data = Data(y=y, test_mask=torch.arange(200) % 2 == 0)
    measured = Classification(num_classes=4).measure_test(chances, data, "node")
    kept = data.test_mask & (y >= 0)
    table = measured["confusion"]
    assert table == confusion_matrix(y[kept], chances.argmax(1)[kept]).tolist()
    assert [sum(row) for row in table] == measured["class_count"]
    many = Classification(num_classes=101)
    chances, y = drawn(101)
    data = Data(y=y, test_mask=torch.ones(200, dtype=torch.bool))
    assert many.measure_test(chances, data, "node")["confusion"] is None
