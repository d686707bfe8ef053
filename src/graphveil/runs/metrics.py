"""How a fitted method does on test records: figures read off labels, outside every certificate."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.metrics import f1_score, recall_score, roc_auc_score
from torch import Tensor
from torch_geometric.data import Data

from graphveil.methods import Method

METRICS = ("accuracy", "micro_f1", "macro_f1", "f1", "roc_auc", "sensitivity", "specificity")
OUTSIDE = "read off the labels of test nodes: outside the certificate, and a release if shown"


def measure(method: Method, testing: Data, mode: str | None) -> dict[str, Any]:
    """Every figure of :data:`METRICS` on the test records, as ``test_NAME``; accuracy by class.

    Micro F1 counts every record alike, and is the accuracy where one has one class. Macro F1
    counts every class alike, those that neither stand in the labels nor are predicted left out.
    ``f1``, ``sensitivity`` and ``specificity`` are those of class 1 where there are two classes;
    with more, ``f1`` is the micro one, and the others are None. ``roc_auc`` is the mean over
    the classes, each against the rest; None where one has no test record, or where weights
    have left the numbers. Reads labels: outside every certificate.
    """
    wanted = testing.test_mask & (testing.y >= 0)
    chances, y = method.predict_proba(testing, mode=mode)[wanted], testing.y[wanted]
    found, classes = chances.argmax(1), method.plan_.facts.num_classes
    count = torch.bincount(y, minlength=classes)
    hits = torch.bincount(y, weights=(found == y).double(), minlength=classes)
    return {
        **{f"test_{name}": value for name, value in scores(chances, y).items()},
        "test_nodes" if method.record == "node" else "test_graphs": len(y),
        "class_accuracy": [float(h / n) if n else None for h, n in zip(hits, count, strict=True)],
        "class_count": count.tolist(),
        "note": OUTSIDE.replace("nodes", f"{method.record}s"),
    }


def scores(chances: Tensor, y: Tensor) -> dict[str, float | None]:
    """Every figure of :data:`METRICS`; None where it means nothing."""
    result: dict[str, float | None] = dict.fromkeys(METRICS)
    if not len(y):
        return result
    true, found = y.numpy(), chances.argmax(1).numpy()
    classes = chances.shape[1]
    result["accuracy"] = float(np.mean(true == found))
    result["micro_f1"] = float(f1_score(true, found, average="micro"))
    result["macro_f1"] = float(f1_score(true, found, average="macro", zero_division=0.0))
    result["f1"] = result["micro_f1"]
    if classes == 2:
        result["f1"] = float(f1_score(true, found, zero_division=0.0))
        for name, which in (("sensitivity", 1), ("specificity", 0)):
            if (true == which).any():
                result[name] = float(recall_score(true, found, pos_label=which))
    if len(np.unique(true)) == classes and bool(chances.isfinite().all()):
        each = [roc_auc_score(true == c, chances[:, c].numpy()) for c in range(classes)]
        result["roc_auc"] = float(each[1] if classes == 2 else np.mean(each))
    return result
