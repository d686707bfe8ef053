"""The officer's page: no accuracy, no figure but the certificate's, and what may go to whom."""

import json
import math
import re
import stat
from dataclasses import replace

import pytest
from report_html import assert_only_our_own, parse

from graphveil import InvalidInputError, cli, runs
from graphveil.audit.results import Finding
from graphveil.data.synthetic import social_network
from graphveil.methods import DPMLP
from graphveil.privacy.guarantee import round_up
from graphveil.privacy.ledger import Ledger
from graphveil.privacy.ledger_state import Promise as Promised
from graphveil.report import growth, officer, page, statement, wording
from graphveil.report.owner import Owner

DAY = "2026-11-19"
OWNER = Owner(name="Ward risk", owner=("Hospital of Anytown",), purpose="To plan beds.")
PRIVATE = ("one", "eight", "parts", "edge", "claimed")


@pytest.fixture
def shown(read):
    """The page of a run by its name, as a tree, perhaps with other evidence."""

    def call(name, owner=OWNER, **how):
        changed = {
            key: how.pop(key) for key in list(how) if key not in ("growth", "metrics_public")
        }
        run = replace(read(name), **changed)
        return parse(officer.render(run, owner, day=DAY, **how))

    return call


def numbers(text):
    """Every number in a text, as it is written; parts of words count as well."""
    return set(re.findall(r"\d[\d.,]*\d|\d", text.replace("\N{NO-BREAK SPACE}", " ")))


def percent(share):
    """As the text of an element has it: with a plain blank."""
    return wording.percent(share).replace("\N{NO-BREAK SPACE}", " ")


def body(tree):
    return tree.one("main").text


# --- figures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRIVATE)
def test_every_number_is_the_certificates(name, shown, read):
    run = read(name)
    certificate, guarantee = run.certificate, run.certificate.guarantee
    promised = officer.promise("x", run)
    allowed = numbers(str(certificate))  # with both rates, rounded up
    allowed |= numbers(f"{round_up(guarantee.epsilon)} {guarantee.delta:g}")
    words = (promised.most, promised.factor or "", promised.content or "")
    for text in (*words, wording.one_in(guarantee.delta), promised.strength):
        allowed |= numbers(text)
    allowed |= numbers(f"50 {run.facts.num_nodes:,} {DAY} SHA-256 800-226 {run.method}")
    allowed |= numbers(f"{statement.fingerprint_of(run)} {run.weights_sha256}")
    assert numbers(body(shown(name))) <= allowed


MEASURED = 0.61731  # no figure of a certificate here looks like it
FORMS = (repr(MEASURED), "0.6173", "0.617", percent(MEASURED), "61.73", "62 %")


def with_measured(run):
    """The metrics of a run, each score the same one, which can be looked for."""
    shares = [MEASURED] * len(run.metrics["class_accuracy"])
    scores = {key: MEASURED for key, value in run.metrics.items() if isinstance(value, float)}
    return {**run.metrics, **scores, "class_accuracy": shares}


@pytest.mark.parametrize("name", [*PRIVATE, "void", "mlp"])
def test_no_accuracy_is_on_it(name, shown, read):
    text = body(shown(name, metrics=with_measured(read(name))))
    for form in FORMS:
        assert form not in text
    for word in ("accuracy", "F1", "AUC", "confusion", "learnt"):
        assert word not in text


def test_the_search_for_accuracies_finds_them(read):
    run = replace(read("eight"), metrics=with_measured(read("eight")))
    text = parse(page.render([run])).one("main").text
    assert percent(MEASURED) in text
    assert "0.617" in text
    assert "accuracy" in text


def test_scores_that_somebody_declares_public_are_shown_with_the_reason(shown, read):
    tree = shown("eight", metrics_public="the labels are printed in the newspaper")
    text = body(tree)
    assert percent(read("eight").metrics["accuracy"]) in text
    assert "the labels are printed in the newspaper" in text
    rows = {row[0]: row[1:] for row in tree.one("table", class_="shares").table()}
    assert rows["scores on test records"] == ["anybody", "declared public, see below"]
    why = "and shows scores on test records, which were declared public"
    assert rows["this page"][0] == "anybody"
    assert rows["this page"][1].endswith(why)
    rows = {row[0]: row[1:] for row in shown("eight").one("table", class_="shares").table()}
    assert rows["this page"] == ["anybody", "it says what the certificate says"]
    finding = Finding(kind="replay", name="replays", holds=True)
    tree = shown("eight", metrics_public="they are", audit=(finding,))
    rows = {row[0]: row[1:] for row in tree.one("table", class_="shares").table()}
    assert rows["this page"][1].endswith(why)


@pytest.mark.parametrize("reason", ["", " ", "\n\t", "\N{ZERO WIDTH SPACE}", "-"])
def test_scores_without_a_reason_are_refused(reason, run, trained, tmp_path):
    out = tmp_path / "out.html"
    for line in (
        ("report", trained / "one", "--for", "officer"),
        ("report", trained / "one"),
        ("publish", trained / "one", "--license", "mit"),
    ):
        code, _, err = run(*line, "--metrics-public", reason, "--out", out)
        assert (code, err.count("\n")) == (2, 1)
        assert "metrics_public' parameter must say why" in err or "needs '--for officer'" in err
        assert not out.exists()


def test_a_charged_score_is_shown(shown, read):
    run = read("one")
    released = f"{run.certificate.released}, the chosen settings and their noisy validation score"
    tree = shown(
        "one",
        tuned=True,
        certificate=replace(run.certificate, released=released),
        metrics={**run.metrics, "validation_accuracy": 0.71828},
    )
    assert "0.7183" in body(tree)
    rows = {row[0]: row[2] for row in tree.one("table", class_="shares").table()}
    assert rows["this page"].endswith("shows the validation score, which was charged")
    assert "0.7183" not in body(shown("one"))


# --- what it says ---------------------------------------------------------------------------------


def test_the_conclusion_is_one_sentence_that_promises_no_more_than_epsilon_does(shown, read):
    run = read("eight")
    guarantee = run.certificate.guarantee
    (conclusion,) = (p for p in shown("eight").all("p", class_="verdict"))
    sentence = conclusion.one("span", class_="lead").text
    assert sentence.count(". ") == 0
    most = float(re.search(r"at most ([\d.]+)", sentence)[1]) / 100
    assert most >= wording.after(0.5, guarantee.epsilon) - 1e-12
    assert most <= wording.after(0.5, guarantee.epsilon) + 0.002
    assert sentence.startswith("But for a failure of probability at most delta, ")
    assert "behaves like something for which this always holds" in sentence
    assert wording.one_in(guarantee.delta) in sentence


def test_the_conclusion_of_an_edge_says_that_rows_are_not_protected(shown):
    sentence = "Nothing is promised for what the rows at its ends hold, which count as public."
    for name in ("edge", "eight"):
        (conclusion,) = shown(name).all("p", class_="verdict")
        assert (sentence in conclusion.text) == (name == "edge")


def test_both_pages_say_the_same_of_odds_and_of_failures(shown, read):
    run = read("eight")
    sentence = officer.promise("x", run).content.replace("\N{NO-BREAK SPACE}", " ")
    text, analyst = body(shown("eight")), parse(page.render([run])).one("main").text
    always = "what is released behaves like something for which this always holds"
    for words in (sentence, always, "In a failure nothing is promised"):
        assert words in text, words
        assert words in analyst, words
    assert "delta bounds the probability that this fails" not in text


@pytest.mark.parametrize("epsilon, delta", [(2.0, 1e-3), (1.0, 1e-5), (6.9, 1e-3), (2.0, 0.0)])
def test_a_guess_about_content_pays_the_delta_of_two_steps(epsilon, delta):
    words = wording.guess_content("a row", epsilon, delta)
    failure = re.search(r"delta, here ([\d.e-]+),", words)
    assert bool(failure) is bool(delta)
    if failure:
        assert 0 <= float(failure[1]) - (1 + math.exp(epsilon)) * delta < 0.01 * float(failure[1])
    assert f"factor squared: from 50{wording.PERCENT} to" in words


@pytest.mark.parametrize("epsilon, delta", [(8.0, 0.001), (7.0, 0.001), (800.0, 1e-9)])
def test_where_the_delta_of_two_steps_reaches_one_no_bound_is_shown(epsilon, delta):
    words = wording.guess_content("a row", epsilon, delta)
    assert "gives no bound" in words
    assert wording.PERCENT not in words


def test_the_unit_is_in_the_owners_words(shown, read):
    assert "the data of one node was used" in body(shown("one"))
    named = replace(read("one").plan, record_name="patient")
    text = body(shown("one", plan=named))
    assert "the data of one patient was used" in text
    assert "one patient, which is one node" in text


def test_it_names_owner_purpose_date_and_the_fingerprint_of_the_certificate(shown, read):
    tree = shown("one")
    facts = tree.one("section", **{"aria-label": "Conclusion"}).pairs()
    assert facts["date"] == DAY
    assert facts["owner"] == "Hospital of Anytown"
    assert facts["purpose"] == "To plan beds."
    assert tree.one("h1").text == "Ward risk"
    prints = tree.one("section", class_="signature").pairs()
    assert prints["fingerprint of the certificate"] == statement.fingerprint_of(read("one"))
    assert prints["SHA-256 of the weights"] == read("one").weights_sha256
    assert {"date", "owner", "purpose"} & set(
        shown("one", Owner()).one("section", **{"aria-label": "Conclusion"}).pairs()
    ) == {"date"}


@pytest.mark.parametrize("name", PRIVATE)
def test_everything_that_is_assumed_stands_on_it(name, shown, read):
    certificate, text = read(name).certificate, body(shown(name))
    for line in (*certificate.public, *certificate.voided_by, *certificate.inference):
        assert line in text
    for line in certificate.membership_lines():
        assert line in text
    for term in ("privacy unit", "privacy parameters", "trust model", "Privacy hazard", "NIST"):
        assert term in text


def test_what_goes_to_whom(shown):
    def rows(name, **how):
        return {row[0]: row[1] for row in shown(name, **how).one("table", class_="shares").table()}

    assert rows("one")["model weights"] == "anybody"
    assert rows("parts")["the noisy sums"] == "nobody"
    assert rows("parts")["predictions"] == "its own node, each"
    assert rows("edge")["predictions"] == "anybody"
    # docs/export.md: sums that were cached for a node are for that node alone.
    assert rows("parts")["embeddings"] == "its own node, each"
    assert rows("edge")["embeddings"] == "anybody"
    assert rows("one")["embeddings"].startswith("whoever may see the rows")
    assert rows("one")["scores on test records, and plots of them"] == "nobody"
    assert rows("one")["this page"] == "anybody"
    finding = Finding(kind="replay", name="replays", holds=True)
    assert "trust" in rows("one", audit=(finding,))["this page"]
    # docs/publish.md: what draws and canaries show is read off nobody's row.
    finding = Finding(kind="run", name="canaries", holds=True)
    assert rows("one", audit=(finding,))["this page"] == "anybody"


@pytest.mark.parametrize("name", ["void", "mlp"])
def test_where_nothing_is_promised_nothing_may_be_published(name, shown, read):
    tree = shown(name)
    text = body(tree)
    assert "Nothing is promised for this model" in text
    rows = {row[0]: row[1] for row in tree.one("table", class_="shares").table()}
    assert rows["the weights"] == officer.HOLDERS
    assert rows["predictions and embeddings"] == officer.HOLDERS
    assert "epsilon " not in tree.one("section", **{"aria-label": "Conclusion"}).text
    for reason in read(name).certificate.void_because:
        assert reason in text


def test_an_audit_is_told_in_words(shown):
    assert "not put on trial" in body(shown("one"))
    assert "whoever holds the run" not in body(shown("one"))
    held = Finding(
        kind="run", name="canaries", holds=True, epsilon_at_least=0.31, confidence=0.95, trials=777
    )
    text = body(shown("one", audit=(held,)))
    assert "Nothing was seen that contradicts the promise" in text
    assert "the statement of whoever holds the run: nothing ties these findings to" in text
    assert not {"0.31", "777", "95"} & numbers(re.sub("[0-9a-f]{64}", "", text))
    broken = Finding(kind="attack", name="thresholds", holds=False)
    text = body(shown("one", audit=(held, broken)))
    assert text.index("An audit contradicts this certificate") < text.index("What may be published")
    assert "seen broken by: thresholds" in text


def test_hostile_words_are_shown_as_text(read):
    owner = Owner(name="<script>alert(1)</script>", owner=("A & B",), purpose="x<b>y")
    html = officer.render(read("one"), owner, day=DAY)
    assert_only_our_own(html)
    assert "<script>alert(1)</script>" in parse(html).one("h1").text


def test_a_page_for_a_signature_is_about_one_run(read):
    with pytest.raises(InvalidInputError, match="one run"):
        officer.only([read("one"), read("eight")])


# --- growth ---------------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path, read):
    """An account with three charges, of which the last is not settled."""
    book = Ledger(tmp_path / "study.ledger")
    book.open("patients", 100.0, 1e-5, None, "patients of ward 3")
    for number, name in enumerate(("one", "eight", "one"), 1):
        charges = read(name).certificate.charges
        promise = Promised(unit="node")
        id = f"{number:032x}"
        book.reserve(id, "patients", charges, promise, purpose=f"training {number}", run="r")
        if number < 3:
            book.begin(id, f"turn-{number}")
            book.settle(id, charges)
    return book


def test_growth_is_what_the_ledger_says(ledger):
    grown = growth.read_growth(ledger.place)
    account = ledger.read().account("patients")
    assert [step.purpose for step in grown.steps] == ["training 1", "training 2", "training 3"]
    assert [step.settled for step in grown.steps] == [True, True, False]
    assert grown.steps[-1].so_far == account.spent()
    spent = [step.so_far for step in grown.steps]
    assert spent == sorted(spent)
    assert spent[0] == grown.steps[0].alone
    assert sum(step.alone for step in grown.steps) == pytest.approx(account.plain_sum())
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", step.day) for step in grown.steps)


def charged(copied, reservation, name="one"):
    """A copy of a run that says under which reservation it was charged."""
    directory, change = copied(name, to=f"charged-{reservation[-1]}")
    change("events.json", lambda c: c.update(reservation=reservation))
    return directory


@pytest.mark.parametrize("reader", ["officer", "analyst"])
def test_both_pages_show_how_the_cost_grew(reader, ledger, copied, tmp_path):
    out = tmp_path / "page.html"
    run = charged(copied, f"{1:032x}")
    with pytest.raises(SystemExit) as left:
        cli.main(f"report {run} --for {reader} --ledger {ledger.place} --out {out}".split())
    assert left.value.code == 0
    html = out.read_text()
    assert_only_our_own(html)
    section = parse(html).one("section", class_="growth")
    grown = growth.read_growth(ledger.place)
    assert [tuple(row[1:]) for row in section.one("table").table()] == grown.rows
    assert section.all("svg", class_="plot")
    assert f"All charges together cost epsilon {grown.spent}" in section.text
    assert "patients of ward 3" in section.text
    assert "not settled" in section.text


@pytest.mark.parametrize(
    "reservation,account,why",
    [
        (None, "patients", "It is not in this ledger"),
        (f"{9:032x}", "patients", "It is not in this ledger"),
        (f"{1:032x}", "clinic", "It is charged to 'patients'"),
        (f"{1:032x}", "friends", "It is about one edge-directed"),
        (f"{1:032x}", "calls", "It is about one edge-directed"),
        (f"{2:032x}", "patients", "Under its reservation other charges stand"),
    ],
)
def test_an_account_that_says_nothing_about_the_run_is_refused(
    reservation, account, why, ledger, copied, trained, read, run, tmp_path
):
    """On the page for a signature an account stands for everything about the run's people."""
    ledger.open("clinic", 8.0, 1e-5)
    ledger.open("friends", 8.0, 1e-5, "edge-directed")
    ledger.open("calls", 8.0, 1e-5)
    promise = Promised(unit="edge-directed")
    charges = read("edge").certificate.charges
    ledger.reserve("c" * 32, "calls", charges, promise, purpose="x", run="r")
    directory = trained / "one" if reservation is None else charged(copied, reservation)
    words = ("--for", "officer", "--ledger", ledger.place, "--account", account)
    code, out, err = run("report", directory, *words, "--out", tmp_path / "page.html")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert why in err
    assert "or leave '--ledger' out" in err
    assert not (tmp_path / "page.html").exists()


def test_a_run_and_the_account_that_it_was_charged_to_go_together(run, tmp_path, monkeypatch):
    book, directory, out = Ledger(tmp_path / "l"), tmp_path / "run", tmp_path / "page.html"
    book.open("patients", 8.0, 1e-5)
    book.open("others", 8.0, 1e-5, "node")
    data = social_network(num_nodes=90, num_classes=3, num_features=5, seed=1)
    source = runs.Source(data="social")
    method = DPMLP(epsilon=1.0, steps=2, sample_rate=1.0, centred=False)
    to = {"ledger": book.place, "account": "patients"}
    monkeypatch.setattr(runs.Source, "load", lambda self: data.clone())
    runs.Run(directory).train(method, source, **to)
    words = ("report", directory, "--for", "officer", "--ledger", book.place, "--out", out)
    assert run(*words, "--account", "others")[0] == 2
    assert run(*words, "--account", "patients")[0] == 0
    (directory / "ledger.json").unlink()  # as in a copy for somebody else
    assert run(*words, "--account", "patients", "--force")[0] == 0
    assert "Other releases" not in parse(out.read_text()).one("main").text


def test_without_a_ledger_it_says_that_releases_add_up(shown, ledger):
    sentence = "Other releases about the same people add up, whoever made them"
    assert sentence in body(shown("one"))
    assert sentence not in body(shown("one", growth=growth.read_growth(ledger.place)))


def test_an_account_without_charges_has_no_plot(tmp_path):
    book = Ledger(tmp_path / "study.ledger")
    book.open("nobody", 8.0, 1e-5)
    grown = growth.read_growth(book.place)
    assert (grown.steps, grown.spent, grown.plot("x")) == ((), "0", None)


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def run(capsys):
    def call(*words):
        with pytest.raises(SystemExit) as left:
            cli.main([str(word) for word in words])
        captured = capsys.readouterr()
        return left.value.code, captured.out, captured.err

    return call


def test_the_analysts_page_is_the_default(run, trained, tmp_path, rendered, monkeypatch):
    monkeypatch.chdir(trained)
    out = tmp_path / "page.html"
    assert run("report", "one", "--out", out)[0] == 0
    plain = out.read_text()
    assert run("report", "one", "--for", "analyst", "--out", out, "--force")[0] == 0
    assert out.read_text() == plain
    assert stat.S_IMODE(out.stat().st_mode) == 0o600  # its scores are for nobody else
    out.unlink()
    code, text, _ = run("report", "one", "--for", "officer", "--out", out, "--force", "--json")
    assert (code, json.loads(text)["reader"]) == (0, "officer")
    assert "Signature" in out.read_text()
    assert stat.S_IMODE(out.stat().st_mode) & 0o400 == 0o400
    assert "note" not in json.loads(text) or json.loads(text)["note"] is None


@pytest.mark.parametrize(
    "words,why",
    [
        (["--purpose", "x"], "--for officer"),
        (["--date", "2026-11-19"], "'--date' needs"),
        (["--for", "officer", "--date", "19/11/2026"], "as a day"),
        (["--for", "officer", "--facts", "absent.toml"], "cannot be read"),
        (["--account", "patients"], "--ledger"),
        (["--ledger", "absent.ledger"], "absent.ledger"),
    ],
)
def test_what_cannot_be_is_refused(words, why, run, trained, tmp_path):
    code, out, err = run("report", trained / "one", "--out", tmp_path / "page.html", *words)
    assert (code, out) == (2, "")
    assert why in err
    assert not (tmp_path / "page.html").exists()


def test_an_officers_page_of_two_runs_is_refused(run, trained, tmp_path):
    words = ("--for", "officer", "--out", tmp_path / "page.html")
    code, _, err = run("report", trained / "one", trained / "eight", *words)
    assert code == 2
    assert "one run" in err
