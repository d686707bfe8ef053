"""A published folder: every file in it, what is not, and who is refused one."""

import json
import os
import re
import shutil
import struct
from dataclasses import replace

import pytest

import graphveil
from graphveil import InvalidInputError, UnprovenError, VerificationError, runs
from graphveil.audit import results
from graphveil.data.synthetic import social_network
from graphveil.methods import DPMLP
from graphveil.privacy import signing
from graphveil.privacy.ledger import Ledger
from graphveil.report import deployment, evidence, model_folder, officer, statement
from graphveil.report.owner import Owner
from graphveil.runs.record import write_certificate

yaml = pytest.importorskip("yaml")

FILES = {
    "README.md",
    "certificate.json",
    "certificate.md",
    "certificate.txt",
    "config.json",
    "events.json",
    "model.safetensors",
    "plan.json",
    "settings.json",
}
OWNER = Owner(license="mit", name="Risk: ward 3")
SECRET_PATH = "/home/ann-the-analyst/ward-3.npz"


def publish(run, out, owner=OWNER, **how):
    folder = model_folder.build(run, owner, **how)
    model_folder.write(folder, out)
    return folder


def front_matter(folder):
    _, matter, _ = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(matter)


@pytest.mark.parametrize("name", ["one", "eight", "parts", "edge", "claimed"])
def test_a_folder_holds_these_files_and_is_read_as_a_run(name, read, trained, tmp_path):
    run, out = read(name), tmp_path / "out"
    publish(run, out)
    assert {path.name for path in out.iterdir()} == FILES
    method = graphveil.read(out)
    original = graphveil.read(trained / name)
    assert method.certificate_.charges == original.certificate_.charges
    assert method.certificate_.guarantee.epsilon == pytest.approx(run.epsilon)
    weights, expected = (m.network_.state_dict() for m in (method, original))
    assert all(weights[key].equal(expected[key]) for key in expected)
    assert statement.weights_of(out) == run.weights_sha256
    for hub in (".gitattributes", ".cache"):
        (out / hub).mkdir()
    assert graphveil.read(out).name == method.name


def test_a_folder_predicts_as_the_run_does(read, trained, tmp_path):
    publish(read("eight"), tmp_path / "out")
    data = social_network(num_nodes=90, num_classes=3, num_features=5, seed=1)
    folder, run = graphveil.read(tmp_path / "out"), graphveil.read(trained / "eight")
    assert (folder.predict(data) == run.predict(data)).all()
    assert folder.class_names_ == run.class_names_


def test_noisy_sums_stay_and_predictions_that_read_them_are_refused(read, trained, tmp_path):
    assert (trained / "parts" / "cache.safetensors").exists()
    publish(read("parts"), tmp_path / "out")
    data = social_network(num_nodes=90, num_classes=3, num_features=5, seed=1)
    with pytest.raises(InvalidInputError, match="published model has not"):
        graphveil.read(tmp_path / "out").predict(data)


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """A run on data that can be told apart, charged to a ledger, and all of its secret bits."""
    drawn, real = [], os.urandom

    def watch(count):
        drawn.append(real(count))
        return drawn[-1]

    monkeypatch.setattr(os, "urandom", watch)
    data = social_network(num_nodes=90, num_classes=3, num_features=5, seed=1)
    data.x = data.x + 0.123456789
    data.class_names = ["cats", "dogs", "elks"]
    monkeypatch.setattr(runs.Source, "load", lambda self: data.clone())
    Ledger(tmp_path / "study.ledger").open("ward-3-people", 8.0, 1e-6)
    directory = tmp_path / "run"
    method = DPMLP(epsilon=1.0, steps=3, sample_rate=0.5, centred=False)
    source = runs.Source(data=SECRET_PATH, root="/raw/ward-3")
    run = runs.Run(directory)
    how = {"ledger": tmp_path / "study.ledger", "account": "ward-3-people"}
    run.train(method, source, private_losses=True, **how)
    monkeypatch.undo()
    return directory, data, b"".join(drawn)


def test_nothing_private_leaks(watched, tmp_path):
    directory, data, secret = watched
    run = evidence.read(str(directory))
    out = tmp_path / "out"
    publish(run, out)
    assert {path.name for path in out.iterdir()} == FILES
    contents = {path.name: path.read_bytes() for path in out.iterdir()}
    everything = b"\n".join(contents.values())
    ledger = json.loads((directory / "ledger.json").read_text())
    words = [
        SECRET_PATH, "/home", "ann-the-analyst", "/raw", str(tmp_path), "ward-3-people",
        "study.ledger", str(ledger["ledger"]), str(ledger["account"]), "accuracy", "confusion",
        "baseline", "fingerprint",
    ]  # fmt: skip
    for word in words:
        assert word.encode() not in everything, word
    assert runs.Run(out).was_charged()  # so that a noisy prediction asks for the ledger
    # No figure of a test record, in any file.
    metrics = json.loads((directory / "metrics.json").read_text())
    measured = [v for v in metrics.values() if isinstance(v, float) and len(repr(v)) > 8]
    assert len(measured) > 3
    for value in measured:
        assert repr(value).encode() not in everything
    losses = (directory / "private-losses.jsonl").read_text().splitlines()
    assert losses
    for loss in losses:
        for value in json.loads(loss).values():
            long = isinstance(value, float) and len(repr(value)) > 8
            assert not long or repr(value).encode() not in everything
    # No value of a row, as text or as a float of either length.
    for value in data.x.flatten().tolist():
        for form in (f"{value:.5f}".encode(), struct.pack("<d", value)):
            assert form not in everything
    for row in data.x.tolist():
        assert struct.pack("<2f", *row[:2]) not in everything
    # No eight bytes in a row of what the secret stream drew.
    assert len(secret) > 1000
    bits = {secret[place : place + 8] for place in range(0, len(secret) - 8, 8)}
    published = {everything[place : place + 8] for place in range(len(everything) - 8)}
    assert not bits & published
    # The search finds what is there.
    assert b"model_sha256" in everything
    assert (directory / "settings.json").read_bytes().count(SECRET_PATH.encode()) == 1


def test_metrics_are_shown_where_somebody_says_why(read, tmp_path):
    run = read("eight")
    publish(run, tmp_path / "without")
    assert "metrics" not in front_matter(tmp_path / "without")
    assert "## Figures" not in (tmp_path / "without" / "README.md").read_text()
    folder = publish(run, tmp_path / "with", metrics_public="the labels are on a public site")
    assert folder.metrics_shown
    matter = front_matter(tmp_path / "with")
    (results,) = matter["model-index"][0]["results"]
    shown = {item["type"]: item["value"] for item in results["metrics"]}
    assert shown["accuracy"] == run.metrics["accuracy"]
    assert matter["metrics"] == list(shown)
    text = (tmp_path / "with" / "README.md").read_text()
    assert "declared public: the labels are on a public site" in text


def test_a_score_that_was_charged_is_shown(read, tmp_path):

    run = read("one")
    assert run.charged_score is None
    released = f"{run.certificate.released}, the chosen settings and their noisy validation score"
    tuned = replace(
        run,
        tuned=True,
        certificate=replace(run.certificate, released=released),
        metrics={**run.metrics, "validation_accuracy": 0.71828},
    )
    assert tuned.charged_score == 0.71828
    publish(tuned, tmp_path / "out")
    assert "0.7183" in (tmp_path / "out" / "README.md").read_text()
    # Settings that were chosen on public data release no score of these people.
    public = replace(tuned, certificate=run.certificate)
    assert public.charged_score is None


def test_the_front_matter_is_what_the_hub_reads(read, tmp_path):
    publish(read("one"), tmp_path / "out")
    matter = front_matter(tmp_path / "out")
    assert matter["library_name"] == "graphveil"
    assert matter["license"] == "mit"
    assert matter["pipeline_tag"] == "graph-ml"
    assert {"differential-privacy", "graphveil", "dp-mlp"} <= set(matter["tags"])
    text = (tmp_path / "out" / "README.md").read_text()
    assert "# Risk: ward 3" in text
    assert str(read("one").certificate.guarantee) in text
    for line in read("one").certificate.membership_lines():
        assert line in text


@pytest.mark.parametrize("name,why", [("void", "void"), ("mlp", "not private")])
def test_what_promises_nothing_is_published_only_in_the_open(name, why, read, tmp_path):
    run = read(name)
    with pytest.raises(UnprovenError, match=f"is {why}.*--open"):
        model_folder.build(run, OWNER)
    publish(run, tmp_path / "out", in_the_open=True)
    matter = front_matter(tmp_path / "out")
    assert "differential-privacy" not in matter["tags"]
    text = (tmp_path / "out" / "README.md").read_text()
    assert text.index("No privacy guarantee") < text.index("##")
    assert "trained with differential privacy" not in text
    assert "## Privacy" not in text


def test_an_owner_and_their_records_have_the_words_of_the_certificate(read, tmp_path):
    run = read("one")
    guarantee = replace(
        run.certificate.guarantee, unit="owner", owner="patient", record="recording"
    )
    owned = replace(run, certificate=replace(run.certificate, guarantee=guarantee))
    publish(owned, tmp_path / "out")
    facts = {"purpose": "x", "region": "Germany", "published": "2026-11-19", "owner": ("Ann",)}
    facts |= {"authors": ("Ann",), "releases": "One release", "data_source": "Static"}
    pages = [
        (tmp_path / "out" / "README.md").read_text(),
        str(deployment.card(owned, replace(OWNER, **facts))),
        officer.render(owned, OWNER, day="2026-11-19"),
    ]
    for page in pages:
        assert "one patient with every recording of theirs" in page
        assert "every record of theirs" not in page


def test_weights_that_are_not_for_everybody_are_not_published(read):
    run = read("one")
    few = replace(run, certificate=replace(run.certificate, released_to="the owner"))
    with pytest.raises(UnprovenError, match="to nobody else"):
        model_folder.build(few, OWNER)


@pytest.fixture
def key(tmp_path):
    pytest.importorskip("cryptography")
    signing.make_key(tmp_path / "ann.pem")
    return signing.read_private_key(tmp_path / "ann.pem")


@pytest.fixture
def sign(key):
    return lambda content: signing.sign(content, key, signer="Ann", date="today")


def test_a_signed_certificate_comes_with_it_and_is_verified(read, trained, sign, key, tmp_path):
    run, out = read("one"), tmp_path / "out"
    publish(run, out, sign=sign)
    assert {path.name for path in out.iterdir()} == {*FILES, "certificate.signed.json"}
    file = signing.read_signed(out / "certificate.signed.json")
    (out / ".gitattributes").write_text("")
    verified = statement.verify(file, key.public_key(), out)
    assert set(verified.compared) == FILES - {"model.safetensors"}
    assert verified.not_compared == (".gitattributes",)
    assert verified.fingerprint == statement.fingerprint_of(run)
    assert "settings.json" in statement.verify(file, key.public_key(), trained / "one").compared
    assert file.public_key in (out / "README.md").read_text()
    assert b"PRIVATE" not in b"".join(path.read_bytes() for path in out.iterdir())
    assert graphveil.read(out).name == run.method


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_of_a_signed_folder_that_was_altered_is_refused(name, read, sign, key, tmp_path):
    out = tmp_path / "out"
    publish(read("one"), out, sign=sign)
    file = signing.read_signed(out / "certificate.signed.json")
    content = (out / name).read_bytes()
    for other in (content + b" ", None):
        (out / name).unlink()
        if other is not None:
            (out / name).write_bytes(other)
        with pytest.raises((VerificationError, InvalidInputError), match=f"{name}|The weights"):
            statement.verify(file, key.public_key(), out)
        (out / name).write_bytes(content)
    (out / "cache.safetensors").write_bytes(b"")
    with pytest.raises(VerificationError, match="not among the files"):
        statement.verify(file, key.public_key(), out)


@pytest.mark.parametrize("edit", ["nothing", "settings.json", "extra"])
def test_a_signed_folder_without_its_card_is_no_run(edit, read, sign, key, tmp_path):
    """Whoever takes away the card does not switch off the comparison of files."""
    out = tmp_path / "out"
    publish(read("one"), out, sign=sign)
    file = signing.read_signed(out / "certificate.signed.json")
    for name in ("README.md", "config.json", "certificate.signed.json"):
        (out / name).unlink()
    if edit == "settings.json":
        change_settings = json.loads((out / edit).read_text())
        change_settings["data"]["data"] = "cora"  # which no hash but the file's is about
        (out / edit).write_text(json.dumps(change_settings))
    if edit == "extra":
        (out / "load.py").write_text("print('hello')")
    with pytest.raises(VerificationError, match=r"than were signed: README\.md is missing"):
        statement.verify(file, key.public_key(), out)


def test_what_is_not_compared_is_named(read, trained, sign, key, tmp_path):
    run, out = read("one"), tmp_path / "out"
    publish(run, out, sign=sign)
    file = signing.read_signed(out / "certificate.signed.json")
    assert statement.verify(file, key.public_key(), out).not_compared == ()
    (out / ".cache").mkdir()
    (out / ".cache" / "load.py").write_text("")
    (out / ".gitattributes").write_text("* filter=load")
    # Another certificate than the one that is verified: signed by another key.
    signing.make_key(tmp_path / "eve.pem")
    eve = signing.read_private_key(tmp_path / "eve.pem")
    forged = signing.sign(statement.statement_of(run), eve, signer="Ann", date="today")
    (out / "certificate.signed.json").write_text(json.dumps(forged))
    verified = statement.verify(file, key.public_key(), out)
    assert verified.not_compared == (".cache", ".gitattributes", "certificate.signed.json")
    # Of a run every file but those that the statement is about.
    shutil.copytree(trained / "one", tmp_path / "run")
    (tmp_path / "run" / "a\x1b[2Jb").write_text("")
    verified = statement.verify(file, key.public_key(), tmp_path / "run")
    others = {r"'a\x1b[2Jb'", "environment.json", "log.txt", "metrics.json"}
    assert set(verified.not_compared) == others


def test_noisy_sums_and_audits_of_a_run_are_not_signed(read, trained, sign, key, tmp_path):
    out, path = tmp_path / "run", tmp_path / "signed.json"
    shutil.copytree(trained / "parts", out)
    path.write_text(json.dumps(sign(statement.statement_of(read("parts")))))
    file = signing.read_signed(path)
    results.write(out / "audit.json", [results.Finding(kind="replay", name="all", holds=True)])
    verified = statement.verify(file, key.public_key(), out)
    assert {"audit.json", "cache.safetensors"} <= set(verified.not_compared)
    assert "events.json" in verified.compared
    (out / "cache.safetensors").write_bytes(b"other sums")
    with pytest.raises(VerificationError, match="SHA-256 of cache"):
        statement.verify(file, key.public_key(), out)
    (out / "cache.safetensors").unlink()
    with pytest.raises(VerificationError, match="SHA-256 of cache"):
        statement.verify(file, key.public_key(), out)


def swap(directory, name, old, new):
    text = (directory / name).read_text()
    assert old in text
    (directory / name).write_text(text.replace(old, new))


@pytest.mark.parametrize(
    "name,old,new",
    [
        ("settings.json", '"cats"', '"cows"'),
        ("certificate.txt", "differential privacy", "any privacy"),
        ("certificate.md", "differential privacy", "any privacy"),
        ("certificate.json", '"withhold"', '"remove"'),
        ("events.json", '"count": 3', '"count": 2'),
        ("plan.json", "model weights", "a model"),
    ],
)
@pytest.mark.parametrize("bare", [False, True])
def test_what_a_run_says_is_compared_too(bare, name, old, new, read, trained, sign, key, tmp_path):
    """Of a run, and of a folder whose card and config were taken away."""
    run, out = read("one"), tmp_path / "out"
    if bare:
        publish(run, out, sign=sign)
        for extra in ("README.md", "config.json"):
            (out / extra).unlink()
    else:
        shutil.copytree(trained / "one", out)
    path = tmp_path / "signed.json"
    path.write_text(json.dumps(sign(statement.statement_of(run))))
    file = signing.read_signed(path)
    compared = {"plan.json", "settings.json", "events.json"}
    compared |= {"certificate.txt", "certificate.md", "certificate.json"}
    assert set(statement.verify(file, key.public_key(), out).compared) == compared
    swap(out, name, old, new)
    with pytest.raises(VerificationError, match="are others than the certificate is about"):
        statement.verify(file, key.public_key(), out)


def test_files_that_an_older_statement_does_not_name_are_said_to_be_unsigned(
    read, sign, key, tmp_path
):
    out = tmp_path / "out"
    publish(read("one"), out)
    content = statement.statement_of(read("one"))
    del content["run"]["settings_sha256"]
    (tmp_path / "old.json").write_text(json.dumps(sign(content)))
    verified = statement.verify(signing.read_signed(tmp_path / "old.json"), key.public_key(), out)
    assert set(verified.not_compared) == {"README.md", "config.json", "settings.json"}
    assert "plan.json" in verified.compared


@pytest.mark.parametrize("text", ["", "a b", "MIT License", "mit\nx", "a" * 80, None])
def test_a_licence_is_stated_as_an_identifier(text, read):
    with pytest.raises(InvalidInputError, match="license"):
        model_folder.build(read("one"), Owner(license=text))


def test_text_of_an_owner_stays_on_its_line(read, tmp_path):
    owner = Owner(license="mit", name="A\n# B", purpose="x\n\n## C\n<script>")
    publish(read("one"), tmp_path / "out", owner)
    lines = (tmp_path / "out" / "README.md").read_text().splitlines()
    assert "# A # B" in lines
    assert "## C" not in lines
    assert not any("<script>" in line for line in lines)


def test_a_run_that_calls_itself_void_is_not_the_one_that_was_signed(
    read, copied, sign, key, tmp_path
):
    path = tmp_path / "signed.json"
    path.write_text(json.dumps(sign(statement.statement_of(read("one")))))
    directory, change = copied("one")
    change("events.json", lambda c: c.update(void_because=["a reason"]))
    certificate = read("one").plan.certificate(
        read("one").certificate.charges, void_because=["a reason"]
    )
    write_certificate(directory, certificate)
    with pytest.raises(VerificationError, match="void_because is"):
        statement.verify(signing.read_signed(path), key.public_key(), directory)


def test_text_of_an_owner_is_text(read, tmp_path):
    link = "[see here](javascript:alert(1)) ![x](https://a.example/p.png) `code` **bold** a_b \\["
    owner = Owner(license="mit", name=f"Risk {link}", purpose=link, description=f"# {link}")
    publish(read("one"), tmp_path / "out", owner, metrics_public=link)
    _, _, text = (tmp_path / "out" / "README.md").read_text().split("---\n", 2)
    plain = "see here\\](javascript"
    assert text.count(plain) == 4
    assert not re.search(r"(?<!\\)\[see", text)
    assert not re.search(r"(?<!\\)\[x\]", text)
    assert "\\`code\\` \\*\\*bold\\*\\* a\\_b \\\\\\[" in text
    assert "\n\\# \\[see here" in text
    markdown = pytest.importorskip("markdown_it").MarkdownIt().render(text)
    assert "alert(1)" in markdown
    assert 'href="javascript' not in markdown
    assert "<img" not in markdown


def test_a_card_names_the_sections_of_the_certificate(read, tmp_path):
    publish(read("one"), tmp_path / "out")
    card, certificate = (
        (tmp_path / "out" / f).read_text() for f in ("README.md", "certificate.md")
    )
    for heading in re.findall(r"under \*(.+?)\*", card):
        assert f"## {heading}\n" in certificate
    assert len(re.findall(r"under \*(.+?)\*", card)) == 2


def test_a_folder_is_written_whole_or_not_at_all(read, tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    publish(read("one"), out)  # an empty folder will do
    with pytest.raises(InvalidInputError, match="new folder"):
        publish(read("one"), out)
    with pytest.raises(InvalidInputError, match="no directory"):
        publish(read("one"), tmp_path / "absent" / "out")
    real = model_folder.write_file

    def fail(path, content):
        if path.name == "model.safetensors":
            raise OSError(28, "No space left on device")
        real(path, content)

    monkeypatch.setattr(model_folder, "write_file", fail)
    with pytest.raises(InvalidInputError, match="No space left"):
        publish(read("one"), tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
