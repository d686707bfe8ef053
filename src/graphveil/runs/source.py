"""Where a run's data comes from, how it is split, and how a fitted method does on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sklearn.metrics import f1_score
from torch_geometric.data import Data

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.data.catalog import CATALOG, load
from graphveil.graph.checks import MASKS, checked
from graphveil.graph.splits import separate, split, thinned
from graphveil.methods import Facts, Method

SPLITS = ("transductive", "inductive", "given")
OUTSIDE = "read off the labels of test nodes: outside the certificate, and a release if shown"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a run's graph comes from, and who in it is trained on.

    ``split`` is ``transductive`` (one graph, masks drawn by ``seed``), ``inductive`` (two graphs
    without an edge between them) or ``given`` (the masks that come with the data). None takes the
    masks of a file of one's own that has them, and else draws. ``inductive`` does so too.
    ``train_share`` of the training nodes, drawn by ``seed``, are trained on.
    """

    data: str
    root: str | None = None
    split: str | None = None
    seed: int = 0
    train_share: float = 1.0

    def __post_init__(self) -> None:
        if self.split is not None:
            _validate.choice("split", self.split, SPLITS)
        _validate.integer("seed", self.seed, "[0, 1e18]")
        _validate.number("train_share", self.train_share, "(0, 1]")

    def load(self) -> Data:
        """The graph, not yet split."""
        return load(self.data, self.root)

    def arrange(self, data: Data) -> Arranged:
        """Split a loaded graph into what is trained on and what is tested on."""
        masks = [name for name in MASKS if name in data]
        own = self.data.partition(":")[0] not in CATALOG and bool(masks)
        if own and self.split != "transductive" and len(masks) < len(MASKS):
            missing = next(name for name in MASKS if name not in masks)
            raise InvalidInputError(
                f"{self.data} must have all three masks or none. Got {masks[0]!r} without "
                f"{missing!r} instead; add it, or let the split transductive draw all three."
            )
        how = self.split or ("given" if own else "transductive")
        if how != "given" and not (own and how == "inductive"):
            data = split(data, seed=self.seed)
        checked(data)
        if self.train_share < 1:
            data = thinned(data, self.train_share, self.seed)
        if how == "inductive":
            training, testing = separate(data)
            return Arranged(training=training, testing=testing, mode="disjoint", split=how)
        return Arranged(training=data, testing=data, mode=None, split=how)

    def expected(self) -> Facts | None:
        """What the catalog knows before anything is loaded; None for one's own files."""
        entry = CATALOG.get(self.data.partition(":")[0])
        if entry is None or entry.num_nodes is None or entry.num_features is None:
            return None
        drawn = round(0.75 * entry.num_nodes)
        left = drawn + round(0.1 * entry.num_nodes)
        return Facts(
            num_nodes=left if self.split == "inductive" else entry.num_nodes,
            num_features=entry.num_features,
            num_classes=entry.num_classes,
            num_train=max(1, round(self.train_share * drawn)),
            directed=entry.directed,
        )


@dataclass(frozen=True, kw_only=True)
class Arranged:
    """A graph to train on, one to test on (perhaps the same), and the mode to predict in.

    None is what the method does by itself on the graph it was trained on.
    """

    training: Data
    testing: Data
    mode: str | None
    split: str


def measure(method: Method, testing: Data, mode: str | None) -> dict[str, Any]:
    """Accuracy and F1 on the test nodes, whole and by class.

    Micro F1 counts every node alike, and is the accuracy where a node has one class. Macro F1
    counts every class alike, those that neither stand in the labels nor are predicted left out.
    Reads labels: outside every certificate.
    """
    wanted = testing.test_mask & (testing.y >= 0)
    found, y = method.predict(testing, mode=mode)[wanted], testing.y[wanted]
    right = (found == y).double()
    classes = method.plan_.facts.num_classes
    count = torch.bincount(y, minlength=classes)
    hits = torch.bincount(y, weights=right, minlength=classes)
    by_class = [float(h / n) if n else None for h, n in zip(hits, count, strict=True)]
    return {
        "test_accuracy": float(right.mean()) if len(y) else None,
        "test_micro_f1": float(f1_score(y, found, average="micro")) if len(y) else None,
        "test_macro_f1": float(f1_score(y, found, average="macro")) if len(y) else None,
        "test_nodes": len(y),
        "class_accuracy": by_class,
        "class_count": count.tolist(),
        "note": OUTSIDE,
    }
