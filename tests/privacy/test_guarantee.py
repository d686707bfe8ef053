"""Units, guarantees and certificates: nothing is lost in writing, nothing false is printed."""

import json
import math
import re
from dataclasses import replace

import dp_accounting as dpa
import pytest

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.privacy import accounting
from graphveil.privacy.events import GumbelTopKDpEvent, SampledGaussianDpEvent, repeated
from graphveil.privacy.guarantee import (
    ALWAYS_PUBLIC,
    ALWAYS_VOIDED_BY,
    DECLARED_PUBLIC,
    TUNED,
    UNITS,
    Certificate,
    Charge,
    Claimed,
    Guarantee,
    certify,
    check_delta,
    default_delta,
    round_up,
)
from graphveil.privacy.tradeoff import largest_tpr, tpr_of

TRAINING = repeated(SampledGaussianDpEvent(rate=0.3, noise_multiplier=4.0, altered=2), 20)
CHARGES = (
    Charge(paid_for="training", event=TRAINING),
    Charge(paid_for="aggregation", event=dpa.GaussianDpEvent(3.0)),
)


def full_certificate(**changes):
    settings = {
        "unit": "node",
        "delta": 1e-5,
        "released": "model weights",
        "public": ["degree bound 10"],
        "inference": ["visible: a node may see its neighbours' features"],
        "claim": Claimed(epsilon=3.0, source="a paper", why_it_differs="it forgets a factor"),
    }
    return certify(CHARGES, **(settings | changes))


def test_the_certificate_charges_exactly_the_sum_of_its_events():
    certificate = full_certificate()
    whole = dpa.ComposedDpEvent([TRAINING, dpa.GaussianDpEvent(3.0)])
    priced = accounting.price(whole, 1e-5)
    assert certificate.guarantee.epsilon == priced.epsilon == min(certificate.pld, certificate.rdp)
    assert (certificate.pld, certificate.rdp) == (priced.pld, priced.rdp)
    assert certificate.event == whole


@pytest.mark.parametrize(
    "certificate",
    [
        full_certificate(),
        full_certificate(void_because=["the stream was fixed"], claim=None),
        certify(
            [Charge(paid_for="top-k", event=GumbelTopKDpEvent(noise_multiplier=2.0, k=3))],
            unit="edge-undirected",
            delta=1e-6,
            released="names",
        ),
        certify(
            [Charge(paid_for="a leak", event=dpa.NonPrivateDpEvent())],
            unit="graph",
            delta=1e-3,
            released="raw data",
        ),
    ],
    ids=["full", "void", "rdp only", "no guarantee"],
)
def test_json_reads_back_to_an_equal_certificate(certificate):
    assert Certificate.from_json(certificate.to_json()) == certificate
    assert Certificate.from_json(certificate.to_json(indent=None)) == certificate


@pytest.mark.parametrize("render", [str, Certificate.to_markdown], ids=["text", "markdown"])
def test_everything_a_privacy_officer_asks_for_is_on_the_page(render):
    certificate = full_certificate()
    page = render(certificate)
    for part in (
        round_up(certificate.guarantee.epsilon),
        "1e-05",
        "one node's row",
        "somebody else's list may still name the node",
        "20 x SampledGaussian(rate=0.3, noise_multiplier=4, removed=1, altered=2)",
        "Gaussian(noise_multiplier=3)",
        "degree bound 10",
        "the number of nodes",
        "visible: a node may see",
        "the secret random stream was fixed",
        "claimed by a paper: 3",
        "it forgets a factor",
        "dp-accounting",
        "model weights",
    ):
        assert part in page


@pytest.mark.parametrize(
    ("words", "one", "protects", "left_out"),
    [
        ({"record": "patient"}, "one patient", "one patient's row: its features", "the patient"),
        (
            {"record": "user", "targets": "public"},
            "one user",
            "one user's row and whole list of targets, however long",
            "the rows of targets, which are public",
        ),
        ({"targets": "public"}, "one source", "one source's row and whole list", "rows of targets"),
        (
            {"targets": "people"},
            "one node",
            "one node's row and own list",
            "somebody else's list may still name the node",
        ),
        (
            {"targets": "public", "unit": "edge-directed"},
            "one link",
            "the presence of one link",
            "the rows and ids of both ends",
        ),
        ({"record": "visit", "unit": "graph"}, "one visit", "one visit, which is one whole", "how"),
    ],
)
def test_a_unit_is_said_in_the_words_of_the_data(words, one, protects, left_out):
    certificate = full_certificate(**words)
    guarantee, page = certificate.guarantee, str(certificate)
    assert guarantee.one == one
    assert f"differential privacy for {one}," in page
    assert f"Protects {protects}" in page
    assert left_out in next(line for line in page.splitlines() if "Leaves out" in line)
    assert guarantee.unit == words.get("unit", "node")
    assert Certificate.from_json(certificate.to_json()) == certificate
    if "targets" in words:
        assert not any(word in page for word in ("label", "classes", "nodes it sends to"))


@pytest.mark.parametrize("render", [str, Certificate.to_markdown], ids=["text", "markdown"])
def test_a_void_certificate_promises_nothing_and_says_so_first(render):
    certificate = full_certificate(void_because=[None, "The secret stream was fixed."])
    assert certificate.guarantee.epsilon == math.inf
    page = render(certificate)
    assert page.index("VOID: The secret stream was fixed.") < page.index("no guarantee")
    assert "differential privacy for one node" not in page
    assert "the smaller one" not in page
    assert page.index("none holds") < page.index("(PLD)")


@pytest.mark.parametrize("value", [4.27732, 5.270051, 1e-7 / 3, 0.1, 2.0, 99.999, 123456.7, 8.0])
def test_a_printed_epsilon_is_never_below_the_proven_one(value):
    shown = float(round_up(value))
    assert value * (1 - 1e-9) <= shown <= value * 1.0011


def test_removal_needs_a_public_degree_and_names_it():
    with pytest.raises(UnprovenError, match="public_degree"):
        full_certificate(relation="remove")
    with pytest.raises(UnprovenError, match="public_degree"):
        full_certificate(public_degree=5)
    assert "at most 5 lists" in str(full_certificate(relation="remove", public_degree=5))


def test_a_claim_never_changes_what_is_proven():
    with_claim, without = full_certificate(), full_certificate(claim=None)
    assert with_claim.guarantee == without.guarantee


def test_an_undirected_edge_is_told_from_a_directed_one():
    assert UNITS["edge-directed"].protects != UNITS["edge-undirected"].protects


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"unit": "person"}, ["'unit'", "'person'", "'node'"]),
        ({"relation": "replace"}, ["'relation'", "'replace'", "'withhold'"]),
        ({"unit": "graph", "relation": "remove"}, ["'remove'", "'graph'"]),
        ({"epsilon": -1.0}, ["'epsilon'", "-1.0", "[0, inf]"]),
        ({"epsilon": math.nan}, ["'epsilon'", "nan"]),
        ({"delta": 1.0}, ["'delta'", "1.0", "[0, 1)"]),
    ],
)
def test_a_guarantee_that_makes_no_sense_is_refused(settings, words):
    with pytest.raises(InvalidInputError) as caught:
        Guarantee(**({"unit": "node", "epsilon": 1.0, "delta": 1e-5} | settings))
    message = str(caught.value)
    assert all(word in message for word in words)
    assert "\n" not in message


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"guarantee": 3}', full_certificate().to_json()[:-40]]
)
def test_what_is_not_a_certificate_is_refused_in_one_line(text):
    with pytest.raises(InvalidInputError, match="not a certificate") as caught:
        Certificate.from_json(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("units", [1, 2, 9, 10, 11, 99, 100, 19717, 169343, 10**12])
def test_the_default_delta_is_the_largest_power_of_ten_below_one_over_n(units):
    delta = default_delta(units)
    assert delta < 1 / units <= 10 * delta * (1 + 1e-12)
    assert math.log10(delta) == pytest.approx(round(math.log10(delta)), abs=1e-12)
    assert check_delta(delta, units) == delta


@pytest.mark.parametrize("units", [10, 20000])
def test_a_delta_that_allows_publishing_a_row_is_refused(units):
    with pytest.raises(UnprovenError, match=f"n = {units} units") as caught:
        check_delta(1 / units, units)
    assert caught.value.exit_code == 3
    assert f"{default_delta(units):g} is the default" in str(caught.value)


@pytest.mark.parametrize("how", [{"tuned": True}, {"public": [f"{TUNED}by 3 trials"]}])
def test_settings_that_were_tuned_change_what_stands_on_every_certificate(how):
    usual, tuned = full_certificate(), full_certificate(**how)
    assert usual.public[1 : len(ALWAYS_PUBLIC) + 1] == ALWAYS_PUBLIC
    assert usual.voided_by == ALWAYS_VOIDED_BY
    assert "that were not varied" in tuned.public[2]
    assert "any other score" in tuned.voided_by[1]
    assert (tuned.public[1], tuned.voided_by[2]) == (ALWAYS_PUBLIC[0], ALWAYS_VOIDED_BY[2])
    assert "split: " not in str(usual)  # which reads like the value of an option


@pytest.mark.parametrize("unit", UNITS)
def test_what_is_counted_in_public_has_its_own_name(unit):
    event = dpa.GaussianDpEvent(noise_multiplier=3.0)
    charges = [Charge(paid_for="a sum", event=event)]
    certificate = certify(charges, unit=unit, delta=1e-5, released="a sum")
    records = {"graph": "graphs", "owner": "records"}.get(unit, "nodes")
    assert certificate.public[0].startswith(f"the number of {records}, ")
    assert "one edge-" not in str(certificate)


def test_each_unit_says_how_two_data_sets_differ():
    """A node has a row, an owner several: an edge or a graph is missing, and no row is null."""
    said = {}
    for unit in UNITS:
        (said[unit],) = (
            line for line in str(full_certificate(unit=unit)).splitlines() if "Relation: " in line
        )
    assert "the node's row is the null row" in said["node"]
    assert "the edge is missing" in said["edge-directed"]
    assert "both its messages" in said["edge-undirected"]
    assert "the graph is missing" in said["graph"]
    assert "all records of the owner are null rows" in said["owner"]
    assert sum("row" in line for line in said.values()) == 2


NOT_PROTECTED = f"the validation nodes: {DECLARED_PUBLIC}, and not protected"


@pytest.mark.parametrize(
    "given",
    [
        {"public": [NOT_PROTECTED, "a degree"]},
        {"public": [NOT_PROTECTED, "a degree"], "unprotected": [NOT_PROTECTED]},
    ],
)
def test_units_that_were_declared_public_are_named_beside_the_unit(given):
    certificate = full_certificate(**given)
    assert certificate.unprotected == (NOT_PROTECTED,)
    assert certificate.public[-2:] == (NOT_PROTECTED, "a degree")
    text = str(certificate)
    assert text.index(f"Not protected: {NOT_PROTECTED}.") < text.index("EPSILON")
    assert full_certificate().unprotected == ()


def test_what_is_not_protected_is_public_whatever_its_words():
    certificate = full_certificate(public=["a degree"], unprotected=["all of last year's nodes"])
    assert certificate.unprotected == ("all of last year's nodes",)
    assert certificate.public[-2:] == ("a degree", "all of last year's nodes")
    assert Certificate.from_json(certificate.to_json()) == certificate


def test_older_certificates_keep_their_meaning():
    """They have no field for lines that are not protected, only the words in them."""
    certificate = full_certificate(public=[NOT_PROTECTED])
    older = json.loads(certificate.to_json())
    del older["unprotected"], older["vouched"]
    assert Certificate.from_json(json.dumps(older)) == replace(certificate, vouched=())


def test_what_membership_tests_can_reach_follows_from_the_charges():
    certificate = full_certificate()
    rates = {fpr: largest_tpr(certificate.event, fpr) for fpr in (0.001, 0.01)}
    assert certificate.largest_tpr == pytest.approx(rates, rel=1e-3)
    guarantee = certificate.guarantee
    for fpr, tpr in certificate.largest_tpr.items():
        assert fpr < tpr < tpr_of(guarantee.epsilon, guarantee.delta, fpr)
        percent = round_up(100 * tpr, 3)
        nodes = "the nodes that took no part (their rows are empty)"
        line = f"accuses {100 * fpr:g} % of {nodes} finds at most {percent} %"
        assert line in str(certificate)
        assert line in certificate.to_markdown()
        assert line in certificate._repr_html_()
        assert float(percent) >= 100 * tpr * (1 - 1e-9)
    saved = json.loads(certificate.to_json())["largest_tpr"]
    assert saved == {f"{fpr:g}": tpr for fpr, tpr in certificate.largest_tpr.items()}


def test_a_certificate_without_an_epsilon_is_silent_about_membership_tests():
    leak = Charge(paid_for="a leak", event=dpa.NonPrivateDpEvent())
    for certificate in (
        full_certificate(void_because=["the stream was fixed"]),
        certify([leak], unit="graph", delta=1e-3, released="raw data"),
    ):
        assert certificate.largest_tpr == {}
        assert "accuses" not in str(certificate)
        assert "largest_tpr" not in json.loads(certificate.to_json())


def test_rates_in_a_file_are_neither_needed_nor_believed():
    certificate = full_certificate()
    content = json.loads(certificate.to_json())
    for rates in ({"0.001": 0.0}, None, "<b>"):
        content["largest_tpr"] = rates
        again = Certificate.from_json(json.dumps(content))
        assert again.largest_tpr == certificate.largest_tpr
    del content["largest_tpr"]
    assert str(Certificate.from_json(json.dumps(content))) == str(certificate)


def test_a_notebook_shows_every_line_and_runs_nothing():
    certificate = full_certificate(
        public=["<script>alert('x')</script> & <img src=x onerror=y>"], void_because=["a <b> seed"]
    )
    html = certificate._repr_html_()
    assert html.count("<li>") == sum(len(lines) for _, lines in certificate._sections())
    assert "<script" not in html
    assert "<img" not in html
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; &lt;img" in html
    assert "<li>VOID: a &lt;b&gt; seed</li>" in html
    tags = set(re.findall(r"</?([a-z0-9]+)", html))
    assert tags == {"div", "h4", "ul", "li"}


def test_parts_are_said_to_cost_less_together_only_where_they_do():
    assert "cost less" in "".join(full_certificate().notes)
    free = Charge(paid_for="a look at public data", event=dpa.NoOpDpEvent())
    alone = certify([CHARGES[0], free], unit="node", delta=1e-5, released="model weights")
    assert "by itself: epsilon" in "".join(alone.notes)
    assert "cost less" not in "".join(alone.notes)
