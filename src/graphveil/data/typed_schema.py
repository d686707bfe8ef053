"""What the owner of typed tables states in public: who is a person, every type, every relation.

A ``schema.toml`` beside ``nodes-patient.csv``, ``nodes-drug.csv``, ``edges-patient-takes-drug.csv``
and so on::

    people = ["patient"]            # rows of all other types are public
    target = "patient"              # whose label is predicted
    # link = "patient-takes-drug"   # or: which relation is

    [types.patient]
    id = "patient_id"               # as in the schema of one table

    [types.patient.columns.age]
    kind = "number"
    low = 0
    high = 110

    [types.patient.label]
    column = "readmitted"
    task = "binary"
    classes = ["no", "yes"]

    [types.drug.columns.strength]
    kind = "number"
    low = 0
    high = 10

    [relations.patient-takes-drug]
    source = "patient"              # the columns of the ends; "source" and "target" unless stated
    target = "drug"
    lists = ["count", "mean"]       # what a list becomes: count, mean, sum, max, min, bag

Neither pandas nor torch is loaded here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from graphveil import _schema, _validate
from graphveil._errors import InvalidInputError
from graphveil.data.column_kinds import build, check_filled, plain_fields
from graphveil.data.schema import Schema, write_key, write_lines
from graphveil.graph.own_lists import check_aggregates

_STEM = re.compile(r"(nodes|edges)-(.+)\.(csv|parquet)")
KEYS: _schema.Schema = {
    "people": list, "target": str, "link": str, "empty": list, "types": dict, "relations": dict,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Relation:
    """What is public of a relation: the columns of its ends and times, and what is made of it.

    ``lists`` says what a person's list of public rows becomes, see
    :mod:`graphveil.graph.own_lists`; None is as usual. ``directed`` is for relations of people with
    people of the same type, which have no direction unless stated.
    """

    source: str = "source"
    target: str = "target"
    time: str | None = None
    directed: bool | None = None
    lists: Sequence[str] | None = None

    keys: ClassVar[_schema.Schema] = {
        "source": str, "target": str, "time": str, "directed": bool, "lists": list,
    }  # fmt: skip

    def __post_init__(self) -> None:
        if self.lists is not None:
            object.__setattr__(self, "lists", check_aggregates(self.lists))

    @property
    def ends(self) -> tuple[str, str]:
        """Both columns."""
        return self.source, self.target

    def to_dict(self) -> dict[str, Any]:
        """What is stated, without what goes without saying."""
        content = plain_fields(self)
        return content if self.lists is None else {**content, "lists": list(self.lists)}


@dataclass(frozen=True, kw_only=True)
class Types:
    """The types of a folder, those that are people, and what is learnt of them.

    *Guarantee*: none is needed; certificates of what is trained by it list the types that were
    declared public.
    """

    people: Sequence[str] = ()
    target: str | None = None
    link: str | None = None
    types: Mapping[str, Schema] = field(default_factory=dict)
    relations: Mapping[str, Relation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        people = [self.people] if isinstance(self.people, str) else self.people
        if not isinstance(people, (list, tuple)) or len(set(people)) < len(people):
            raise InvalidInputError(
                "The 'people' parameter must be a list of different types. Got "
                f"{_validate.shown(self.people)} instead; correct it."
            )
        object.__setattr__(self, "people", tuple(people))
        if self.target is not None and self.link is not None:
            raise InvalidInputError(
                "One thing is learnt: a 'target', whose label, or a 'link', which relation. Got "
                "both instead; leave one of them out."
            )
        for name, schema in self.types.items():
            self._check_type(name, schema)

    def _check_type(self, name: str, schema: Schema) -> None:
        if not self.people or name in self.people:
            return
        given = {"label": schema.label, "split": schema.split, "owner": schema.owner}
        for what, value in given.items():
            if value is not None:
                raise InvalidInputError(
                    f"The type {name!r} is not among 'people', so that all its rows are public. "
                    f"Got a {what} of it instead, which people have; leave it out, or add the type "
                    "to 'people'."
                )

    @property
    def record(self) -> str | None:
        """The type that records are of, as far as it is stated; of a link its first person."""
        if self.target is not None:
            return self.target
        if self.link is not None:
            ends = [name for name in self.people if _is_end(name, self.link)]
            return ends[0] if ends else None
        labelled = [name for name in self.people if self._schema(name).label is not None]
        options = labelled if labelled else list(self.people)
        return options[0] if len(options) == 1 else None

    def _schema(self, name: str) -> Schema:
        return self.types.get(name, Schema())

    def stating(
        self,
        people: Sequence[str] | None = None,
        target: str | None = None,
        link: str | None = None,
    ) -> Types:
        """The same with what is asked for besides; what is stated twice must be so alike."""
        people = None if people is None else tuple(people)
        asked: dict[str, Any] = {"people": people, "target": target, "link": link}
        for name, value in asked.items():
            own = getattr(self, name)
            if value is not None and own not in (None, (), value):
                raise InvalidInputError(
                    f"The '{name}' parameter must be as the schema says. Got {value!r} where it "
                    f"says {own!r} instead; correct either."
                )
        return replace(self, **{name: value for name, value in asked.items() if value is not None})

    def as_schema(self) -> Schema:
        """The schema of the records, which knows the other types besides."""
        name = self.record
        flat = Schema() if name is None else self._schema(name)
        return replace(flat, unit=flat.unit or name, typed=self)

    def fixed(self, record: Schema) -> Types:
        """The same for tables to predict on; ``record`` is the schema of the records then."""
        types = {name: replace(schema, fixed=True) for name, schema in self.types.items()}
        if self.record is not None:
            types[self.record] = replace(record, typed=None)
        return replace(self, types=types)

    def difference(self, other: Types) -> str | None:
        """The first thing that ``other`` states differently, in half a sentence; None if nothing.

        This is the schema of a run, the other is here.
        """
        for name in ("people", "target", "link"):
            run, here = getattr(self, name), getattr(other, name)
            if run != here:
                return f"{name!r} is {_say(run)} in the run and {_say(here)} here"
        for name in (*self.types, *other.types):
            if first := self._schema(name).difference(other._schema(name)):
                return f"of the type {name!r} {first}"
        for name in (*self.relations, *other.relations):
            one, two = (types.relations.get(name, Relation()) for types in (self, other))
            if one != two:
                return f"the relation {name!r} is stated otherwise in the run than here"
        return None

    # --- files -----------------------------------------------------------------------------------

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], place: str) -> Types:
        """The types that a table of TOML or JSON states; refusals name the ``place``."""
        check_filled(table, f"{place}, its head")
        _schema.check_table(table, KEYS, place)
        empty = table.get("empty", [])
        types = {}
        for name, content in table.get("types", {}).items():
            what = f"{place}, the type {name!r}"
            if not isinstance(content, Mapping) or "types" in content or "edges" in content:
                raise InvalidInputError(f"{what} must be a table of its columns and its label.")
            types[name] = Schema.from_dict({"empty": empty, **content}, what)
        relations = {}
        for name, content in table.get("relations", {}).items():
            what = f"{place}, the relation {name!r}"
            if not isinstance(content, Mapping):
                raise InvalidInputError(f"{what} must be a table of its columns.")
            check_filled(content, what)
            relations[name] = build(Relation, dict(content), Relation.keys, what)
        return cls(
            people=table.get("people", ()),
            target=table.get("target"),
            link=table.get("link"),
            types=types,
            relations=relations,
        )

    def to_dict(self) -> dict[str, Any]:
        """What is stated, as JSON has it; :meth:`from_dict` gives the same back."""
        content: dict[str, Any] = {"people": list(self.people)} if self.people else {}
        content |= {n: v for n in ("target", "link") if (v := getattr(self, n)) is not None}
        content["types"] = {name: schema.to_dict() for name, schema in self.types.items()}
        relations = {name: relation.to_dict() for name, relation in self.relations.items()}
        return content | ({"relations": relations} if relations else {})

    def to_toml(self) -> str:
        """The text of a ``schema.toml``."""
        content = self.to_dict()
        heads = {name: value for name, value in content.items() if not isinstance(value, dict)}
        blocks = [write_lines(heads)]
        for name, schema in content["types"].items():
            place = f"types.{write_key(name)}"
            own = {key: value for key, value in schema.items() if not isinstance(value, dict)}
            blocks.append(f"[{place}]\n{write_lines(own)}")
            for column, table in schema.get("columns", {}).items():
                blocks.append(f"[{place}.columns.{write_key(column)}]\n{write_lines(table)}")
            if "label" in schema:
                blocks.append(f"[{place}.label]\n{write_lines(schema['label'])}")
        for name, relation in content.get("relations", {}).items():
            blocks.append(f"[relations.{write_key(name)}]\n{write_lines(relation)}")
        return "\n".join(blocks)


def is_typed_place(path: Path) -> bool:
    """Whether a path is a folder with a table for each type; parts of one table have numbers."""
    return path.is_dir() and bool(type_names(path))


def type_names(folder: Path) -> list[str]:
    """The types that have a table in a folder, in the order of their names."""
    return _stems(folder, "nodes")


def relation_names(folder: Path) -> list[str]:
    """The relations that have a table in a folder, as their files are called."""
    return _stems(folder, "edges")


def _stems(folder: Path, kind: str) -> list[str]:
    if any((folder / f"nodes.{end}").exists() for end in ("csv", "parquet")):
        return []
    fits = (_STEM.fullmatch(path.name) for path in folder.iterdir())
    stems = {fit[2] for fit in fits if fit is not None and fit[1] == kind}
    return sorted(stem for stem in stems if not stem.isdigit())


def split_relation(stem: str, types: Sequence[str]) -> tuple[str, str, str]:
    """The three names in a file's words, such as patient-takes-drug; refused where not clear."""
    fit = [
        (source, stem[len(source) + 1 : len(stem) - len(target) - 1], target)
        for source in types
        for target in types
        if stem.startswith(f"{source}-") and stem.endswith(f"-{target}")
        if len(stem) > len(source) + len(target) + 2
    ]
    if len(fit) != 1:
        got = "no two of them" if not fit else "several readings"
        raise InvalidInputError(
            f"A table of edges must be called edges-SOURCE-RELATION-TARGET after types that have "
            f"tables: {', '.join(types)}. Got {got} in {_validate.shown(stem)} instead; rename it, "
            "or give each end a table nodes-TYPE of its own, because rows that edges alone bring "
            "are read off private lists."
        )
    return fit[0]


def _is_end(name: str, relation: str) -> bool:
    """Whether a relation is named after a type."""
    return relation.startswith(f"{name}-") or relation.endswith(f"-{name}")


def _say(value: Any) -> str:
    return "not stated" if value in (None, ()) else _validate.shown(value)
