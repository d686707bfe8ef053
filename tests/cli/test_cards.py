"""Cards, published folders and citations on the command line."""

import json

import pytest

from graphveil import runs
from graphveil.data.synthetic import social_network
from graphveil.methods import DPMLP, MLPBaseline

yaml = pytest.importorskip("yaml")

FACTS = """
name = "Ward risk"
owner = ["Hospital of Anytown"]
purpose = "To plan beds."
region = "Anytown"
published = 2026-11-19
releases = "One release"
data_source = "Static"
authors = ["Ann"]
license = "mit"
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A private run and an open one."""
    folder = tmp_path_factory.mktemp("carded")
    source = runs.Source(data="social")
    arranged = source.arrange(social_network(num_nodes=60, num_classes=3, num_features=5, seed=1))
    quick = DPMLP(epsilon=2.0, steps=2, sample_rate=1.0, centred=False)
    runs.Run(folder / "private").train(quick, source, arranged=arranged)
    runs.Run(folder / "open").train(MLPBaseline(steps=2), source, arranged=arranged)
    return folder


@pytest.fixture
def facts(tmp_path):
    path = tmp_path / "owner.toml"
    path.write_text(FACTS)
    return path


def test_a_card_is_written_or_printed(trained, facts, answer, run, tmp_path):
    out = tmp_path / "ward.yaml"
    result = answer(f"card {trained}/private --facts {facts} --out {out}")
    record = yaml.safe_load(out.read_text())
    assert record == result["card"]
    assert record["url_slug"] == "ward_risk"
    assert result["missing"] == []
    code, text, err = run(f"card {trained}/private --facts {facts}")
    assert (code, err) == (0, "")
    assert yaml.safe_load(text) == record
    code, text, _ = run(f"card {trained}/private --facts {facts} --region Elsewhere")
    assert yaml.safe_load(text)["deployment"]["basic"]["data_product_region"] == "Elsewhere"


def test_a_card_without_its_owner_is_a_draft(trained, answer, refused, tmp_path):
    line = f"card {trained}/private"
    err = refused(line)
    for name in ("name", "owner", "purpose", "region", "published", "authors"):
        assert f"{name} (" in err
    assert "name" in answer(f"{line} --draft")["missing"]
    assert "not private" in refused(f"card {trained}/open --draft", code=3)
    assert ".yaml" in refused(f"{line} --draft --out {tmp_path}/Card.yml")
    (tmp_path / "card.yaml").write_text("")
    assert "exists" in refused(f"{line} --draft --out {tmp_path}/card.yaml")
    assert "cannot be read" in refused(f"{line} --facts {tmp_path}/absent.toml")


def test_a_folder_is_published(trained, facts, answer, refused, tmp_path):
    out = tmp_path / "ward"
    result = answer(f"publish {trained}/private --facts {facts} --out {out}")
    assert sorted(path.name for path in out.iterdir()) == result["files"]
    assert not result["metrics_shown"]
    assert "new folder" in refused(f"publish {trained}/private --facts {facts} --out {out}")
    other = f"--out {tmp_path}/other"
    assert "license" in refused(f"publish {trained}/private {other}")
    assert "--open" in refused(f"publish {trained}/open --license mit {other}", code=3)
    assert answer(f"publish {trained}/open --license mit {other} --open")["epsilon"] == "inf"
    line = f"publish {trained}/private --license mit --out {tmp_path}/third"
    assert "together" in refused(f"{line} --signer Ann")


def test_a_published_folder_may_be_signed(trained, facts, answer, tmp_path):
    pytest.importorskip("cryptography")
    answer(f"certificate key make {tmp_path}/ann.pem")
    out = tmp_path / "ward"
    line = f"publish {trained}/private --facts {facts} --out {out}"
    answer(f"{line} --key {tmp_path}/ann.pem --signer Ann")
    signed = out / "certificate.signed.json"
    verify = f"certificate verify {signed} --trusted {tmp_path}/ann.pem.pub --run {out}"
    assert answer(verify)["has_weights"]


def test_methods_are_cited(answer, run, refused):
    assert list(answer("cite gap")["papers"]) == ["sajadmanesh2023", "shpilevskiy"]
    assert answer("cite")["papers"] == {}
    code, out, _ = run("cite dpar")
    assert code == 0
    assert out == answer("cite dpar")["bibtex"]
    assert "'method'" in refused("cite gpa")
    assert json.loads(run("cite --json")[1])["library"]["title"] == "graphveil"
