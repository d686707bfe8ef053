"""The page says what the run's own files say, rounds against us, and runs nobody else's script."""

import hashlib
import json
import math
import os
import random
import subprocess
import sys
from dataclasses import replace

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting import dp_event
from report_cases import rename_classes
from report_html import assert_only_our_own, parse

from graphveil import cli
from graphveil._errors import InvalidInputError, VerificationError
from graphveil.data.synthetic import social_network
from graphveil.methods import GraphSplit, Plan
from graphveil.privacy import composing
from graphveil.privacy.accounting import price
from graphveil.privacy.events import GumbelTopKDpEvent, composed, one_of, repeated
from graphveil.privacy.guarantee import (
    DECLARED_PUBLIC,
    Certificate,
    Charge,
    certify,
    charges_from_json,
    round_up,
)
from graphveil.report import evidence, page, wording
from graphveil.runs import Run, Source

OPEN = ("mlp", "gnn")


@pytest.fixture
def run(capsys):
    """Run a command in this process: exit code, stdout, stderr."""

    def call(*words):
        with pytest.raises(SystemExit) as left:
            cli.main([str(word) for word in words])
        captured = capsys.readouterr()
        return left.value.code, captured.out, captured.err

    return call


@pytest.fixture
def refused(run):
    """The one line of a command that must fail with exit code 2."""

    def call(*words):
        code, out, err = run(*words)
        assert (code, out) == (2, ""), err
        assert err.startswith("graphveil: ")
        assert err.count("\n") == 1
        assert "unexpected" not in err
        return err

    return call


# --- figures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["one", "eight", "parts", "edge", "claimed"])
def test_the_guarantee_on_the_page_is_the_certificates(trained, rendered, name):
    certificate = Certificate.from_json((trained / name / "certificate.json").read_text())
    tree = parse(rendered(name))
    epsilon = certificate.guarantee.epsilon
    shown = tree.one("p", class_="verdict")
    assert shown.one("strong").text == round_up(epsilon)
    assert f"δ = {certificate.guarantee.delta:g}" in shown.text
    assert shown.one(class_="badge").text == "proven"
    bounds = dict(tree.one("table", class_="bounds").table())
    assert bounds["by privacy loss distributions (PLD)"] == round_up(certificate.pld)
    assert bounds["by Rényi divergences (RDP)"] == round_up(certificate.rdp)
    assert bounds["proven: the smaller of the two"] == round_up(epsilon)
    text = tree.one("section", class_="promise").text
    for line in (*certificate.public, *certificate.voided_by, *certificate.inference):
        assert line in text
    assert certificate.released in text
    assert certificate.released_to in text


def test_a_claim_stands_beside_what_is_proven(read, rendered):
    claim = read("claimed").certificate.claim
    tree = parse(rendered("claimed"))
    bounds = dict(tree.one("table", class_="bounds").table())
    assert bounds[f"claimed by {claim.source}"] == round_up(claim.epsilon)
    assert claim.why_it_differs in tree.text
    assert read("claimed").epsilon > claim.epsilon  # the paper's is too small here


def test_each_charge_is_priced_by_itself_and_the_sum_is_not_the_price(read, rendered):
    certificate = read("parts").certificate
    delta = certificate.guarantee.delta
    rows = parse(rendered("parts")).one("table", class_="charges").table()
    alone = [price(charge.event, delta).epsilon for charge in certificate.charges]
    assert len(alone) == 4
    assert [row[0] for row in rows] == [*(c.paid_for for c in certificate.charges), "together"]
    assert [row[-1] for row in rows] == [
        *map(round_up, alone),
        round_up(certificate.guarantee.epsilon),
    ]
    assert sum(alone) > certificate.guarantee.epsilon
    assert round_up(sum(alone)) in parse(rendered("parts")).text


def test_utility_is_that_of_metrics_json_with_baselines_and_the_commonest_class(trained, rendered):
    tree = parse(rendered("eight", "mlp", "gnn"))
    section = tree.one("article", id="run-1")
    rows = {row[0]: row[1:] for row in section.one("table", class_="utility").table()}
    for name, label in (
        ("eight", "dp-gnn"),
        ("mlp", "mlp, in the open"),
        ("gnn", "gnn, in the open"),
    ):
        metrics = json.loads((trained / name / "metrics.json").read_text())
        assert rows[label + ", learnt nothing" * ("open" in label)] == [
            f"{100 * metrics['test_accuracy']:.1f} %",
            f"{metrics['test_macro_f1']:.3f}",
            f"{100 * metrics['test_balanced_accuracy']:.1f} %",
            f"{metrics['test_roc_auc']:.3f}",
            f"{100 * metrics['test_specificity']:.1f} %",
            f"{metrics['test_brier']:.3f}",
            f"{metrics['test_calibration_error']:.3f}",
        ]
    counts, guess = metrics["class_count"], metrics["baseline"]
    assert rows["the best guess, figure by figure"] == [
        f"{100 * guess['accuracy']:.1f} %",
        f"{guess['macro_f1']:.3f}",
        f"{100 * guess['balanced_accuracy']:.1f} %",
        f"{guess['roc_auc']:.3f}",
        "–",  # whoever says the same of everybody has all of one rate, and nothing of the other
        f"{guess['brier']:.3f}",
        f"{guess['calibration_error']:.3f}",
    ]
    own = json.loads((trained / "eight" / "metrics.json").read_text())
    classes = section.one("table", class_="classes").table()
    for row, name, count, share in zip(
        classes, ["cats", "dogs", "elks"], counts, own["class_accuracy"], strict=True
    ):
        assert row[:2] == [name, str(count)]
        assert row[3] == f"{100 * share:.1f} %"
    confusion = section.one("table", class_="confusion").table()
    assert [row[0] for row in confusion] == ["cats", "dogs", "elks"]
    assert [[int(cell) for cell in row[1:]] for row in confusion] == own["confusion"]


def test_a_run_without_a_confusion_matrix_is_reported_without_it(copied, run, tmp_path):
    directory, change = copied("eight")
    change("metrics.json", lambda content: content.pop("confusion"))
    out = tmp_path / "page.html"
    assert run("report", directory, "--out", out)[::2] == (0, "")
    assert not parse(out.read_text()).all("table", class_="confusion")


@pytest.mark.parametrize("name", wording.TASK_SCORES["multiclass"])
def test_a_run_without_a_score_is_reported_without_it(trained, copied, run, tmp_path, name):
    column = wording.SCORES[name]
    directory, change = copied("eight")
    change("metrics.json", lambda content: content.pop(f"test_{name}"))
    for beside in ((), (trained / "one", trained / "mlp")):
        out = tmp_path / f"page{len(beside)}.html"
        assert run("report", directory, *beside, "--out", out)[::2] == (0, "")
        table = parse(out.read_text()).one("article", id="run-1").one("table", class_="utility")
        columns = [cell.text for cell in table.one("thead").all("th")]
        assert column not in columns
        assert "macro F1" in columns or "accuracy" in columns
        assert all(len(row) == len(columns) for row in table.table())


def test_what_is_measured_is_called_a_release_outside_the_certificate(rendered):
    for names in (("one",), ("one", "eight"), ("void",), ("mlp",), ("one", "mlp"), OPEN):
        assert parse(rendered(*names)).text.count(page.OUTSIDE) == 1
        everywhere = parse(rendered(*names)).all("article")
        assert all("accuracies on this page" in article.text for article in everywhere)
    assert "outside every certificate" in page.OUTSIDE
    assert "is a release" in page.OUTSIDE


def test_the_data_card_has_public_facts_licence_and_citation(read, rendered):
    tree = parse(rendered("one"))
    card = tree.one("section", **{"aria-label": "Data"}).pairs()
    entry = read("one").entry
    assert card["nodes"] == "90"
    assert card["licence"] == entry.licence
    assert card["citation"] == entry.citation
    assert card["split"] == "transductive, seed 0"
    assert "In social, a node is a person." in tree.text


def test_settings_and_environment_are_all_there(trained, rendered):
    saved = json.loads((trained / "eight" / "settings.json").read_text())
    environment = json.loads((trained / "eight" / "environment.json").read_text())
    every = (part.pairs() for part in parse(rendered("eight")).all("details"))
    settings, planned, versions = every
    assert set(settings) == set(saved["settings"])
    assert settings["steps"] == planned["steps"] == "3"
    assert (planned["removed"], planned["altered"]) == ("1", "1")
    assert environment["versions"].items() <= versions.items()
    assert versions["python"] == environment["python"]


def test_a_copy_of_a_charged_run_says_that_it_was_charged(copied):
    directory, change = copied()
    change("events.json", lambda content: content.update(reservation="r"))
    text = parse(page.render([evidence.read(str(directory))])).text
    assert "was charged to a ledger, which is not named here" in text
    assert "No ledger was kept" not in text


def test_the_ledger_that_counts_the_run_is_named(copied, rendered):
    assert "No ledger was kept" in parse(rendered("one")).text
    directory, _ = copied()
    noted = {"format": 1, "ledger": "book.db", "account": "<i>", "reservation": "r"}
    (directory / "ledger.json").write_text(json.dumps(noted))
    tree = assert_only_our_own(page.render([evidence.read(str(directory))]))
    assert "charged to the account <i> of a ledger" in tree.text


def test_the_best_of_many_runs_and_one_of_several_say_what_is_inside():
    step = dpa.GaussianDpEvent(2.0)
    event = dp_event.RepeatAndSelectDpEvent(
        one_of(repeated(step, 3), dpa.LaplaceDpEvent(4.0)), 2, 0
    )
    kinds = [(line.times, line.kind) for line in wording.releases(event)]
    assert kinds == [
        (1, "the best of a secret number of runs, each of them"),
        (1, "one of these, whichever costs most"),
        (3, "Gaussian noise"),
        (1, "Laplace noise"),
    ]
    assert "noise multiplier 4" in wording.releases(event)[3].figures


# --- words ----------------------------------------------------------------------------------------


def number(text):
    return float(text.replace("%", "").replace(",", "").replace("one in", ""))


@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 0.01, 0.1, 0.9999, 1.0, 2.0, 4.61, 8.0, 12.3, 40.0])
def test_no_figure_in_words_promises_more_than_epsilon_does(epsilon):
    for before in wording.BEFORE:
        exact = before * math.exp(epsilon) / (1 - before + before * math.exp(epsilon))
        assert math.isclose(wording.after(before, epsilon), exact)
        assert number(wording.at_most(exact)) >= 100 * exact - 1e-6
        assert number(wording.at_most(exact)) <= 100 * exact + 0.11
        least = before / (before + (1 - before) * math.exp(epsilon))
        assert number(wording.at_least(least)) <= 100 * least + 1e-6
        assert math.isclose(1 - wording.after(1 - before, epsilon), least, abs_tol=1e-12)
    factor = wording.factor(epsilon)
    if factor is None:
        assert math.exp(epsilon) > wording.MOST_FACTOR
    else:
        assert number(factor) >= math.exp(epsilon) * (1 - 1e-9)
        assert number(factor) <= math.exp(epsilon) * 1.01 + 0.01


@pytest.mark.parametrize("delta", [1e-5, 3e-7, 1e-9, 0.4])
def test_one_in_so_many_is_no_rarer_than_delta(delta):
    assert 1 / number(wording.one_in(delta)) >= delta * (1 - 1e-9)


def test_the_page_moves_an_even_guess_as_far_as_epsilon_allows(read, rendered):
    epsilon = read("one").epsilon
    text = parse(rendered("one")).one("section", class_="promise").text
    assert f"at most {wording.at_most(1 / (1 + math.exp(-epsilon)))}".replace("\xa0", " ") in text
    squared = wording.at_most(1 / (1 + math.exp(-2 * epsilon))).replace("\xa0", " ")
    assert f"factor squared: from 50 % to at most {squared}" in text
    edges = parse(rendered("edge")).one("section", class_="promise").text
    assert "squared" not in edges  # an edge has no content to guess


# --- no guarantee ---------------------------------------------------------------------------------


def test_a_void_run_shows_no_epsilon_and_says_why(read, rendered):
    run = read("void")
    tree = parse(rendered("void"))
    assert run.certificate.void_because
    for reason in run.certificate.void_because:
        assert reason in tree.one("section", class_="promise").text
    assert "No guarantee holds" in tree.one("p", class_="verdict").text
    assert "ε" not in tree.text
    assert tree.one("table", class_="bounds").table()[0] == ["proven", "none"]
    assert len(tree.one("table", class_="charges").table()[0]) == 2  # no price of a charge
    assert not tree.all("table", class_="beliefs")
    for bound in (run.certificate.pld, run.certificate.rdp):
        assert round_up(bound) not in tree.text


def test_a_run_with_noise_that_nothing_is_proven_for_is_void_and_shows_its_claim(tmp_path):
    """Its event is that of training in the open; it is no baseline."""
    source = Source(data="social")
    data = social_network(num_nodes=90, num_classes=3, num_features=5, seed=1)
    method = GraphSplit(epsilon=2.0, paper=True, splits=3, epochs=2)
    Run(tmp_path / "run").train(method, source, arranged=source.arrange(data))
    text = parse(page.render([evidence.read(str(tmp_path / "run"))])).text
    assert "No guarantee holds" in text
    assert "nothing is clipped" in text
    assert "claimed by Igamberdiev and Habernal" in text
    assert "as a baseline" not in text


def test_a_void_or_open_run_is_told_apart_and_never_ranked(read, rendered):
    tree = parse(rendered("eight", "void", "mlp"))
    rows = {
        row.attributes["data-run"].rsplit("/", 1)[-1]: row
        for row in tree.one("table", class_="sortable").all("tr", class_=None)
        if "data-run" in row.attributes
    }
    assert list(rows) == ["eight", "mlp", "void"]
    assert rows["void"].attributes["class"] == "unranked"
    assert rows["eight"].attributes.get("class") != "unranked"
    assert rows["void"].one(class_="badge").text == "void"
    assert rows["mlp"].one(class_="badge").text == "not private"
    for name in ("void", "mlp"):
        cell = rows[name].one("td", class_="epsilon")
        assert (cell.text, cell.attributes["data-value"]) == ("none", "")
    cell = rows["eight"].one("td", class_="epsilon")
    assert float(cell.attributes["data-value"]) == read("eight").epsilon
    assert cell.text == round_up(read("eight").epsilon)


def test_an_open_run_promises_nothing(rendered):
    tree = parse(rendered("mlp"))
    assert "No privacy is promised" in tree.one("p", class_="verdict").text
    assert not tree.all("table", class_="bounds")
    assert not tree.all("table", class_="charges")
    assert "model weights. Nothing is promised for it, so it is for those who" in tree.text
    assert "model weights, to anybody" not in tree.text


# --- several runs ---------------------------------------------------------------------------------


def test_runs_are_grouped_by_what_they_protect_with_the_open_ones_in_each(rendered):
    tree = parse(rendered("one", "eight", "edge", "claimed", "void", *OPEN))
    groups = tree.all("section", class_="group")
    runs = [
        {
            row.attributes["data-run"].rsplit("/", 1)[-1]
            for row in group.all("tr")
            if "data-run" in row.attributes
        }
        for group in groups
    ]
    assert runs == [{"one", "eight", "void", *OPEN}, {"edge", "claimed", *OPEN}]
    anchors = {article.attributes["id"] for article in tree.all("article")}
    links = [link.attributes["href"] for group in groups for link in group.all("a")]
    assert {link.removeprefix("#") for link in links} == anchors


def test_the_curve_has_the_proven_points_and_only_those(read, rendered):
    tree = parse(rendered("one", "eight", "void", *OPEN))
    description = tree.one("desc", id="group-1-curve-desc").text
    for name in ("one", "eight"):
        accuracy = f"{100 * read(name).metrics['accuracy']:.1f} %"
        assert f"{accuracy} at epsilon {round_up(read(name).epsilon)}" in description
    assert description.count("at epsilon") == 2
    assert description.count("level at") == 3  # mlp, gnn, the commonest class
    assert not parse(rendered("one", "mlp")).all("desc", id="group-1-curve-desc")


def test_what_all_runs_cost_together_is_composed_not_added(read, rendered):
    runs = [read("one"), read("eight"), read("parts")]
    delta = runs[0].certificate.guarantee.delta
    together = price(composed(*(run.certificate.event for run in runs)), delta).epsilon
    sentence = parse(rendered("one", "eight", "parts")).one("p", class_="together")
    assert sentence.one("strong").text == round_up(together)
    assert f"add up to {round_up(sum(run.epsilon for run in runs))}" in sentence.text
    assert together < sum(run.epsilon for run in runs)
    assert "together they cost less" in sentence.text
    assert not parse(rendered("one", "void")).all("p", class_="together")


def test_runs_on_the_same_people_are_counted_together_whatever_their_split(read):
    one = read("one")
    other = replace(read("eight"), source={**read("eight").source, "split": "inductive"})
    tree = parse(page.render([one, other]))
    delta = one.certificate.guarantee.delta
    together = price(composed(one.certificate.event, other.certificate.event), delta).epsilon
    sentences = tree.all("p", class_="together")
    assert [sentence.one("strong").text for sentence in sentences] == [
        round_up(together)
    ] * 2  # two tables
    elsewhere = replace(other, source={**other.source, "data": "another"})
    assert not parse(page.render([one, elsewhere])).all("p", class_="together")


def test_runs_of_one_account_are_counted_together_whatever_their_encoding(read):
    one = replace(read("one"), ledger="study", account="people")
    other = read("eight")
    other = replace(other, source={**other.source, "data": "encoded anew"})
    third = replace(read("parts"), source={**read("parts").source, "data": "encoded anew"})
    assert not parse(page.render([one, other])).all("p", class_="together")
    for ledger, name, count in (("study", "people", 3), ("study", "x", 0), ("x", "people", 0)):
        charged = replace(other, ledger=ledger, account=name)
        sentences = parse(page.render([one, charged, third])).all("p", class_="together")
        texts = [sentence.text for sentence in sentences]
        assert sum(f"all {count} runs" in text for text in texts) == (2 if count else 0)
        assert any("charged to the same account" in text for text in texts) == bool(count)


@pytest.mark.parametrize("steps", [2, 10**9])
def test_settings_that_plan_other_steps_than_were_charged_are_refused(copied, steps):
    directory, change = copied()
    change("settings.json", lambda content: content["settings"].update(steps=steps))
    with pytest.raises(InvalidInputError, match=r"another steps than settings.json has"):
        evidence.read(str(directory))


@pytest.mark.parametrize("steps", [2, 10**9])
def test_a_plan_of_other_steps_than_were_charged_is_refused(copied, steps):
    directory, change = copied()
    change("settings.json", lambda content: content["settings"].update(steps=steps))

    def edit(content):
        content["plan"]["settings"]["steps"] = content["plan"]["parts"][0]["count"] = steps

    change("plan.json", edit)
    with pytest.raises(InvalidInputError, match=r"another plan than the one"):
        evidence.read(str(directory))
    named = hashlib.sha256((directory / "plan.json").read_bytes()).hexdigest()
    change("settings.json", lambda content: content.update(plan_sha256=named))
    with pytest.raises(VerificationError, match=r"releases, and what is charged for is 3"):
        evidence.read(str(directory))


@pytest.mark.parametrize(
    "edit,why",
    [
        (lambda c: c["event"]["event"].update(noise_multiplier=1e6), "the plan makes it 3 x"),
        (lambda c: c["event"]["event"].update(removed=0, altered=1), "the plan makes it 3 x"),
        (lambda c: c.update(paid_for="nothing much"), "paid_for is 'nothing much'"),
        (lambda c: c["event"].update(count=2), "what is charged for is 2"),
    ],
)
def test_charges_that_the_plan_does_not_make_are_refused(copied, edit, why):
    directory, change = copied()
    change("events.json", lambda content: edit(content["charges"][0]))
    events = json.loads((directory / "events.json").read_text())
    certify_anew(directory, events)
    with pytest.raises(VerificationError, match=why):
        evidence.read(str(directory))


def certify_anew(directory, events):
    """The certificate that such charges bear out, so that nothing else differs."""
    plan = Plan.from_json(json.loads((directory / "plan.json").read_text())["plan"])
    certificate = plan.certificate(charges_from_json(events["charges"]))
    (directory / "certificate.json").write_text(certificate.to_json())


def priced(run, path, *events):
    """The same run, had it been charged for these events."""
    delta = run.certificate.guarantee.delta
    charges = [
        Charge(paid_for=f"part {number}", event=event) for number, event in enumerate(events)
    ]
    certificate = certify(charges, unit="node", delta=delta, released="model weights")
    alone = tuple(price(event, delta).epsilon for event in events)
    return replace(run, path=path, certificate=certificate, alone=alone)


def test_runs_on_a_secret_sample_and_runs_with_rdp_alone_are_composed_too(read):
    gaussian = dpa.GaussianDpEvent(2.0)
    plain = priced(read("one"), "plain", gaussian)
    others = (
        dpa.PoissonSampledDpEvent(
            0.5, composed(gaussian, GumbelTopKDpEvent(noise_multiplier=6.0, k=2))
        ),
        dp_event.RepeatAndSelectDpEvent(dpa.GaussianDpEvent(9.0), 3.0, 0.0),
    )
    for event in others:
        other = priced(read("one"), "other", event)
        sentence = parse(page.render([plain, other])).one("p", class_="together")
        delta = plain.certificate.guarantee.delta
        together = composing.together([gaussian, event], delta).epsilon
        assert sentence.one("strong").text == round_up(together)
        assert together < plain.epsilon + other.epsilon


def test_nobody_is_told_that_it_costs_less_where_it_does_not(read):
    def stated(path, epsilon):  # less than what was charged would cost
        run = priced(read("one"), path, dpa.GaussianDpEvent(1.0), dpa.GaussianDpEvent(1.0))
        guarantee = replace(run.certificate.guarantee, epsilon=epsilon)
        certificate = replace(run.certificate, guarantee=guarantee)
        return replace(run, certificate=certificate, alone=(epsilon / 2, epsilon / 2))

    text = page.render([stated("a", 0.5), stated("b", 0.5)])
    assert "add up to 1." in text
    assert "cost less" not in text
    assert "Parts do not add up" not in text
    assert "themselves they would cost 0.5 in all, together they cost 0.5" in text


def test_promises_under_different_public_degrees_are_not_composed(read):
    def under(path, degree):
        run = read("eight")
        guarantee = replace(run.certificate.guarantee, relation="remove")
        certificate = replace(run.certificate, guarantee=guarantee)
        settings = {**run.settings, "relation": "remove", "public_degree": degree}
        return replace(run, path=path, certificate=certificate, settings=settings)

    tree = parse(page.render([under("a", 5), under("b", 1000)]))
    assert not tree.all("p", class_="together")
    texts = [group.text for group in tree.all("section", class_="group")]
    assert len(texts) == 2
    assert "at most 5 lists" in texts[0]
    assert "at most 1,000 lists" in texts[1]
    assert parse(page.render([under("a", 5), under("b", 5)])).one("p", class_="together")


def test_records_that_were_declared_public_are_named_first_and_set_a_run_apart(read):
    line = f"the validation nodes and their labels: {DECLARED_PUBLIC}, and not protected"
    run = read("one")
    public = (*run.certificate.public, line)
    certificate = replace(run.certificate, public=public, unprotected=(line,))
    declared = replace(run, path="declared", certificate=certificate)
    text = page.render([declared])
    shown = parse(text).one("strong", class_="unprotected").text
    assert shown == f"Not protected: {line}."
    assert text.index("What is protected") < text.index(line) < text.index("Two worlds")
    tree = parse(page.render([run, declared]))
    assert not tree.all("p", class_="together")  # the promises are not the same one's
    assert sum("Not protected" in group.text for group in tree.all("section", class_="group")) == 1
    assert not parse(page.render([run])).all("strong", class_="unprotected")


def test_one_private_run_comes_first_whatever_the_order(rendered):
    tree = parse(rendered("mlp", "one", "gnn"))
    assert tree.one("h1").text == "dp-mlp on social"
    assert tree.all("article")[0].attributes["id"] == "run-2"


# --- audit ----------------------------------------------------------------------------------------


def attack(**changed):
    """As the first format had it: attacks alone."""
    result = {
        "attack": "loss",
        "epsilon_at_least": 0.25,
        "confidence": 0.95,
        "trials": 100,
        "note": "n",
    }
    return {"format": 1, "results": [{**result, **changed}]}


def findings(*results):
    usual = {"kind": "run", "name": "canaries", "holds": True}
    return {"format": 2, "results": [usual | result for result in results]}


REPLAY = {
    "kind": "replay",
    "name": "dp-mlp on social",
    "figures": {"neighbours": 1200, "steps": 3},
    "note": "exact",
}
BROKEN = {
    "holds": False,
    "violations": [
        {"rule": "too many terms", "part": "training", "step": 2, "value": "3", "allowed": "1"},
        {"rule": "the noise is another"},
    ],
}
FLOOR = {"epsilon_at_least": 0.25, "confidence": 0.95, "trials": 1000, "bound": "one-run"}
MEMBERSHIP = {
    "kind": "attack",
    "name": "LiRA",
    "trials": 64,
    "note": "eight shadows",
    "figures": {
        **{"auc": 0.5312, "tpr@0.001": 0.00123, "tpr@0.01": 0.02, "shadows": 32},
        **{"largest_tpr@0.001": 0.005, "largest_tpr@0.01": 1.0},
    },
}
DRAWS = {"kind": "mechanism", "name": "noise", "trials": 10_000, "figures": {"ratio": 0.9875}}


@pytest.fixture
def audited(copied):
    """The page of a run with an audit.json, and the run."""

    def make(*results, name="one"):
        directory, _ = copied(name)
        (directory / "audit.json").write_text(json.dumps(findings(*results)))
        run = evidence.read(str(directory))
        return assert_only_our_own(page.render([run])), run

    return make


def test_an_audit_of_the_first_format_is_shown(copied, rendered):
    assert not parse(rendered("one")).all("section", class_="audits")
    directory, _ = copied()
    (directory / "audit.json").write_text(json.dumps(attack()))
    tree = parse(page.render([evidence.read(str(directory))]))
    row, whole = tree.one("table", class_="floors").table()
    assert row == ["loss", "0.25", "–", "95 %", "–", "–", "100"]
    assert [ul.text for ul in tree.all("ul", class_="notes")] == ["loss: n"] * 2  # it is an attack
    assert whole[0] == "the whole run"
    assert not tree.all(class_="alarm")


def test_a_replay_says_what_was_replayed_and_on_how_many_neighbours(audited):
    tree, _ = audited(REPLAY)
    rows = tree.one("table", class_="replays").table()
    assert rows == [["dp-mlp on social", "1,200", "nothing seen"]]
    assert tree.one("ul", class_="notes").text == "dp-mlp on social: exact; steps 3"
    assert not tree.all("ul", class_="violations")
    assert not tree.all("table", class_="floors")
    assert not tree.all(class_="alarm")


def test_what_a_replay_saw_broken_is_an_alarm_and_stands_in_full(audited):
    tree, _ = audited(REPLAY | BROKEN)
    assert tree.one("table", class_="replays").table()[0][2] == "broken"
    lines = [line.text for line in tree.one("ul", class_="violations").all("li")]
    assert lines == [
        "dp-mlp on social: part 'training', step 2: too many terms: 3, allowed: 1",
        "dp-mlp on social: the noise is another",
    ]
    alarm = tree.one(class_="alarm").text
    assert "contradicts this certificate" in alarm
    assert "dp-mlp on social: the promise was seen broken" in alarm


def test_draws_of_a_release_show_their_ratio(audited):
    tree, _ = audited(DRAWS)
    rows = tree.one("table", class_="mechanisms").table()
    assert rows == [["noise", "0.9875", "10,000", "nothing seen"]]


def test_a_floor_stands_beside_the_proven_ceiling(audited):
    tree, run = audited(FLOOR)
    assert tree.one("table", class_="floors").table() == [
        ["canaries", "0.25", "–", "95 %", "one-run", "–", "1,000"],
        ["the whole run", "–", round_up(run.epsilon), "–", "–", "–", "–"],
    ]


def test_a_bound_says_under_what_it_holds_beside_the_price_of_its_part(audited):
    sound = {"bound": "agnostic one-run", "figures": {"proven": 0.3001}}
    rough = {"bound": "asymptotic Gauss", "figures": {"proven": 0.2}, "suspect": True}
    tree, _ = audited(FLOOR | sound, FLOOR | rough | {"name": "estimate"})
    floors, estimates = tree.all("table", class_="floors")
    assert floors.table()[0][2:6] == ["0.3001", "95 %", "agnostic one-run", "for any mechanism"]
    assert len(floors.table()) == 2
    assert estimates.table()[0][5] == "for many canaries: not a proof"
    assert "Suspect: estimate." in tree.one("p", class_="suspects").text
    assert not tree.all(class_="alarm")


@pytest.mark.parametrize("holds", [True, False])
def test_one_bound_in_twenty_is_too_high_and_who_made_it_judges(audited, holds):
    judged = {"epsilon_at_least": 1.5, "figures": {"proven": 1.4}, "bound": "normal scores"}
    tree, _ = audited(FLOOR | judged | {"holds": holds})
    assert bool(tree.all(class_="alarm")) is not holds


def test_a_real_attack_is_shown_with_its_own_ceilings(copied):
    from graphveil.audit import results
    from graphveil.audit.attacks.curves import Allowance, judge

    directory, _ = copied("one")
    certificate = evidence.read(str(directory)).certificate
    random = np.random.default_rng(1)
    inside, scores = random.random(200) < 0.5, random.normal(size=200)
    found = [
        judge(f"distance {distance}", scores, inside, Allowance(certificate, distance))
        for distance in (1, 2, None)
    ]
    results.write(directory / "audit.json", found)
    tree = parse(page.render([evidence.read(str(directory))]))
    rows = tree.one("table", class_="attacks").table()
    shares = [found[0].figures[f"tpr@{fpr:g}"] for fpr in (0.001, 0.01)]
    for row, distance in zip(rows, (1, 2, None), strict=True):
        most = [Allowance(certificate, distance).largest_tpr(fpr) for fpr in (0.001, 0.01)]
        allowed = [f"{round_up(100 * tpr, 3)} %" if tpr < 1 else "nothing promised" for tpr in most]
        assert row[2:6:2] == [f"{100 * share:.3g} %" for share in shares]
        assert row[3:6:2] == allowed
    assert not tree.all("ul", class_="notes")  # no raw figures


def test_an_attack_stands_beside_what_the_certificate_allows(audited):
    tree, _ = audited(MEMBERSHIP)
    (row,) = tree.one("table", class_="attacks").table()
    assert row == [
        *("LiRA", "0.5312", "0.123 %", "0.5 %", "2 %", "nothing promised", "64"),
        "nothing seen",
    ]
    assert tree.one("ul", class_="notes").one("li").text == "LiRA: eight shadows"


def test_a_note_that_many_attacks_share_stands_once(audited):
    tree, _ = audited(MEMBERSHIP, MEMBERSHIP | {"name": "RMIA"})
    assert len(tree.one("table", class_="attacks").table()) == 2
    notes = [line.text for line in tree.one("ul", class_="notes").all("li")]
    assert notes == ["LiRA; RMIA: eight shadows"]


@pytest.mark.parametrize("name", ["one", "eight", "parts", "edge", "claimed"])
def test_the_promise_says_what_membership_tests_can_reach(read, rendered, name):
    text = parse(rendered(name)).one("p", class_="accused").text
    for fpr, tpr in read(name).certificate.largest_tpr.items():
        assert f"accuses {100 * fpr:g} %" in text
        assert f"at most {round_up(100 * tpr, 3)} %" in text


def test_an_audit_above_the_proven_epsilon_is_an_alarm(audited):
    tree, run = audited(FLOOR | {"epsilon_at_least": 1.5}, REPLAY)
    alarm = tree.one(class_="alarm")
    assert "contradicts" in alarm.text
    assert [line.text for line in alarm.all("li")] == [
        f"canaries: epsilon is at least 1.5, and the proven one is {round_up(run.epsilon)}."
    ]


@pytest.mark.parametrize("name", ["void", "mlp"])
def test_where_nothing_is_promised_an_audit_contradicts_nothing(audited, name):
    tree, _ = audited(REPLAY | BROKEN, FLOOR, MEMBERSHIP, name=name)
    assert not tree.all(class_="alarm")
    assert not tree.all("p", class_="accused")
    assert len(tree.one("table", class_="floors").table()) == 1
    assert len(tree.one("table", class_="attacks").table()) == 1
    assert len(tree.one("ul", class_="violations").all("li")) == 2


@pytest.mark.parametrize("value", [0.0, 1e-7 / 3, 0.25, 0.9999999, 5.4321987, 123456.7])
def test_a_floor_is_never_rounded_up(value):
    shown = float(wording.round_down(value))
    assert value * 0.9989 <= shown <= value * (1 + 1e-9)


@pytest.mark.parametrize("figure", [None, "<b>", [1, 2], {"a": 1}, True, 1e400, 10**30, -0.5])
def test_figures_of_any_kind_are_shown_as_text(audited, figure):
    kinds = {
        "ratio": figure,
        "auc": figure,
        "tpr@0.01": figure,
        "largest_tpr@0.01": figure,
        "proven": figure,
        "neighbours": figure,
        "x": 1.0,
    }
    tree, _ = audited(
        *({"kind": kind, "name": kind, "figures": kinds} for kind in ("replay", "mechanism")),
        {"kind": "attack", "name": "a", "figures": kinds},
    )
    assert all(tree.all("table", class_=name) for name in ("replays", "mechanisms", "attacks"))


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"format": 3, "results": []}', json.dumps(attack(epsilon_at_least=-1)),
     json.dumps(attack(confidence=1.0)), json.dumps(attack(trials="many")),
     '{"format": 1, "results": [{}]}', '{"format": 1, "results": 3}',
     '{"format": 2, "results": [{}]}', json.dumps(findings({"kind": "rumour"})),
     json.dumps(findings({"epsilon_at_least": 1.0})), json.dumps(findings({"figures": 3})),
     json.dumps(findings({"violations": 3}))],
)  # fmt: skip
def test_a_damaged_audit_is_refused(copied, refused, tmp_path, content):
    directory, _ = copied()
    (directory / "audit.json").write_text(content)
    assert "audit.json" in refused("report", directory, "--out", tmp_path / "page.html")


# --- somebody else's text -------------------------------------------------------------------------

HOSTILE = (
    "<script>document.title='owned'</script>",
    '"><img src=x onerror=alert(1)>',
    "</style><script>alert(1)</script>",
)


@pytest.fixture
def hostile(copied, tmp_path):
    """A run whose every free text is an attack."""
    directory, change = copied("eight", to="<svg onload=alert(1)>")
    rename_classes(directory, HOSTILE)
    change("settings.json", lambda c: c["data"].update(data=HOSTILE[1]))
    change(
        "environment.json", lambda c: c.update(system=HOSTILE[0], versions={HOSTILE[2]: HOSTILE[1]})
    )
    audit = findings(
        FLOOR | {"name": HOSTILE[0], "note": HOSTILE[2] + "\u202egnp.exe", "bound": HOSTILE[1]},
        REPLAY | {"name": HOSTILE[1], "holds": False, "violations": [{"rule": HOSTILE[2]}]},
        DRAWS | {"figures": {"ratio": HOSTILE[1]}},
        MEMBERSHIP | {"figures": {HOSTILE[0]: HOSTILE[2]}},
    )
    (directory / "audit.json").write_text(json.dumps(audit))
    return directory


def test_pages_hold_only_our_own_script_and_load_nothing(rendered):
    for names in (("one",), ("one", "eight", "edge", "claimed", "void", *OPEN)):
        text = rendered(*names)
        assert_only_our_own(text)
        assert "@import" not in text
        assert "url(" not in text


def test_a_hostile_run_directory_is_shown_as_text(hostile, read):
    for runs in ([evidence.read(str(hostile))], [evidence.read(str(hostile)), read("eight")]):
        tree = assert_only_our_own(page.render(runs))
        for text in HOSTILE:
            assert text in tree.text
        assert "\u202e" not in tree.text
        assert "\N{REPLACEMENT CHARACTER}gnp.exe" in tree.text


# --- damage ---------------------------------------------------------------------------------------

FILES = (
    "settings.json",
    "certificate.json",
    "events.json",
    "metrics.json",
    "environment.json",
    "model.safetensors",
)


def half(content):
    return content[: len(content) // 2]


DAMAGE = {
    "missing": lambda path, other: path.unlink(),
    "empty": lambda path, other: path.write_bytes(b""),
    "cut short": lambda path, other: path.write_bytes(half(path.read_bytes())),
    "no object": lambda path, other: path.write_text("[1, 2]"),
    "nothing in it": lambda path, other: path.write_text("{}"),
    "bytes": lambda path, other: path.write_bytes(b"\xff\xfe\x00{"),
    "a directory": lambda path, other: (path.unlink(), path.mkdir()),
    "another run's": lambda path, other: path.write_bytes(other.read_bytes()),
}
# Metrics and environment are read and typed, but nothing ties them to a run.
CASES = [
    (file, damage)
    for file in FILES
    for damage in DAMAGE
    if damage != "another run's" or file not in ("metrics.json", "environment.json")
]


@pytest.mark.parametrize("file, damage", CASES)
def test_a_damaged_run_is_one_line(copied, trained, refused, tmp_path, file, damage):
    directory, _ = copied("one")
    DAMAGE[damage](directory / file, trained / "edge" / file)
    message = refused("report", directory, "--out", tmp_path / "page.html")
    assert str(directory) in message
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    "name, file, edit",
    [
        ("one", "certificate.json", lambda c: c["guarantee"].update(epsilon=0.1)),
        ("one", "certificate.json", lambda c: c.update(pld=0.1)),
        ("one", "certificate.json", lambda c: c["guarantee"].update(unit="edge-directed")),
        ("one", "certificate.json", lambda c: c["guarantee"].update(delta=1e-9)),
        ("void", "certificate.json", lambda c: c.update(void_because=[])),
        ("claimed", "certificate.json", lambda c: c.update(claim=None)),
        ("one", "metrics.json", lambda c: c.update(test_accuracy=1.5)),
        ("one", "metrics.json", lambda c: c.update(test_accuracy="<b>")),
        ("one", "metrics.json", lambda c: c.update(class_count=[1, 2])),
        ("one", "metrics.json", lambda c: c.update(confusion=[[1, 2], [3, 4]])),
        ("one", "metrics.json", lambda c: c["confusion"][0].__setitem__(0, -1)),
        ("one", "metrics.json", lambda c: c["confusion"][0].__setitem__(0, 999)),
        ("one", "metrics.json", lambda c: c.update(class_count=[-1, 2, 3])),
        ("one", "metrics.json", lambda c: c.update(class_accuracy=[float("nan")] * 3)),
        ("one", "settings.json", lambda c: c.update(class_names=["a"])),
        ("one", "settings.json", lambda c: c.update(format=99)),
        ("one", "events.json", lambda c: c.update(format=99)),
        ("one", "metrics.json", lambda c: c.update(format=99)),
        ("one", "environment.json", lambda c: c.update(versions=3)),
    ],
)
def test_a_run_that_was_tampered_with_is_refused(copied, refused, tmp_path, name, file, edit):
    directory, change = copied(name)
    change(file, edit)
    assert file in refused("report", directory, "--out", tmp_path / "page.html")


NONSENSE = (None, -1, 1e400, float("nan"), "", [], {}, "<script>x</script>", 10**30, True)


def scrambled(rng, value):
    """A JSON value with something in it replaced by nonsense, or gone."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        if rng.random() < 0.15:
            return {name: inside for name, inside in value.items() if name != key}
        return {**value, key: scrambled(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        return [*value[:place], scrambled(rng, value[place]), *value[place + 1 :]]
    return rng.choice(NONSENSE)


@pytest.mark.parametrize("seed", range(40))
def test_a_scrambled_run_is_one_line_or_a_page_of_our_own(copied, run, tmp_path, seed):
    rng = random.Random(seed)
    directory, _ = copied(rng.choice(("one", "parts", "void", "mlp")))
    audit = findings(FLOOR, REPLAY | BROKEN, DRAWS, MEMBERSHIP)
    (directory / "audit.json").write_text(json.dumps(audit))
    file = rng.choice(sorted(directory.glob("*.json")))
    content = bytearray(file.read_bytes())
    how = rng.randrange(3)
    if how == 0:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif how == 1:
        del content[rng.randrange(len(content)) :]
    else:
        content = json.dumps(scrambled(rng, json.loads(content))).encode()
    file.write_bytes(content)
    out = tmp_path / "page.html"
    code, _, err = run("report", directory, "--out", out)
    if code == 0:
        assert_only_our_own(out.read_text())
    else:
        assert (code, err.count("\n")) == (2, 1)


def test_the_sentences_on_the_page_are_the_librarys(copied, rendered):
    directory, change = copied()
    promised = "everything, to everybody, for ever"
    change(
        "certificate.json", lambda c: c.update(released=promised, voided_by=[], public=[promised])
    )
    text = page.render([evidence.read(str(directory))])
    assert promised not in text
    assert "the secret random stream was fixed" in text


def test_what_is_no_finished_run_is_one_line(refused, tmp_path, copied):
    out = tmp_path / "page.html"
    assert "nowhere" in refused("report", tmp_path / "nowhere", "--out", out)
    (tmp_path / "file").write_text("x")
    assert "file" in refused("report", tmp_path / "file", "--out", out)
    directory, _ = copied()
    (directory / "certificate.json").unlink()
    assert "--resume" in refused("report", directory, "--out", out)


# --- the command ----------------------------------------------------------------------------------


def test_the_command_writes_the_page_and_says_what_is_in_it(trained, run, tmp_path, read):
    out = tmp_path / "page.html"
    code, printed, err = run("report", trained / "one", trained / "void", "--out", out, "--json")
    assert (code, err) == (0, "")
    result = json.loads(printed)
    assert [row["guarantee"] for row in result["runs"]] == ["proven", "void"]
    assert [row["epsilon"] for row in result["runs"]] == [read("one").epsilon, "inf"]
    assert result["note"] == page.OUTSIDE
    assert out.read_text() == page.render([read("one"), read("void")])


def test_a_page_that_is_there_is_kept_without_force(trained, run, refused, tmp_path):
    out = tmp_path / "page.html"
    out.write_text("mine")
    assert "--force" in refused("report", trained / "one", "--out", out)
    assert out.read_text() == "mine"
    assert run("report", trained / "one", "--out", out, "--force")[0] == 0
    assert out.read_text() != "mine"


@pytest.mark.parametrize("out", ["page.pdf", "page", "no/such/folder/page.html"])
def test_a_page_that_cannot_be_is_refused_before_anything_is_read(refused, tmp_path, out):
    message = refused("report", tmp_path / "nowhere", "--out", tmp_path / out)
    assert out.partition("/")[0] in message
    assert "nowhere" not in message


def test_the_same_run_twice_is_refused(refused, trained, tmp_path):
    again = trained / "void" / ".." / "one"
    assert "twice" in refused("report", trained / "one", again, "--out", tmp_path / "page.html")


def test_drawing_a_page_needs_neither_torch_nor_methods():
    heavy = ("torch", "torch_geometric", "graphveil.methods", "sklearn")
    check = "import sys\nfrom graphveil.report import page, plan_page, plots\n"
    check += f"print(set({heavy}) & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", check], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


def test_the_same_runs_give_the_same_bytes_in_another_process(trained, tmp_path, rendered):
    out = tmp_path / "page.html"
    names = ("one", "parts", "claimed", "mlp")
    given = [str(trained / name) for name in names]
    subprocess.run(
        [sys.executable, "-m", "graphveil", "report", *given, "--out", str(out)],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        check=True,
        capture_output=True,
    )
    assert out.read_text() == rendered(*names)
