"""A synthetic hospital: the tables that somebody would have, with their public schema.

**Nobody in it is real.** Patients lie in rooms, and frail ones are put together. How frail one is
stands nowhere: age and lab values tell some of it, and those of contacts, who shared a room or a
ward, tell some more. Tables are as tables are: texts, dates, empty cells, a few ages of 999.

==================  ==============================================================================
hospital            who died, about 3 in 100 (binary)
hospital:lab        the albumin, in grams a litre (regression)
hospital:triage     the level of urgency, 1 to 5 (ordinal)
hospital:diagnoses  which of eight diagnoses were made (multilabel)
hospital:ward       the ward that a patient lies in (multiclass)
hospital:typed      who is readmitted (binary): patients, drugs and diagnoses, in tables of their
                    own, see :mod:`graphveil.data.typed_hospital`
==================  ==============================================================================
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil._files import partial_name
from graphveil._inputs import at_home
from graphveil.data._cache import refuse_variant
from graphveil.data._tables import edge_ends, writing
from graphveil.data.class_list import Notice
from graphveil.data.encoding import encode_table
from graphveil.data.schema import (
    FILE,
    Category,
    Column,
    Date,
    Edges,
    Flag,
    Ignored,
    Label,
    Number,
    Schema,
)
from graphveil.data.typed_hospital import schema_of as typed_schema_of
from graphveil.data.typed_hospital import tables as typed_tables
from graphveil.rng import seeded

PATIENTS = 5000
WARDS = ("cardiology", "geriatrics", "intensive care", "oncology", "pulmonology", "surgery")
DIAGNOSES = (
    "anaemia", "copd", "depression", "diabetes", "heart failure", "hypertension", "renal failure",
    "sepsis",
)  # fmt: skip
VARIANTS = ("", "lab", "triage", "diagnoses", "ward")
TYPED = "typed"
_PEOPLE = (("nodes", "edges"), ("nodes-patient", "edges-patient-meets-patient"))
_FILES = {FILE} | {
    f"{stem}.csv"
    for stem in (
        *_PEOPLE[0], *_PEOPLE[1], "nodes-drug", "nodes-diagnosis", "edges-patient-takes-drug",
        "edges-patient-has-diagnosis", "edges-drug-treats-diagnosis",
    )
}  # fmt: skip
_IN_ROOM = 12  # patients, on average
_DEATHS = 0.03

# Lab values: low and high of the public range, mean, spread, how far frailty moves them, decimals,
# and how many in 100 are missing.
_LABS = {
    "crp": (0, 300, 60, 25, 0.4, 0, 8),
    "creatinine": (0, 600, 95, 30, 0.3, 0, 5),
    "haemoglobin": (40, 200, 130, 16, -0.3, 0, 6),
    "sodium": (110, 170, 139, 4, -0.2, 0, 5),
    "lactate": (0, 15, 2.2, 0.8, 0.35, 1, 25),
}
_SHIFTS = {  # of lab values by ward, in spreads
    "crp": (-0.5, 0.0, 0.4, 0.2, 0.7, 0.3),
    "creatinine": (0.4, 0.5, 0.3, -0.3, -0.3, -0.4),
    "haemoglobin": (0.5, -0.2, -0.3, -0.9, 0.4, -0.3),
    "sodium": (-0.5, 0.3, 0.0, 0.2, -0.2, 0.3),
    "lactate": (0.0, -0.4, 0.9, -0.3, 0.2, 0.0),
}


def tables(num_patients: int = PATIENTS, *, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Patients and contacts, every cell as text; the same seed gives the same tables.

    *Guarantee*: none needed, nobody in it is real.
    """
    count = _validate.integer("num_patients", num_patients, "[100, 1e6]")
    rng = seeded(seed, "hospital").generator()
    rooms = max(len(WARDS), count // _IN_ROOM)
    room = rng.integers(rooms, size=count)
    ward = rng.integers(len(WARDS), size=rooms)[room]
    frail = 0.9 * rng.normal(size=rooms)[room] + 0.44 * rng.normal(size=count)
    age = np.clip(np.round(63 + 6 * frail + 14 * rng.normal(size=count)), 18, 104)
    smoker = rng.random(count) < 0.28

    nodes: dict[str, Any] = {}
    nodes["patient_id"] = [f"P-{number:05d}" for number in rng.permutation(count) + 1]
    sexes = np.array(["female", "male", "diverse", ""])
    nodes["sex"] = rng.choice(sexes, count, p=[0.5, 0.48, 0.01, 0.01])
    mistyped = rng.random(count) < 0.002
    nodes["age"] = np.where(mistyped, "999", age.astype(int).astype(str))
    districts = [f"{number:05d}" for number in range(1067, 1067 + 40 * 61, 61)]
    nodes["postcode"] = rng.choice(districts, count)
    first = np.datetime64("2022-01-01")
    admitted = (first + rng.integers(730, size=count)).astype(str)
    nodes["admitted"] = np.where(rng.random(count) < 0.02, "", admitted)
    nodes["smoker"] = np.where(rng.random(count) < 0.07, "NA", np.where(smoker, "yes", "no"))
    nodes["ward"] = np.array(WARDS)[ward]
    for name, (low, high, mean, spread, slope, decimals, missing) in _LABS.items():
        noise = np.sqrt(1 - slope**2) * rng.normal(size=count)
        values = mean + spread * (slope * frail + noise + np.array(_SHIFTS[name])[ward])
        texts = _write(np.clip(values, low, high), decimals)
        nodes[name] = np.where(rng.random(count) < missing / 100, "NA", texts)

    albumin = 38 - 3.6 * frail - 0.06 * (age - 63) + 2.6 * rng.normal(size=count)
    nodes["albumin"] = _write(np.clip(albumin, 12, 55), 1)
    urgency = frail + 0.02 * (age - 63) + 0.6 * rng.normal(size=count)
    nodes["triage"] = (5 - np.searchsorted([-1.3, -0.3, 0.7, 1.6], urgency)).astype(str)
    nodes["diagnoses"] = _diagnose(rng, frail, age, smoker, ward)
    nodes["died"] = _decide(rng, 2.1 * frail + 0.03 * (age - 63), _DEATHS)
    return pd.DataFrame(nodes), _contacts(rng, np.array(nodes["patient_id"]), room, ward)


def schema_of(variant: str = "") -> Schema:
    """The public schema of a variant: ranges and lists that are known without any patient."""
    columns: dict[str, Column] = {
        "sex": Category(values=["female", "male", "diverse"], optional=True),
        "age": Number(low=0, high=110),
        "postcode": Category(buckets=16),
        "admitted": Date(origin="2023-01-01", scale="365 days", low=-1, high=1, optional=True),
        "smoker": Flag(optional=True),
        "ward": Category(values=WARDS),
    }
    for name, (low, high, *_) in _LABS.items():
        columns[name] = Number(low=low, high=high, optional=True)
    labels = {
        "": Label(task="binary", column="died", classes=["no", "yes"]),
        "lab": Label(task="regression", column="albumin", low=10, high=60),
        "triage": Label(task="ordinal", column="triage", classes=["5", "4", "3", "2", "1"]),
        "diagnoses": Label(
            task="multilabel", column="diagnoses", labels=DIAGNOSES, separator=";", none="none"
        ),
        "ward": Label(task="multiclass", column="ward", classes=WARDS),
    }
    label = labels[variant]
    for name in ("albumin", "triage", "diagnoses", "died"):
        columns[name] = Ignored()
    return Schema(
        unit="patient",
        id="patient_id",
        empty=["NA"],
        columns={name: column for name, column in columns.items() if name != label.column},
        label=label,
        edges=Edges(source="patient", target="contact", directed=False),
    )


def hospital(name: str, root: Path, variant: str) -> Data:
    """The data set ``hospital`` of the catalog; ``variant`` is what is predicted."""
    _check_variant(name, variant)
    if variant == TYPED:
        from graphveil.data import typed_hospital

        return typed_hospital.load()
    nodes, edges = tables()
    schema, where = schema_of(variant), Path(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # the ages of 999 are meant
        data = encode_table(schema, nodes, where)
    ends = edge_ends(where, nodes[schema.id], where, edges, schema.edges.ends)
    data.edge_index = to_undirected(torch.from_numpy(ends), num_nodes=len(nodes))
    data.directed = False
    return data


def write(name: str, out: str | Path, *, force: bool = False) -> tuple[int, int]:
    """Write ``hospital`` or a variant as tables and their schema.toml into a folder.

    Returns how many patients and contacts there are. A folder that is there is replaced with
    ``force``, if it holds such tables and nothing else.

    *Guarantee*: none needed, nobody in it is real.
    """
    first, _, variant = name.partition(":")
    if first != "hospital":
        raise InvalidInputError(
            f"Only 'hospital' and its variants can be written as tables. Got {name!r} instead."
        )
    _check_variant(name, variant)
    path = at_home(out)
    if path.exists() and not (path.is_dir() and {file.name for file in path.iterdir()} <= _FILES):
        raise InvalidInputError(
            f"{path} is something else and is not replaced, not even by force; choose another name."
        )
    if path.exists() and any(path.iterdir()) and not force:
        raise InvalidInputError(
            f"{path} exists and is not written over; choose another name, or use --force."
        )
    files = _tables_of(variant)
    with writing(path):
        parent = path.absolute().parent
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=partial_name(path.name), dir=parent) as work:
            new = Path(work) / "new"
            new.mkdir()
            for stem, table in files.items():
                table.to_csv(new / f"{stem}.csv", index=False)
            schema = typed_schema_of() if variant == TYPED else schema_of(variant)
            (new / FILE).write_text(schema.to_toml(), encoding="utf-8")
            if path.exists():
                path.rename(Path(work) / "old")
            new.rename(path)
    nodes, edges = _PEOPLE[variant == TYPED]
    return len(files[nodes]), len(files[edges])


def _tables_of(variant: str) -> dict[str, pd.DataFrame]:
    """All tables of a variant, by the stems of their files."""
    if variant == TYPED:
        typed = typed_tables()
        nodes = {f"nodes-{name}": table for name, table in typed.nodes.items()}
        return nodes | {f"edges-{name}": table for name, table in typed.edges.items()}
    patients, contacts = tables()
    return {"nodes": patients, "edges": contacts}


def _check_variant(name: str, variant: str) -> None:
    if variant not in (*VARIANTS, TYPED):
        listed = ", ".join(f"':{word}'" for word in (*VARIANTS[1:], TYPED))
        refuse_variant("hospital", listed, name, "; write 'hospital' or 'hospital:triage'")


def _write(values: NDArray[np.float64], decimals: int) -> NDArray[np.str_]:
    return np.array([f"{value:.{decimals}f}" for value in values])


def _decide(rng: np.random.Generator, logit: NDArray[np.float64], share: float) -> NDArray:
    """Yes for about this ``share``, more often where the ``logit`` is large."""
    low, high = -20.0, 20.0
    for _ in range(60):  # the intercept that gives the share
        middle = (low + high) / 2
        too_many = (1 / (1 + np.exp(-(logit + middle)))).mean() > share
        low, high = (low, middle) if too_many else (middle, high)
    return np.where(rng.random(len(logit)) < 1 / (1 + np.exp(-(logit + low))), "yes", "no")


def _diagnose(
    rng: np.random.Generator,
    frail: NDArray[np.float64],
    age: NDArray[np.float64],
    smoker: NDArray[np.bool_],
    ward: NDArray[np.int64],
) -> list[str]:
    """Diagnoses with semicolons between them, or the word none."""
    older = (age - 63) / 15
    of = {
        "anaemia": (0.8 * frail + 1.2 * (ward == 3), 0.18),
        "copd": (1.4 * smoker + 2.0 * (ward == 4) + 0.3 * older, 0.14),
        "depression": (0.3 * frail + 0.2 * (ward == 3), 0.10),
        "diabetes": (0.5 * frail + 0.5 * older, 0.22),
        "heart failure": (0.7 * frail + 2.0 * (ward == 0) + 0.5 * older, 0.16),
        "hypertension": (0.9 * older + 0.8 * (ward == 0), 0.40),
        "renal failure": (1.2 * frail + 0.3 * older, 0.09),
        "sepsis": (1.5 * frail + 1.5 * (ward == 2), 0.05),
    }
    made = {name: _decide(rng, *of[name]) == "yes" for name in DIAGNOSES}
    rows = np.stack([made[name] for name in DIAGNOSES], axis=1)
    names = np.array(DIAGNOSES)
    return [";".join(names[row]) or "none" for row in rows]


def _contacts(
    rng: np.random.Generator,
    ids: NDArray[np.str_],
    room: NDArray[np.int64],
    ward: NDArray[np.int64],
) -> pd.DataFrame:
    """Who shared a room, mostly; some shared a ward, and some were met by chance."""
    count, pairs = len(ids), []
    for members in np.split(np.argsort(room, kind="stable"), np.cumsum(np.bincount(room))[:-1]):
        one, other = np.triu_indices(len(members), k=1)
        kept = rng.random(len(one)) < 0.55
        pairs.append(np.stack([members[one[kept]], members[other[kept]]], axis=1))
    by_ward = [np.flatnonzero(ward == number) for number in range(len(WARDS))]
    one = rng.integers(count, size=count // 2)
    same = np.array([rng.choice(by_ward[ward[patient]]) for patient in one])
    pairs.append(np.stack([one, same], axis=1))
    pairs.append(rng.integers(count, size=(count // 2, 2)))
    ends = np.concatenate(pairs)
    ends = np.unique(np.sort(ends[ends[:, 0] != ends[:, 1]], axis=1), axis=0)
    ends = ends[rng.permutation(len(ends))]
    return pd.DataFrame({"patient": ids[ends[:, 0]], "contact": ids[ends[:, 1]]})
