"""Where a run's data comes from, and how it is split."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.data.catalog import CATALOG, load, sizes_of
from graphveil.graph.shares import part_ends
from graphveil.methods.plan import Facts

if TYPE_CHECKING:
    from torch_geometric.data import Data

SPLITS = ("transductive", "inductive", "given")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a run's graph comes from, and who in it is trained on.

    ``split`` is ``transductive`` (one graph, masks drawn by ``seed``), ``inductive`` (two graphs
    without an edge between them) or ``given`` (the masks that come with the data). None takes the
    masks of a file of one's own, or of a set of graphs, that has them, and else draws.
    ``inductive`` does so too.
    ``train_share`` of the training nodes, drawn by ``seed``, are trained on.

    Of files of one's own, ``classes`` and ``directed`` state what is public of classes and edges:
    see :func:`graphveil.data.files.read`.
    """

    data: str
    root: str | None = None
    split: str | None = None
    seed: int = 0
    train_share: float = 1.0
    classes: Any = None
    directed: bool | None = None

    def __post_init__(self) -> None:
        if self.classes is not None:
            from graphveil.data.class_list import parse_classes

            object.__setattr__(self, "classes", parse_classes(self.classes))
        if self.split is not None:
            _validate.choice("split", self.split, SPLITS)
        _validate.integer("seed", self.seed, "[0, 1e18]")
        _validate.number("train_share", self.train_share, "(0, 1]")

    def load(self) -> Data:
        """The graph, not yet split."""
        return load(self.data, self.root, classes=self.classes, directed=self.directed)

    def arrange(self, data: Data) -> Arranged:
        """Split a loaded graph into what is trained on and what is tested on."""
        from graphveil.graph.checks import MASKS, check, record_of
        from graphveil.graph.splits import draw_masks, separate, thin

        masks = [name for name in MASKS if name in data]
        known = self.data.partition(":")[0] in CATALOG
        own = bool(masks) and (not known or record_of(data) == "graph")
        if own and self.split != "transductive" and len(masks) < len(MASKS):
            missing = next(name for name in MASKS if name not in masks)
            raise InvalidInputError(
                f"{self.data} must have all three masks or none. Got {masks[0]!r} without "
                f"{missing!r} instead; add it, or let the split transductive draw all three."
            )
        how = self.split or ("given" if own else "transductive")
        if how != "given" and not (own and how == "inductive"):
            data = draw_masks(data, seed=self.seed)
        if self.train_share < 1 or how == "inductive":
            check(data)
        if self.train_share < 1:
            data = thin(data, self.train_share, self.seed)
        if how == "inductive":
            training, testing = separate(data)
            return Arranged(training=training, testing=testing, mode="disjoint", split=how)
        return Arranged(training=data, testing=data, mode=None, split=how)

    def expected(self, known: Facts | None = None) -> Facts | None:
        """What is known before anything is loaded: from the catalog, or of the whole data.

        None for files of one's own of which nothing is known. Masks that come with data may train
        on another number than this.
        """
        known = known or cataloged_facts(self.data)
        if known is None:
            return None
        if self.directed is not None:
            known = replace(known, directed=self.directed)
        records = known.num_nodes
        drawn, left, _ = part_ends(records)
        return replace(
            known,
            num_nodes=left if self.split == "inductive" else records,
            num_train=max(1, round(self.train_share * drawn)),
        )


def cataloged_facts(data: str) -> Facts | None:
    """What the catalog says of a data set, with one training record; None if it does not say."""
    sizes = sizes_of(data)
    if sizes is None or None in (sizes.num_records, sizes.num_features, sizes.num_classes):
        return None
    return Facts(
        num_nodes=sizes.num_records or 0,
        num_features=sizes.num_features or 0,
        num_classes=sizes.num_classes or 0,
        num_train=1,
        directed=sizes.directed,
        record=sizes.record,
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
