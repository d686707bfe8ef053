"""Tables of several types on the command line."""

import pytest

from graphveil.data.hospital import write


@pytest.fixture(scope="module")
def ward(tmp_path_factory):
    """The typed hospital as tables whose schema names no people and no target."""
    place = tmp_path_factory.mktemp("typed") / "ward"
    write("hospital:typed", place)
    schema = place / "schema.toml"
    head, rest = schema.read_text().split("[types", 1)
    assert head.strip() == 'people = ["patient"]\ntarget = "patient"'
    schema.write_text(f"[types{rest}")
    return place


def test_a_folder_of_types_is_trained_on_and_predicted(ward, answer, run, refused, tmp_path):
    out = tmp_path / "run"
    train = f"train dp-mlp --data {ward} --epsilon 4 --set steps=5 --out {out}"
    assert "Which of them are people" in refused(train)
    assert "'people' names. Got 'nurse'" in refused(f"{train} --people patient,nurse")
    assert answer(f"{train} --people patient")["epsilon"] <= 4
    text = (out / "certificate.txt").read_text()
    assert "the types that are people: patient" in text
    assert "declared public, with rows, ids and relations among them: diagnosis (90 rows)" in text
    code, table, _ = run(f"predict {out} --data {ward}")
    assert code == 0
    assert table.splitlines()[1].startswith("P-")
    assert len(table.splitlines()) == 5001
    assert "unit 'edge'" in refused(
        f"train gap --data {ward} --people patient --epsilon 4 --set unit=edge --out {out}2", code=3
    )


def test_a_folder_of_types_is_looked_at(ward, answer, refused, tmp_path):
    shown = answer(f"data show {ward} --people patient")
    assert (shown["num_nodes"], shown["num_features"]) == (5000, 88)
    assert any("declared public" in line for line in shown["public"])
    links = answer(f"data show {ward} --people patient --link takes")
    assert (links["num_sources"], links["num_targets"]) == (5000, 120)
    assert links["relation"] == "patient-takes-drug"
    assert "tables of several types" in refused(f"data store {ward} --out {tmp_path / 'store'}")
    draft = answer(f"data schema {ward} --out {tmp_path / 'schema.toml'}")
    assert draft["to_fill_in"] > 10
