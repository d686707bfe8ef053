"""What is public of data, and what will be run on it: facts, and a plan made of parts.

A plan is a tuple of parts under one promise. `fit` runs the parts of that very plan; their events
are what it is charged. A plan is made without looking at data, is written to the run, and is read
back: whoever reads, predicts or reports never plans again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import dp_accounting as dpa

from graphveil import _validate, devices
from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.graph.influence import count_units
from graphveil.graph.link_influence import count_pairs
from graphveil.graph.public_lines import shorten
from graphveil.graph.targets import LINK, RECORDS, TASKS
from graphveil.methods import parts as _parts
from graphveil.methods.parts import Earlier, Part
from graphveil.privacy.events import composed, from_json
from graphveil.privacy.guarantee import Certificate, Charge, Claimed, certify
from graphveil.privacy.units import PEOPLE, PUBLIC

if TYPE_CHECKING:
    from torch_geometric.data import Data


OWN_ONLY = "anybody; each prediction to its own node only"
NOISY = (
    "noisy: neighbours' predictions reach a node only as a noisy sum, charged at every call; under "
    "the unit node each prediction is shown to its own node only"
)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is public of a graph, or of a set of them: all that a plan may depend on.

    ``num_nodes`` counts the records: nodes of one graph, or whole graphs if a ``record`` is one.
    ``directed`` says whether edges have a direction, None that nobody stated it; only the unit
    ``edge`` asks. ``task`` is one of :data:`graphveil.graph.targets.TASKS`; ``num_classes`` counts
    classes or labels, and is 1 of a regression, whose values lie in ``value_range``. Of a record
    "link" the records are sources, the classes are targets, and ``target_features`` are the columns
    of these, None where they are the sources themselves. How many links there are is no fact.

    Where records have owners, who are the units then, ``num_owners`` says how many there are,
    ``train_rows`` how many records are trained on, and ``owner_rows`` how many records an owner has
    at most, if a public rule says so. ``num_train`` counts the loss terms: owners who are trained
    on, or their records in a plan that charges for every one of them (:meth:`by_row`).
    """

    num_nodes: int
    num_features: int
    num_classes: int
    num_train: int
    directed: bool | None = None
    record: str = "node"
    task: str = "multiclass"
    value_range: tuple[float, float] | None = None
    target_features: int | None = None
    num_owners: int | None = None
    train_rows: int | None = None
    owner_rows: int | None = None

    def __post_init__(self) -> None:
        self._check_owners()
        _validate.integer("num_nodes", self.num_nodes, "[1, 1e12]")
        _validate.integer("num_features", self.num_features, "[1, 1e9]")
        _validate.choice("task", self.task, (LINK,) if self.record == "link" else TASKS)
        _validate.integer("num_classes", self.num_classes, _NUMBERS.get(self.task, "[2, 1e9]"))
        if self.task == "regression":
            object.__setattr__(self, "value_range", _check_range(self.value_range))
        _validate.integer("num_train", self.num_train, f"[1, {self.num_nodes}]")
        _validate.choice("record", self.record, tuple(RECORDS))
        if not (self.directed is None or isinstance(self.directed, bool)):
            raise InvalidInputError(
                f"The 'directed' parameter must be True, False or None. Got {self.directed!r} "
                "instead."
            )

    def _check_owners(self) -> None:
        if self.num_owners is None:
            if (self.train_rows, self.owner_rows) != (None, None):
                raise InvalidInputError(
                    "The 'train_rows' and 'owner_rows' must go with 'num_owners'. Got "
                    f"{self.train_rows!r} and {self.owner_rows!r} without it; leave them out."
                )
            return
        _validate.integer("num_owners", self.num_owners, f"[1, {self.num_nodes}]")
        _validate.integer("train_rows", self.train_rows, f"[{self.num_train}, {self.num_nodes}]")
        if self.owner_rows is not None:
            _validate.integer("owner_rows", self.owner_rows, "[1, 1e9]")

    @property
    def targets(self) -> str | None:
        """Of links: whether rows of targets are ``public``, or targets ``people`` as sources."""
        if self.record != "link":
            return None
        return PEOPLE if self.target_features is None else PUBLIC

    @property
    def pools_owners(self) -> bool:
        """Whether all records of an owner are one loss term."""
        return self.num_owners is not None and self.owner_rows is None

    @property
    def has_shared_owners(self) -> bool:
        """Whether some records are the same owner's."""
        return self.num_owners is not None and self.num_owners < self.num_nodes

    def by_owner(self) -> Facts:
        """The same where all records of an owner are one loss term."""
        return replace(self, owner_rows=None)

    def by_row(self) -> Facts:
        """The same where every record is a loss term, of which an owner has ``owner_rows``."""
        return replace(self, num_train=self.train_rows or self.num_train)

    def by_record(self) -> Facts:
        """The same where nobody asks whose a record is."""
        rows = self.train_rows or self.num_train
        return replace(self, num_train=rows, num_owners=None, train_rows=None, owner_rows=None)

    @classmethod
    def of(cls, data: Data) -> Facts:
        """The facts of a graph at hand, after checking it; none is measured on its edges."""
        from graphveil.graph import checks, owners

        checks.check(data)
        directed, of_links = checks.directed_of(data), checks.record_of(data) == "link"
        if of_links and "target_x" in data:
            directed = True
        rows = int(data.train_mask.sum())
        owned = owners.count_owners(data)
        return cls(
            num_nodes=checks.num_records(data),
            num_features=data.x.shape[1],
            num_classes=checks.num_classes_of(data),
            num_train=rows if owned is None else owners.count_owners(data, "train_mask") or 0,
            directed=directed,
            record=checks.record_of(data),
            task=checks.task_of(data),
            value_range=checks.value_range_of(data),
            target_features=data.target_x.shape[1] if of_links and "target_x" in data else None,
            num_owners=owned,
            train_rows=None if owned is None else rows,
            owner_rows=None if owned is None else owners.owner_rows_of(data),
        )

    def count_units(self, unit: str) -> int:
        """How many units there may be: of edges all pairs, never those that there are."""
        if self.record == "link" and unit.startswith("edge"):
            targets = None if self.target_features is None else self.num_classes
            return count_pairs(self.num_nodes, targets, directed=self.directed)
        return count_units(unit, self.num_nodes)

    def matches(self, data: Data) -> bool:
        """Whether data has these sizes, so many owners, and as many training records."""
        from graphveil.graph import checks, owners

        rows = self.num_train if self.train_rows is None else self.train_rows
        known = (checks.num_records(data), data.x.shape[1], int(data.train_mask.sum()))
        if known != (self.num_nodes, self.num_features, rows):
            return False
        if self.num_owners not in (None, owners.count_owners(data)):
            return False
        if self.record != "link":
            return checks.directed_of(data) == self.directed
        columns = data.target_x.shape[1] if "target_x" in data else None
        directed = True if columns else checks.directed_of(data)
        mine = (self.num_classes, self.target_features, self.directed)
        return (checks.num_classes_of(data), columns, directed) == mine


_NUMBERS = {
    "link": "[1, 1e9]",
    "binary": "[2, 2]",
    "multilabel": "[1, 1e9]",
    "regression": "[1, 1]",
}


def _check_range(ends: Any) -> tuple[float, float]:
    """The two ends of a range; files have them as a list."""
    if not isinstance(ends, (list, tuple)) or len(ends) != 2 or not ends[0] < ends[1]:
        raise InvalidInputError(
            "A regression must have the two ends of a public range, 'value_range'. Got "
            f"{ends!r} instead; state what is known without looking at the values."
        )
    low, high = (_validate.number("value_range", end, "(-inf, inf)") for end in ends)
    return low, high


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What ``fit`` will run *and* what it will be charged; made without looking at data.

    ``parts`` are run in their order. With a ``sampled_at`` below 1 all of them run on a secret
    sample of the units, which amplifies the whole. ``details`` are the numbers a person may want to
    see before spending: noise, rate, steps, influence, expected signal-to-noise. ``settings`` are
    those that must still be the same when the fitted method is used. ``record_name`` is what the
    data calls a record, where it says so, and of the unit ``owner``, ``owner_name`` an owner.
    """

    method: str
    facts: Facts
    unit: str
    delta: float
    parts: tuple[Part, ...]
    sampled_at: float = 1.0
    details: Mapping[str, float] = field(default_factory=dict)
    relation: str = "withhold"
    public_degree: int | None = None
    released: str = "model weights"
    released_to: str = "anybody"
    public: tuple[str, ...] = ()
    unprotected: tuple[str, ...] = ()
    inference: tuple[str, ...] = ()
    voided_by: tuple[str, ...] = ()
    void_because: tuple[str, ...] = ()
    tuned: bool = False
    claim: Claimed | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    owner_name: str | None = None
    record_name: str | None = None

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        if len(set(names)) < len(names):
            raise InvalidInputError(
                f"Every part of a plan must have a name of its own. Got {', '.join(names)} instead."
            )

    def part(self, name: str) -> Any:
        """The part of that name."""
        return next(part for part in self.parts if part.name == name)

    @property
    def charges(self) -> tuple[Charge, ...]:
        """What all parts cost."""
        return self.charges_for({part.name: part.event for part in self.parts})

    def charges_for(self, spent: Mapping[str, dpa.DpEvent]) -> tuple[Charge, ...]:
        """What was ``spent``, by the names of the parts; parts that pay for one thing are one.

        What was released before counts in any case.
        """
        before = {part.name: part.event for part in self.parts if isinstance(part, Earlier)}
        return charge(self.parts, {**before, **spent}, self.sampled_at)

    def certificate(
        self,
        charges: Sequence[Charge] | None = None,
        *,
        void_because: Sequence[str | None] = (),
        inference: Sequence[str] = (),
    ) -> Certificate:
        """The certificate of the plan, or of the ``charges`` that a run really made.

        ``inference`` says in which further ways was predicted since.
        """
        own_only = NOISY in inference and self.unit == "node" and self.released_to == "anybody"
        return certify(
            self.charges if charges is None else charges,
            unit=self.unit,
            delta=self.delta,
            released=self.released,
            released_to=OWN_ONLY if own_only else self.released_to,
            relation=self.relation,
            public_degree=self.public_degree,
            public=self.public,
            unprotected=self.unprotected,
            inference=(*self.inference, *inference),
            voided_by=self.voided_by,
            void_because=(*self.void_because, *void_because),
            tuned=self.tuned,
            claim=self.claim,
            owner=self.owner_name,
            record=self.record_name,
            targets=self.facts.targets,
        )

    @property
    def epsilon(self) -> float:
        """What the whole plan costs."""
        return self.certificate().guarantee.epsilon

    def on(self, data: Data) -> Plan:
        """The same plan on data that takes more as public, or for which no guarantee holds."""
        from graphveil.graph import checks, owners

        if self.unit.startswith("edge") and (lists := getattr(data, "own_lists", None)):
            raise UnprovenError(
                "The unit 'edge' takes rows of people as public, and these hold what their lists "
                f"became. Got lists of {shorten(lists)} instead, which nothing would "
                "protect; take the unit 'node', or leave the lists out (lists = [])."
            )
        names: dict[str, Any] = {}
        word = getattr(data, "unit_name", None) or getattr(data, "source_name", None)
        word = str(word) if word and owners.is_plain_word(str(word)) else None
        if self.unit == "owner":
            row = word or checks.record_of(data)
            names = {"owner_name": owners.owner_name_of(data), "record_name": row}
        elif self.unit in ("node", "graph") and word:
            names = {"record_name": word}
        return replace(
            self,
            **names,
            parts=(*self.parts, *self._earlier(data)),
            public=(*self.public, *devices.public(), *checks.public_of(data)),
            unprotected=(*self.unprotected, *checks.unprotected_of(data)),
            void_because=(*self.void_because, *checks.void_of(data)),
        )

    def _earlier(self, data: Data) -> tuple[Earlier, ...]:
        """What was released before and stands in the data: ``data.spent``."""
        spent = getattr(data, "spent", None) or ()
        if spent and (self.unit != "node" or self.sampled_at < 1):
            what = f"the unit {self.unit!r}" if self.unit != "node" else "a secret sample"
            raise UnprovenError(
                "Sums that were released before are charged for one person, all of whom took part: "
                f"the unit 'node', without a sample. Got {what} instead; take another method, or "
                "the data without sums."
            )
        known = {part.name for part in self.parts}
        return tuple(
            Earlier(**{**part, "event": from_json(part["event"])})
            for part in spent
            if part["name"] not in known
        )

    def resting_on(
        self,
        *,
        public: Sequence[str] = (),
        unprotected: Sequence[str] = (),
        voided_by: Sequence[str] = (),
        also_released: Sequence[str] = (),
        tuned: bool = False,
    ) -> Plan:
        """The same plan, whose certificate takes more as public, is voided by or releases more."""
        return replace(
            self,
            public=(*self.public, *public),
            unprotected=(*self.unprotected, *unprotected),
            voided_by=(*self.voided_by, *voided_by),
            released=", ".join([self.released, *also_released]),
            tuned=self.tuned or tuned,
        )

    def plain(self) -> Plan:
        """The same plan, as it will be read back: numbers of numpy are plain ones there."""
        return Plan.from_json(json.loads(json.dumps(self.to_json(), default=_as_plain)))

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON values; :meth:`from_json` makes an equal one."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return plain | {
            "facts": asdict(self.facts),
            "parts": [_parts.to_json(part) for part in self.parts],
            "details": {
                name: "inf" if value == math.inf else value for name, value in self.details.items()
            },
            "claim": None if self.claim is None else asdict(self.claim),
            "settings": dict(self.settings),
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Plan:
        """Read what :meth:`to_json` wrote."""
        lists = ("public", "unprotected", "inference", "voided_by", "void_because")
        claim = plain["claim"]
        details = {
            name: math.inf if value == "inf" else value for name, value in plain["details"].items()
        }
        return cls(
            **{
                **plain,
                **{name: tuple(plain[name]) for name in lists},
                "facts": Facts(**plain["facts"]),
                "parts": tuple(_parts.from_json(part) for part in plain["parts"]),
                "details": details,
                "claim": None if claim is None else Claimed(**claim),
            }
        )


def _as_plain(value: Any) -> Any:
    if not hasattr(value, "tolist"):
        raise InvalidInputError(
            "A plan must be made of numbers, words and lists of them. Got "
            f"{type(value).__name__} instead; give a plain value."
        )
    return value.tolist()


def charge(
    parts: Sequence[Part], spent: Mapping[str, dpa.DpEvent], sampled_at: float = 1.0
) -> tuple[Charge, ...]:
    """Charges for what parts spent; with a secret sample it is the whole that is amplified."""
    events: dict[str, list[dpa.DpEvent]] = {}
    for part in parts:
        if part.name in spent:
            events.setdefault(part.paid_for, []).append(spent[part.name])
    charges = [Charge(paid_for=what, event=composed(*list_)) for what, list_ in events.items()]
    if sampled_at == 1:
        return tuple(charges)
    paid_for = " and ".join(charge.paid_for for charge in charges)
    whole = composed(*(charge.event for charge in charges))
    return (
        Charge(
            paid_for=f"{paid_for}, on a secret sample of the nodes",
            event=dpa.PoissonSampledDpEvent(sampled_at, whole),
        ),
    )
