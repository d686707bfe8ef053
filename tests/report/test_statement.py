"""What is signed of a run, what is not, and what verification finds."""

import json
from pathlib import Path

import pytest

from graphveil import InvalidInputError, VerificationError
from graphveil.privacy import signing
from graphveil.report import evidence, statement

pytest.importorskip("cryptography")


@pytest.fixture
def key(tmp_path):
    signing.make_key(tmp_path / "ann.pem")
    return signing.read_private_key(tmp_path / "ann.pem")


@pytest.fixture
def signing_of(key, tmp_path):
    """A signed file of a statement, perhaps edited before it is signed."""

    def call(content, edit=lambda content: None):
        content = json.loads(json.dumps(content))
        edit(content)
        path = tmp_path / "signed.json"
        path.write_text(json.dumps(signing.sign(content, key, signer="Ann", date="today")))
        return signing.read_signed(path)

    return call


@pytest.mark.parametrize("name", ["one", "eight", "parts", "edge", "claimed", "void", "mlp"])
def test_what_is_signed_of_a_run_is_verified(name, read, trained, signing_of, key):
    run = read(name)
    content = statement.statement_of(run)
    verified = statement.verify(signing_of(content), key.public_key(), trained / name)
    assert verified.certificate.guarantee == run.certificate.guarantee
    assert verified.certificate.charges == run.certificate.charges
    assert (verified.method, verified.signer, verified.has_weights) == (run.method, "Ann", True)
    assert verified.fingerprint == statement.fingerprint_of(run)
    weights = trained / name / "model.safetensors"
    assert statement.verify(signing_of(content), key.public_key(), weights).has_weights
    assert not statement.verify(signing_of(content), key.public_key()).has_weights


def test_weights_of_another_run_are_refused(read, trained, signing_of, key):
    signed = signing_of(statement.statement_of(read("one")))
    with pytest.raises(VerificationError, match="are others"):
        statement.verify(signed, key.public_key(), trained / "eight")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        statement.verify(signed, key.public_key(), trained / "absent")


def halve(content, *names):
    """Halve a figure of the certificate."""
    *places, last = names
    for name in ("certificate", *places):
        content = content[name]
    content[last] /= 2


@pytest.mark.parametrize(
    "edit,why",
    [
        (lambda c: halve(c, "guarantee", "epsilon"), "epsilon is"),
        (lambda c: halve(c, "guarantee", "delta"), "delta is"),
        (lambda c: halve(c, "pld"), "pld is"),
        (lambda c: halve(c, "rdp"), "rdp is"),
        (lambda c: halve(c, "largest_tpr", "0.001"), "largest_tpr at 0.001"),
        (lambda c: halve(c, "largest_tpr", "0.01"), "largest_tpr at 0.01"),
        (lambda c: c["certificate"].pop("largest_tpr"), "largest_tpr"),
        (lambda c: c["certificate"]["charges"].pop(), "is"),
        (lambda c: c["certificate"].update(released_to="everybody"), "released_to"),
        (lambda c: c["certificate"].update(void_because=["a reason"]), "epsilon is"),
        (lambda c: c["certificate"]["guarantee"].update(unit="edge-directed"), "unit is"),
        (lambda c: c["run"].update(method="dp-gnn"), "method is"),
    ],
)
def test_a_signer_cannot_state_what_the_charges_do_not_bear_out(edit, why, read, signing_of, key):
    signed = signing_of(statement.statement_of(read("parts")), edit)
    with pytest.raises(VerificationError, match=f"does not follow from its charges: .*{why}"):
        statement.verify(signed, key.public_key())


@pytest.mark.parametrize("name", ["certificate", "run", "weights_sha256"])
def test_a_statement_that_lacks_a_part_is_refused(name, read, signing_of, key):
    signed = signing_of(statement.statement_of(read("one")), lambda content: content.pop(name))
    with pytest.raises(InvalidInputError, match="cannot be read by this version"):
        statement.verify(signed, key.public_key())


def test_the_largest_rates_of_membership_tests_are_in_it(read):
    run = read("one")
    rates = statement.statement_of(run)["certificate"]["largest_tpr"]
    assert rates == {f"{fpr:g}": tpr for fpr, tpr in run.certificate.largest_tpr.items()}
    assert set(rates) == {"0.001", "0.01"}
    assert all(float(fpr) < tpr < 1 for fpr, tpr in rates.items())


def test_no_path_and_no_metric_is_in_it(copied, read):
    directory, change = copied("eight")
    metrics = read("eight").metrics
    change("settings.json", lambda c: c["data"].update(data="/home/ann/ward-3.csv", root="/raw"))
    content = statement.statement_of(evidence.read(str(directory)))
    text = json.dumps(content)
    assert content["run"]["data"]["name"] is None
    for secret in ("ward-3", "/home", "/raw", str(directory), Path(directory).name, "accuracy"):
        assert secret not in text
    assert repr(metrics["accuracy"]) not in text
    assert statement.statement_of(read("eight"))["run"]["data"]["name"] == "social"


def test_the_same_run_has_the_same_fingerprint_wherever_it_lies(copied, read):
    directory, _ = copied("one", to="elsewhere")
    moved = evidence.read(str(directory))
    assert statement.fingerprint_of(moved) == statement.fingerprint_of(read("one"))
    assert statement.fingerprint_of(read("eight")) != statement.fingerprint_of(read("one"))
