"""The synthetic hospital as typed tables: patients, drugs, diagnoses, and relations between them.

**Nobody in it is real**, nor is any drug or diagnosis. Patients are people; drugs and diagnoses are
public catalogs, such as every hospital has. Who is readmitted depends on what a patient's drugs and
diagnoses are like, which the catalogs say and the patient's own columns hardly tell.

=======================  ========================================================================
patient                  own columns, and whether readmitted within a month: 1 in 4
drug                     120: class, strength, load on the kidneys, sedation
diagnosis                90: chapter, severity, whether it is chronic
patient-takes-drug       about seven each, a few have forty
patient-has-diagnosis    about four each
drug-treats-diagnosis    public
patient-meets-patient    who shared a room
=======================  ========================================================================
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch_geometric.data import Data, HeteroData

from graphveil import _validate
from graphveil.data.schema import Category, Flag, Label, Number, Schema
from graphveil.data.typed import Frames, build, make_graph
from graphveil.data.typed_schema import Relation, Types
from graphveil.rng import seeded

NAME = "hospital:typed"
PATIENTS, DRUGS, DIAGNOSES = 5000, 120, 90
CLASSES = (
    "analgesic", "antibiotic", "anticoagulant", "antidepressant", "antidiabetic", "diuretic",
    "heart", "opioid",
)  # fmt: skip
CHAPTERS = ("circulation", "digestion", "infection", "metabolism", "mind", "respiration")
_READMITTED = 0.25
_IN_ROOM = 4
_UNUSED = 5


class Tables(NamedTuple):
    """Tables of types and of relations, by the words behind nodes- and edges-."""

    nodes: dict[str, pd.DataFrame]
    edges: dict[str, pd.DataFrame]


def tables(num_patients: int = PATIENTS, *, seed: int = 0) -> Tables:
    """All tables, every cell as text; the same seed gives the same ones.

    *Guarantee*: none needed, nobody in it is real.
    """
    count = _validate.integer("num_patients", num_patients, "[100, 1e6]")
    rng = seeded(seed, "typed hospital").generator()
    drug, drugs = _drugs(rng)
    diagnosis, diagnoses = _diagnoses(rng)

    age = np.clip(np.round(62 + 16 * rng.normal(size=count)), 18, 104)
    frail = rng.normal(size=count) + 0.02 * (age - 62)
    # What ails a patient draws some diagnoses and some drugs; nothing of it stands in the row.
    ails = rng.normal(size=(count, 4))
    has = _draw(rng, ails @ diagnosis["pull"].T, 1 + rng.poisson(3.0, count))
    takes = _draw(rng, ails @ drug["pull"].T, np.minimum(40, 1 + rng.geometric(0.15, count)))
    burden = _means(takes, drug["load"], count) + 0.7 * _means(takes, drug["sedation"], count)
    severity = _means(has, diagnosis["severity"], count)
    risk = 0.5 * frail + 2.2 * burden + 1.6 * severity + 0.25 * np.log1p(np.bincount(takes[0]))
    readmitted = _decide(rng, 1.5 * (risk - risk.mean()), _READMITTED)

    ids = np.array([f"P-{number:05d}" for number in rng.permutation(count) + 1])
    patients = pd.DataFrame(
        {
            "patient_id": ids,
            "sex": rng.choice(["female", "male"], count),
            "age": age.astype(int).astype(str),
            "crp": _write(np.clip(60 + 30 * frail + 30 * rng.normal(size=count), 0, 300), 0),
            "albumin": _write(np.clip(38 - 3 * frail + 4 * rng.normal(size=count), 12, 55), 1),
            "emergency": np.where(rng.random(count) < 0.4 + 0.1 * (frail > 0), "yes", "no"),
            "readmitted": np.where(readmitted, "yes", "no"),
        }
    )
    edges = {
        "patient-takes-drug": _relation(takes, ids, drugs["id"], "patient", "drug"),
        "patient-has-diagnosis": _relation(has, ids, diagnoses["id"], "patient", "diagnosis"),
        "drug-treats-diagnosis": _treats(rng, drug, diagnosis, drugs, diagnoses),
        "patient-meets-patient": _meets(rng, frail, ids),
    }
    return Tables({"patient": patients, "drug": drugs, "diagnosis": diagnoses}, edges)


def graph() -> HeteroData:
    """The tables as PyG's ``HeteroData``, patients being people.

    *Guarantee*: none needed, nobody in it is real.
    """
    content = tables()
    types = schema_of().typed
    assert types is not None
    return make_graph(
        _tables("nodes", content.nodes),
        _tables("edges", content.edges),
        types,
        where=NAME,
    )


def load() -> Data:
    """The data set ``hospital:typed`` of the catalog: patients, with their lists.

    *Guarantee*: none needed, nobody in it is real.
    """
    content, types = tables(), schema_of().typed
    assert types is not None
    nodes, edges = _tables("nodes", content.nodes), _tables("edges", content.edges)
    return build(nodes, edges, types, where=NAME)


def _tables(kind: str, content: dict[str, pd.DataFrame]) -> Frames:
    """Tables with the names of the files that they would be."""
    return {name: (Path(f"{kind}-{name}.csv"), table) for name, table in content.items()}


def schema_of() -> Schema:
    """The public schema: ranges and lists that are known without any patient."""
    patient = Schema(
        id="patient_id",
        columns={
            "sex": Category(values=["female", "male"]),
            "age": Number(low=0, high=110),
            "crp": Number(low=0, high=300),
            "albumin": Number(low=10, high=60),
            "emergency": Flag(),
        },
        label=Label(task="binary", column="readmitted", classes=["no", "yes"]),
    )
    drug = Schema(
        columns={
            "class": Category(values=CLASSES),
            "strength": Number(low=0, high=10),
            "kidney_load": Number(low=0, high=1),
            "sedation": Number(low=0, high=1),
        }
    )
    diagnosis = Schema(
        columns={
            "chapter": Category(values=CHAPTERS),
            "severity": Number(low=0, high=1),
            "chronic": Flag(),
        }
    )
    types = Types(
        people=["patient"],
        target="patient",
        types={"patient": patient, "drug": drug, "diagnosis": diagnosis},
        relations={
            "patient-takes-drug": Relation(source="patient", target="drug"),
            "patient-has-diagnosis": Relation(source="patient", target="diagnosis"),
            "drug-treats-diagnosis": Relation(source="drug", target="diagnosis"),
            "patient-meets-patient": Relation(source="one", target="other", directed=False),
        },
    )
    return types.as_schema()


def _drugs(rng: np.random.Generator) -> tuple[dict[str, Any], pd.DataFrame]:
    kinds = rng.integers(len(CLASSES), size=DRUGS)
    load, sedation = rng.beta(1.2, 2.5, DRUGS), rng.beta(1.2, 3.0, DRUGS)
    pull = rng.normal(size=(DRUGS, 4)) + 1.2 * rng.normal(size=(len(CLASSES), 4))[kinds]
    load = np.clip(load + 0.15 * pull[:, 0] / 2, 0, 1)
    table = pd.DataFrame(
        {
            "id": [f"D-{number:03d}" for number in range(DRUGS)],
            "class": np.array(CLASSES)[kinds],
            "strength": _write(10 * rng.random(DRUGS), 1),
            "kidney_load": _write(load, 3),
            "sedation": _write(sedation, 3),
        }
    )
    return {"load": load, "sedation": sedation, "pull": pull}, table


def _diagnoses(rng: np.random.Generator) -> tuple[dict[str, Any], pd.DataFrame]:
    chapters = rng.integers(len(CHAPTERS), size=DIAGNOSES)
    severity = rng.beta(1.5, 2.5, DIAGNOSES)
    pull = rng.normal(size=(DIAGNOSES, 4)) + rng.normal(size=(len(CHAPTERS), 4))[chapters]
    table = pd.DataFrame(
        {
            "id": [f"I-{number:03d}" for number in range(DIAGNOSES)],
            "chapter": np.array(CHAPTERS)[chapters],
            "severity": _write(severity, 3),
            "chronic": np.where(rng.random(DIAGNOSES) < 0.4, "yes", "no"),
        }
    )
    return {"severity": severity, "pull": pull}, table


def _draw(
    rng: np.random.Generator, scores: NDArray[np.float64], sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """(2, pairs): for each row so many different columns, rather those with large scores."""
    noisy = 0.9 * scores + rng.gumbel(size=scores.shape)
    noisy[:, -_UNUSED:] -= 100  # a catalog has more than is in use
    best = np.argsort(-noisy, axis=1)
    kept = np.arange(scores.shape[1]) < sizes[:, None]
    rows = np.repeat(np.arange(len(scores)), np.minimum(sizes, scores.shape[1]))
    return np.stack([rows, best[kept]])


def _means(
    pairs: NDArray[np.int64], values: NDArray[np.float64], count: int
) -> NDArray[np.float64]:
    lengths = np.maximum(np.bincount(pairs[0], minlength=count), 1)
    means: NDArray[np.float64] = np.bincount(pairs[0], values[pairs[1]], count) / lengths
    return means


def _decide(
    rng: np.random.Generator, logit: NDArray[np.float64], share: float
) -> NDArray[np.bool_]:
    """True for about this ``share``, more often where the ``logit`` is large."""
    low, high = -20.0, 20.0
    for _ in range(60):  # the intercept that gives the share
        middle = (low + high) / 2
        too_many = (1 / (1 + np.exp(-(logit + middle)))).mean() > share
        low, high = (low, middle) if too_many else (middle, high)
    drawn: NDArray[np.bool_] = rng.random(len(logit)) < 1 / (1 + np.exp(-(logit + low)))
    return drawn


def _relation(
    pairs: NDArray[np.int64], sources: Any, targets: Any, source: str, target: str
) -> pd.DataFrame:
    one, other = np.array(sources)[pairs[0]], np.array(targets)[pairs[1]]
    return pd.DataFrame({source: one, target: other})


def _treats(
    rng: np.random.Generator,
    drug: dict[str, Any],
    diagnosis: dict[str, Any],
    drugs: pd.DataFrame,
    diagnoses: pd.DataFrame,
) -> pd.DataFrame:
    pairs = _draw(rng, drug["pull"] @ diagnosis["pull"].T, 1 + rng.poisson(2.0, DRUGS))
    return _relation(pairs, drugs["id"], diagnoses["id"], "drug", "diagnosis")


def _meets(rng: np.random.Generator, frail: NDArray[np.float64], ids: Any) -> pd.DataFrame:
    """Pairs who shared a room; rooms hold patients who are about as frail."""
    order = np.argsort(frail + rng.normal(size=len(frail)))
    rooms = np.arange(len(frail)) // _IN_ROOM
    one, other = np.triu_indices(_IN_ROOM, k=1)
    first = np.flatnonzero(np.diff(rooms, prepend=-1))
    first = first[first + _IN_ROOM <= len(frail)]
    ends = np.stack([(first[:, None] + side).ravel() for side in (one, other)])
    ends = order[ends[:, rng.permutation(ends.shape[1])]]
    return _relation(ends, ids, ids, "one", "other")


def _write(values: NDArray[np.float64], decimals: int) -> NDArray[np.str_]:
    return np.array([f"{value:.{decimals}f}" for value in values])
