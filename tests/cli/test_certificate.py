"""Certificates on the command line: shown, signed, verified, with the exit codes that say so."""

import json
import shutil

import dp_accounting as dpa
import pytest

from graphveil import runs
from graphveil.data.synthetic import social_network
from graphveil.methods import DPMLP, MLPBaseline, Plan
from graphveil.methods.inference import NOISY, PAID_FOR_PREDICTION
from graphveil.privacy.guarantee import Charge, charges_from_json
from graphveil.privacy.ledger_state import charges_to_json
from graphveil.runs.record import write_certificate

pytest.importorskip("cryptography")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A private run and an open one."""
    folder = tmp_path_factory.mktemp("certified")
    source = runs.Source(data="social")
    arranged = source.arrange(social_network(num_nodes=60, num_classes=3, num_features=5, seed=1))
    quick = DPMLP(epsilon=2.0, steps=2, sample_rate=1.0, centred=False)
    runs.Run(folder / "private").train(quick, source, arranged=arranged)
    runs.Run(folder / "open").train(MLPBaseline(steps=2), source, arranged=arranged)
    return folder


@pytest.fixture
def signed(trained, answer, tmp_path):
    answer(f"certificate key make {tmp_path}/ann.pem")
    line = f"--key {tmp_path}/ann.pem --signer Ann --out {tmp_path}/signed.json"
    answer(f"certificate sign {trained}/private {line}")
    return tmp_path / "signed.json"


def test_a_certificate_is_signed_and_verified(trained, signed, answer, run):
    trusted = f"{signed.parent}/ann.pem.pub"
    result = answer(f"certificate verify {signed} --trusted {trusted} --run {trained}/private")
    certificate = json.loads((trained / "private" / "certificate.json").read_text())
    assert (result["verified"], result["signer"], result["has_weights"]) == (True, "Ann", True)
    assert "settings.json" in result["compared"]
    assert result["not_compared"] == ["environment.json", "log.txt", "metrics.json"]
    assert result["epsilon"] == pytest.approx(certificate["guarantee"]["epsilon"], rel=1e-6)
    public = answer(f"certificate key show {signed.parent}/ann.pem")["public_key"]
    assert answer(f"certificate key show {trusted}")["public_key"] == public
    assert answer(f"certificate verify {signed} --trusted {public}")["public_key"] == public
    shown = answer(f"certificate show {trained}/private")
    assert shown["fingerprint"] == result["fingerprint"]
    assert shown["weights_sha256"] == result["weights_sha256"]
    code, out, _ = run(f"certificate show {trained}/private")
    assert code == 0
    assert "CERTIFICATE OF DIFFERENTIAL PRIVACY" in out
    assert result["fingerprint"] in out


def test_what_was_charged_since_is_said(trained, signed, answer, run, tmp_path):
    """As after 'predict --mode noisy': the epsilon that was signed is not all that was spent."""
    directory = tmp_path / "since"
    shutil.copytree(trained / "private", directory)
    line = f"certificate verify {signed} --trusted {tmp_path}/ann.pem.pub --run {directory}"
    before = answer(line)
    assert before["charged_since"] == 0
    assert "epsilon_now" not in before
    assert "charged since" not in run(line)[1]
    events = json.loads((directory / "events.json").read_text())
    more = Charge(paid_for=PAID_FOR_PREDICTION, event=dpa.GaussianDpEvent(1.0))
    events["charges"] += [json.loads(json.dumps(charges_to_json([more])))[0]] * 2
    events["inference"] = [NOISY]
    (directory / "events.json").write_text(json.dumps(events))
    plan = Plan.from_json(json.loads((directory / "plan.json").read_text())["plan"])
    now = plan.certificate(charges_from_json(events["charges"]), inference=[NOISY])
    write_certificate(directory, now)
    after = answer(line)
    assert after["charged_since"] == 2
    assert after["epsilon"] == before["epsilon"] < after["epsilon_now"]
    assert after["epsilon_now"] == pytest.approx(now.guarantee.epsilon)
    text = " ".join(run(line)[1].split())
    assert f"2 more, by the run's own files. All together: {now.guarantee.epsilon:.4g}" in text


def test_a_certificate_is_signed_again_by_the_next_key(trained, signed, answer, refused, run):
    """What the page says of a key that changes: the same statement, under the new key alone."""
    folder = signed.parent
    answer(f"certificate key make {folder}/next.pem")
    answer(
        f"certificate sign {trained}/private --key {folder}/next.pem --signer Ann "
        f"--out {folder}/again.json"
    )
    old = answer(f"certificate verify {signed} --trusted {folder}/ann.pem.pub")
    new = answer(f"certificate verify {folder}/again.json --trusted {folder}/next.pem.pub")
    assert new["fingerprint"] == old["fingerprint"]
    assert new["public_key"] != old["public_key"]
    line = f"certificate verify {folder}/again.json --trusted {folder}/ann.pem.pub"
    assert "another key than the trusted one" in refused(line, code=3)
    code, out, _ = run(f"certificate verify {signed} --trusted {folder}/ann.pem.pub")
    assert code == 0
    assert "no file can say: ask where you got the key" in out


def test_what_does_not_hold_ends_with_three(trained, signed, refused):
    trusted = f"--trusted {signed.parent}/ann.pem.pub"
    assert "key not trusted" in refused(f"certificate verify {signed}", code=3)
    line = f"certificate verify {signed} {trusted}"
    assert "are others" in refused(f"{line} --run {trained}/open", code=3)
    signed.write_text(signed.read_text().replace('"signer": "Ann"', '"signer": "Bob"'))
    answer = refused(line, code=3)
    assert "does not fit" in answer
    assert "damaged or edited; ask the signer for it again" in answer
    signed.write_text(signed.read_text()[:-40])  # cut short on its way
    assert "damaged or edited" in refused(line)


def test_charges_that_are_not_the_plans_are_not_signed(trained, signed, refused, tmp_path):
    shutil.copytree(trained / "private", tmp_path / "louder")
    events = tmp_path / "louder" / "events.json"
    content = json.loads(events.read_text())
    content["charges"][0]["event"]["event"]["noise_multiplier"] = 1e6
    events.write_text(json.dumps(content))
    plan = Plan.from_json(json.loads((tmp_path / "louder" / "plan.json").read_text())["plan"])
    certificate = plan.certificate(charges_from_json(content["charges"]))
    (tmp_path / "louder" / "certificate.json").write_text(certificate.to_json())
    line = f"certificate sign {tmp_path}/louder --key {tmp_path}/ann.pem --signer Ann"
    assert "not those of the plan" in refused(f"{line} --out {tmp_path}/louder.json", code=3)


def test_bad_input_ends_with_two(trained, signed, refused, tmp_path):
    key = f"--key {tmp_path}/ann.pem --signer Ann"
    assert "exists" in refused(f"certificate sign {trained}/private {key} --out {signed}")
    inside = trained / "private" / "signed.json"
    assert "beside" in refused(f"certificate sign {trained}/private {key} --out {inside}")
    assert not inside.exists()
    out = f"--out {tmp_path}/other.json"
    assert "no finished run" in refused(f"certificate sign {tmp_path}/absent {key} {out}")
    (tmp_path / "ann.pem").chmod(0o644)
    assert "mode 600" in refused(f"certificate sign {trained}/private {key} {out}")
    assert "no signed certificate" in refused(f"certificate verify {tmp_path}/ann.pem.pub")
    assert "cannot be read" in refused(f"certificate verify {tmp_path}/absent")
    assert "never written over" in refused(f"certificate key make {tmp_path}/ann.pem")
    assert "public key" in refused(f"certificate verify {signed} --trusted {tmp_path}/ann.pem")


def test_a_passphrase_may_stand_in_a_file(trained, answer, refused, tmp_path):
    (tmp_path / "word").write_text("open sesame\n")
    (tmp_path / "other").write_text("open barley\n")
    word = f"--passphrase-file {tmp_path}/word"
    assert answer(f"certificate key make {tmp_path}/ann.pem {word}")["passphrase"]
    line = f"certificate sign {trained}/private --key {tmp_path}/ann.pem --signer Ann"
    out = f"--out {tmp_path}/signed.json"
    assert "behind a passphrase" in refused(f"{line} {out}")
    assert "another one" in refused(f"{line} {out} --passphrase-file {tmp_path}/other")
    assert answer(f"{line} {out} {word}")["signer"] == "Ann"


def test_an_open_run_is_signed_as_one_without_a_guarantee(trained, signed, answer):
    key, out = f"--key {signed.parent}/ann.pem", f"{signed.parent}/open.json"
    answer(f"certificate sign {trained}/open {key} --signer Ann --out {out}")
    result = answer(f"certificate verify {out} --trusted {signed.parent}/ann.pem.pub")
    assert result["epsilon"] == "inf"
