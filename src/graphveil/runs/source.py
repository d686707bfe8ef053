"""Where a run's data comes from, and how it is split."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.data.catalog import CATALOG, load, sizes_of
from graphveil.data.class_list import Notice
from graphveil.data.schema import Schema, as_schema
from graphveil.graph.shares import SHARES, check_fractions, part_ends, thinned_size
from graphveil.methods.plan import Facts

if TYPE_CHECKING:
    from torch_geometric.data import Data

SPLITS = ("transductive", "inductive", "given")
MEMORY = "(in memory)"  # where the data of a method was that was fitted by hand
EDGES = "edges"  # of a graph, taken for links
THINNED = ("keep", "remove")  # what becomes of training records that train_share leaves out


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a run's graph comes from, and who in it is trained on.

    ``split`` is ``transductive`` (one graph, masks drawn by ``seed``), ``inductive`` (two graphs
    without an edge between them) or ``given`` (the masks that come with the data). None takes the
    masks of a file of one's own that has them, or of a data set that is defined by its split (see
    :attr:`graphveil.data.Entry.takes_own_split`), and else draws; ``inductive`` does so too.
    ``fractions`` are the shares of a drawn split: train, validation, test. They ask for one.

    ``train_share`` of the training records, drawn by ``seed``, are trained on. The others stay in
    the graph without a part in training (``thinned="keep"``), or are removed from it (``remove``);
    ``inductive`` has them in neither graph.
    ``min_class`` leaves out the records of classes with fewer labelled ones, see
    :func:`graphveil.graph.splits.leave_out_small_classes`: read off the labels, and declared
    public.

    With ``link`` the records are links: ``edges`` takes the edges of a graph for links between its
    nodes, any other name is a relation of tables of several types. A split is then of links, and
    ``inductive`` withholds whole sources.

    Of files of one's own, ``classes`` and ``directed`` state what is public of classes and edges,
    and ``schema`` (a Schema, or its path) what is of every column of tables; without it, the
    ``schema.toml`` beside them is taken: see :func:`graphveil.data.files.read`. Of tables of
    several types, ``people`` names those that are people, ``target`` the one whose label is
    predicted: see :mod:`graphveil.data.typed`.
    """

    data: str
    root: str | None = None
    split: str | None = None
    seed: int = 0
    train_share: float = 1.0
    classes: Any = None
    directed: bool | None = None
    fractions: tuple[float, float, float] | None = None
    min_class: int | None = None
    thinned: str = "keep"
    schema: Any = None
    people: Any = None
    target: str | None = None
    link: str | None = None

    def __post_init__(self) -> None:
        if self.classes is not None:
            from graphveil.data.class_list import parse_classes

            object.__setattr__(self, "classes", parse_classes(self.classes))
        if self.schema is not None and not isinstance(self.schema, str):
            object.__setattr__(self, "schema", _plain_schema(self.schema))
        if self.people is not None:
            names = [self.people] if isinstance(self.people, str) else self.people
            object.__setattr__(self, "people", [str(name) for name in names])
        if self.split is not None:
            _validate.choice("split", self.split, SPLITS)
        _validate.integer("seed", self.seed, "[0, 1e18]")
        _validate.number("train_share", self.train_share, "(0, 1]")
        _validate.choice("thinned", self.thinned, THINNED)
        if self.link is not None:
            self._check_link()
        if self.min_class is not None:
            _validate.integer("min_class", self.min_class, "[1, 1e9]")
        if self.fractions is not None:
            object.__setattr__(self, "fractions", check_fractions(self.fractions))
            if self.split == "given":
                raise InvalidInputError(
                    "The 'fractions' parameter must go with a split that is drawn. Got "
                    f"{self.fractions} with the split 'given' instead; leave one of them out."
                )

    def _check_link(self) -> None:
        """Refuse what links do not have: classes, and a share of records."""
        for name, usual in (("train_share", 1.0), ("classes", None), ("min_class", None)):
            if getattr(self, name) != usual:
                raise InvalidInputError(
                    f"The '{name}' parameter must be left out where links are learnt. Got "
                    f"{getattr(self, name)!r} with link={self.link!r} instead; thin links by "
                    "'fractions'."
                )

    @property
    def _shares(self) -> tuple[float, float, float]:
        """Of a drawn split: as stated, as the data set's paper has them, or as usual."""
        entry = CATALOG.get(self.data.partition(":")[0])
        usual = SHARES if entry is None or entry.shares is None else entry.shares
        return usual if self.fractions is None else self.fractions

    def load(self) -> Data:
        """The graph, not yet split."""
        if self.data == MEMORY:
            raise InvalidInputError(
                "The data of this run was in memory when it was trained, and is nowhere else; "
                "name the data, or train with graphveil.runs.Run on a file."
            )
        data = load(
            self.data,
            self.root,
            classes=self.classes,
            directed=self.directed,
            schema=self.schema,
            **self.typed,
        )
        if self.link == EDGES:
            from graphveil.graph.links import edges_as_links

            return edges_as_links(data)
        _check_roles(self.data, data)
        return data

    @property
    def typed(self) -> dict[str, Any]:
        """What is stated of tables of several types, as :func:`graphveil.data.load` takes it."""
        relation = None if self.link == EDGES else self.link
        return {"people": self.people, "target": self.target, "link": relation}

    def arrange(self, data: Data) -> Arranged:
        """Split a loaded graph into what is trained on and what is tested on."""
        from graphveil.graph.checks import MASKS, check
        from graphveil.graph.splits import draw_masks, leave_out_small_classes, separate, thin

        if "links" in data:
            return self._arrange_links(data)
        if self.min_class is not None:
            data = leave_out_small_classes(data, self.min_class)
        masks = [name for name in MASKS if name in data]
        own = bool(masks) and self.fractions is None and self._takes_own(len(masks))
        if own and self.split != "transductive" and len(masks) < len(MASKS):
            missing = next(name for name in MASKS if name not in masks)
            raise InvalidInputError(
                f"{self.data} must have all three masks or none. Got {masks[0]!r} without "
                f"{missing!r} instead; add it, or let the split transductive draw all three."
            )
        how = self.split or ("given" if own else "transductive")
        if how != "given" and not (own and how == "inductive"):
            data = draw_masks(data, self._shares, seed=self.seed)
        if self.train_share < 1 or how == "inductive":
            check(data)
        if self.train_share < 1:
            data = thin(data, self.train_share, self.seed, remove=self.thinned == "remove")
        if how == "inductive":
            training, testing = separate(data)
            return Arranged(training=training, testing=testing, mode="disjoint", split=how)
        return Arranged(training=data, testing=data, mode=None, split=how)

    def _arrange_links(self, data: Data) -> Arranged:
        """Withhold links: drawn one by one, with their sources, or as the data says."""
        from graphveil.graph.link_splits import split_links
        from graphveil.graph.links import LINK_MASKS

        own = all(name in data for name in (*LINK_MASKS, "train_mask"))
        how = self.split or ("given" if own and self.fractions is None else "transductive")
        if how == "given" and not own:
            raise InvalidInputError(
                f"{self.data} must have masks of its links to be split as given. Got none, or not "
                "all, instead; let the split transductive draw them."
            )
        if self.train_share < 1 or self.min_class is not None:
            raise InvalidInputError(
                "Links must be trained on without 'train_share' and 'min_class', which are about "
                f"labelled records. Got {self.train_share:g} and {self.min_class!r} instead; thin "
                "links by 'fractions'."
            )
        if how != "given":
            by = "source" if how == "inductive" else "random"
            data = split_links(data, self._shares, self.seed, by=by)
        return Arranged(training=data, testing=data, mode=None, split=how)

    def _takes_own(self, masks: int) -> bool:
        """Whether masks that the data has are taken where nobody says; says so where they are not.

        A data set of the catalog takes its own if it is defined by it.
        """
        sizes = sizes_of(self.data)
        if sizes is None or sizes.takes_own_split:
            return True
        if self.split is None:
            shares = ", ".join(f"{share:g}" for share in SHARES)
            warnings.warn(
                f"{self.data} brings a split of its own, and one of {shares} is drawn; "
                "--split given takes its own, --split transductive says that you want a drawn one",
                Notice,
                stacklevel=3,
            )
        return False

    def expected(self, known: Facts | None = None) -> Facts | None:
        """What is known before anything is loaded: from the catalog, or of the whole data.

        None for files of one's own of which nothing is known, with ``min_class``, and for a split
        that is not known before. Masks that come with files may train on another number than this.
        """
        known = known or cataloged_facts(self.data)
        if known is None or self.min_class is not None:
            return None
        if self.directed is not None:
            known = replace(known, directed=self.directed)
        if self.link is not None or known.record == "link":
            return self._expected_links(known)
        parts = self._parts(known.num_nodes)
        if parts is None:
            return None
        train, left = parts
        kept = train if self.train_share == 1 else thinned_size(train, self.train_share)
        records = left if self.split == "inductive" else known.num_nodes
        gone = self.thinned == "remove" or self.split == "inductive"
        removed = train - kept if gone else 0
        return replace(known, num_nodes=records - removed, num_train=max(1, kept))

    def _expected_links(self, known: Facts) -> Facts | None:
        """Of links, or of a graph whose edges are: its nodes are sources and targets."""
        of_links = known.record == "link"
        if known.record == "graph" or (self.split == "given" and not of_links):
            return None
        if of_links and self.split in (None, "given") and sizes_of(self.data) is None:
            return None
        trained = known.num_nodes
        if self.split == "inductive":
            trained = max(1, part_ends(known.num_nodes, self._shares)[0])
        if of_links:
            return replace(known, num_train=trained)
        return Facts(
            num_nodes=known.num_nodes,
            num_features=known.num_features,
            num_classes=known.num_nodes,
            num_train=trained,
            directed=known.directed,
            record="link",
            task="link",
        )

    def _parts(self, records: int) -> tuple[int, int] | None:
        """How many of the ``records`` are trained on, and with those to validate; None: unknown."""
        sizes = sizes_of(self.data)
        if self.fractions is None and sizes is not None and sizes.num_records == records:
            own = sizes.takes_own_split and self.split != "transductive"
            if own or (self.split == "given" and sizes.own_split):
                split = sizes.split
                return None if split is None else (split[0], split[0] + split[1])
        drawn, left, _ = part_ends(records, self._shares)
        return drawn, left


def schema_of(data: Data) -> Schema | None:
    """The schema by which ``data`` was read, if there was one."""
    content = getattr(data, "schema", None)
    return None if content is None else Schema.from_dict(content, "The 'schema' of the data")


def _check_roles(name: str, data: Data) -> None:
    """Refuse tables to train on without the label or the split that their schema names."""
    schema = schema_of(data)
    if schema is None or "links" in data:  # which have no label
        return
    label = None if schema.label is None or "y" in data else schema.label.names[0]
    split = None if "train_mask" in data else schema.split
    for column, role in ((label, "label"), (split, "split")):
        if column is not None:
            raise InvalidInputError(
                f"{name} must have the column {column!r} to train and test on, which its schema "
                f"calls the {role}. Got no such column instead; add it."
            )


def _plain_schema(schema: Any) -> str | dict[str, Any]:
    """A schema as settings.json has it: its path, or its content, checked."""
    if isinstance(schema, Path):
        return str(schema)
    content = as_schema(schema)
    assert content is not None
    return content.to_dict()


def cataloged_facts(data: str) -> Facts | None:
    """What the catalog says of a data set, with one training record; None if it does not say."""
    sizes = sizes_of(data)
    if sizes is None or None in (sizes.num_records, sizes.num_features, sizes.num_classes):
        return None
    if sizes.task == "regression" and sizes.value_range is None:
        return None
    return Facts(
        num_nodes=sizes.num_records or 0,
        num_features=sizes.num_features or 0,
        num_classes=sizes.num_classes or 0,
        num_train=1,
        directed=sizes.directed,
        record=sizes.record,
        task=sizes.task or "multiclass",
        value_range=sizes.value_range,
        target_features=sizes.target_features,
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
