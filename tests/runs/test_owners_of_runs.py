"""Runs on data whose records have owners: directories, ledgers, resuming, reports, predictions."""

import re

import pytest
import torch
from runs_cases import Crash, die_at

from graphveil._errors import GraphveilError, InvalidInputError
from graphveil.data.schema import Label, Number, Schema
from graphveil.grads.step import PrivateStep
from graphveil.methods import DPGNN, DPMLP, GAP
from graphveil.privacy.ledger import Ledger
from graphveil.report.evidence import read
from graphveil.report.page import render
from graphveil.runs import Run, Source

VISITS, PATIENTS = 120, 40


@pytest.fixture
def folder(tmp_path):
    """Visits of patients, who have several, and a schema that says so."""
    place = tmp_path / "visits"
    place.mkdir()
    generator = torch.Generator().manual_seed(0)
    patients = torch.randint(PATIENTS, (VISITS,), generator=generator).tolist()
    values = torch.rand(VISITS, generator=generator).tolist()
    rows = [
        f"{n},p{who},{value:.3f},{'yes' if value > 0.5 else 'no'}"
        for n, (who, value) in enumerate(zip(patients, values, strict=True))
    ]
    (place / "nodes.csv").write_text("\n".join(["id,patient_id,a,label", *rows]) + "\n")
    edges = [f"{n},{(n * 7 + 1) % VISITS}" for n in range(VISITS)]
    (place / "edges.csv").write_text("\n".join(["source,target", *edges]) + "\n")
    write_schema(place)
    return place


def write_schema(place, **more):
    schema = Schema(
        unit="visit",
        owner="patient_id",
        columns={"a": Number(low=0, high=1)},
        label=Label(column="label", task="binary", classes=["no", "yes"]),
        **more,
    )
    (place / "schema.toml").write_text(schema.to_toml())


def quick(epsilon=4.0, kind=DPMLP, **settings):
    return kind(epsilon=epsilon, **({"steps": 3, "sample_rate": 1.0} | settings))


def test_a_run_protects_a_patient_with_every_visit(folder, tmp_path):
    book = tmp_path / "ledger"
    ledger = Ledger(book)
    ledger.open("patients", epsilon=10.0, delta=1e-2)
    for number, method in enumerate((quick(), quick(2.0))):
        run = Run(tmp_path / f"run{number}")
        run.train(method, Source(data=str(folder)), ledger=book, account="patients")
        text = (run.directory / "certificate.txt").read_text()
        assert "for one patient with every visit of theirs" in text
    account = ledger.read().account("patients")
    assert account.promise.unit == "owner"
    edge = quick(kind=GAP, unit="edge")
    with pytest.raises(GraphveilError, match="for the unit 'owner'"):
        Run(tmp_path / "run2").train(
            edge, Source(data=str(folder), directed=True), ledger=book, account="patients"
        )
    page = re.sub("<[^>]+>", "", render([read(str(tmp_path / "run0"))]))
    assert "one patient with every visit of theirs" in page
    assert "the data of one patient was used" in page
    fitted = Run(tmp_path / "run0").read()
    assert fitted.certificate_.guarantee.owner == "patient"
    # Who predicts need not know whose a row is.
    schema = fitted.schema_.for_prediction()
    data = Source(data=str(folder), schema=schema).load()
    assert "owner" not in data
    assert len(fitted.predict(data)) == VISITS


@pytest.mark.parametrize("rule", [None, 2])
def test_a_killed_run_goes_on_with_the_same_owners_and_no_others(
    folder, tmp_path, monkeypatch, rule
):
    write_schema(folder, owner_rows=rule)
    kind = DPMLP if rule is None else DPGNN

    def train(**how):
        source = Source(data=str(folder))
        Run(tmp_path / "run").train(quick(kind=kind), source, **how)

    with monkeypatch.context() as patch:
        patch.setattr(PrivateStep, "__call__", die_at(2))
        with pytest.raises(Crash):
            train()
    table = folder / "nodes.csv"
    before = table.read_text()
    first, other = re.findall(r"\d+,(p\d+),", before)[:2]
    table.write_text(before.replace(f"0,{first},", f"0,{other},", 1))
    with pytest.raises(InvalidInputError):
        train(resume=True)
    table.write_text(before)
    train(resume=True)
    assert Run(tmp_path / "run").state == "finished"
    plan = Run(tmp_path / "run").record().plan
    assert plan.facts.num_owners == len(set(re.findall(r",(p\d+),", before)))
    assert plan.facts.owner_rows == rule
    assert plan.unit == "owner"
