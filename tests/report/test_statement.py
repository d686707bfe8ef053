"""What is signed of a run, what is not, and what verification finds."""

import json
from pathlib import Path

import dp_accounting as dpa
import pytest

from graphveil import InvalidInputError, VerificationError
from graphveil.methods import Plan
from graphveil.methods.inference import NOISY, PAID_FOR_PREDICTION
from graphveil.privacy import signing
from graphveil.privacy.guarantee import Charge, charges_from_json
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
        (lambda c: c["certificate"]["guarantee"].update(owner="clinic", record="bed"), "owner is"),
        (lambda c: c["certificate"].update(public=[]), "public is"),
        (lambda c: c["certificate"].update(unprotected=["some rows"]), "unprotected is"),
        (lambda c: c["certificate"].update(voided_by=[]), "voided_by is"),
        (lambda c: c["certificate"].update(vouched=["somebody"]), "vouched is"),
        (lambda c: c["certificate"].update(inference=[]), "inference is"),
        (lambda c: c["certificate"]["inference"].append("noisy: for all"), "inference has"),
        (lambda c: c["certificate"].update(notes=["by itself: epsilon 0.1"]), "notes is"),
        (lambda c: c["certificate"].update(epsilon=0.1), "unknown in certificate"),
        (lambda c: c.update(epsilon=0.1), "what is unknown is"),
        (lambda c: c["run"].update(epsilon=0.1), "unknown in run"),
        (lambda c: c.update(folder=5), "folder must be"),
        (lambda c: c["run"].update(status="proven by all"), "status is"),
        (lambda c: c["run"].update(settings_tuned=True), "settings_tuned is"),
        (lambda c: c["run"]["data"].update(num_nodes=10**9), "data is"),
        (lambda c: part(c, "release")["mechanism"].update(noise_multiplier=0.1), "plan makes it"),
        (lambda c: part(c, "steps").update(count=10**5), "the plan has"),
        (lambda c: part(c, "steps").update(removed=0, altered=1), "plan makes it"),
    ],
)
def test_a_signer_cannot_state_what_the_charges_do_not_bear_out(edit, why, read, signing_of, key):
    signed = signing_of(statement.statement_of(read("parts")), edit)
    with pytest.raises(VerificationError, match=f"does not follow from its charges.*{why}"):
        statement.verify(signed, key.public_key())


def part(content, kind):
    """The first part of that kind in the plan."""
    return next(part for part in content["run"]["plan"]["parts"] if part["kind"] == kind)


def certified(content, edit):
    """A certificate made anew from an edited plan, so that it agrees with it."""
    plan, certificate = content["run"]["plan"], content["certificate"]
    edit(plan)
    charges = charges_from_json(certificate["charges"])
    again = Plan.from_json(plan).certificate(charges)
    content["certificate"] = json.loads(again.to_json())


def cut(content):
    del content["certificate"]["charges"][1:]
    certified(content, lambda plan: None)


def quieten(content):
    """Call the run one of many trials, for which other charges stand, and make them small."""
    content["certificate"]["charges"][0]["event"] = {
        "type": "GaussianDpEvent",
        "noise_multiplier": 1e3,
    }
    del content["certificate"]["charges"][1:]
    content["run"]["settings_tuned"] = True
    certified(content, lambda plan: plan.update(tuned=True))


@pytest.mark.parametrize(
    "edit,why",
    [
        (quieten, "for all trials"),
        (lambda c: certified(c, lambda plan: plan.update(unit="graph")), "unit is 'graph'"),
        (lambda c: certified(c, lambda plan: plan.update(unit="owner")), "unit is 'owner'"),
        (lambda c: certified(c, lambda plan: plan.update(delta=0.02)), "delta must be below"),
        (lambda c: certified(c, lambda plan: plan.update(inference=[])), "inference is empty"),
        (cut, "the plan has"),
        (
            lambda c: (c["run"].update(method="best"), c["run"]["plan"].update(method="best")),
            "no method 'best'",
        ),
        (
            lambda c: (c["run"].update(method="mlp"), c["run"]["plan"].update(method="mlp")),
            "must be|unexpected|setting",
        ),
    ],
)
def test_a_signer_cannot_state_what_no_method_does(edit, why, read, signing_of, key):
    signed = signing_of(statement.statement_of(read("parts")), edit)
    with pytest.raises(VerificationError, match=f"does not follow from its charges.*{why}"):
        statement.verify(signed, key.public_key())


def test_a_prediction_that_was_charged_since_is_verified(read, signing_of, key):
    def edit(content):
        plan = Plan.from_json(content["run"]["plan"])
        charges = charges_from_json(content["certificate"]["charges"])
        more = Charge(paid_for=PAID_FOR_PREDICTION, event=dpa.GaussianDpEvent(9.0))
        again = plan.certificate([*charges, more], inference=[NOISY])
        content["certificate"] = json.loads(again.to_json())

    signed = signing_of(statement.statement_of(read("parts")), edit)
    verified = statement.verify(signed, key.public_key())
    assert verified.certificate.charges[-1].paid_for == PAID_FOR_PREDICTION
    assert verified.certificate.guarantee.epsilon > read("parts").epsilon


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
    # A name that the catalog knows, of data with other sizes than it knows.
    assert statement.statement_of(read("eight"))["run"]["data"]["name"] is None


def test_the_same_run_has_the_same_fingerprint_wherever_it_lies(copied, read):
    directory, _ = copied("one", to="elsewhere")
    moved = evidence.read(str(directory))
    assert statement.fingerprint_of(moved) == statement.fingerprint_of(read("one"))
    assert statement.fingerprint_of(read("eight")) != statement.fingerprint_of(read("one"))
