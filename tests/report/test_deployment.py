"""Cards of runs keep the registry's rules, and hold nothing that nobody stated."""

import datetime
import re
from dataclasses import replace

import pytest

from graphveil import InvalidInputError, UnprovenError
from graphveil.methods.inference import PAID_FOR_PREDICTION
from graphveil.privacy.guarantee import Charge, round_up
from graphveil.report import deployment, statement
from graphveil.report.owner import Owner, read_owner

yaml = pytest.importorskip("yaml")

# What the registry's schema asks: the keys of each table, those that must be there, and kinds.
TABLES = {
    "": ("url_slug! status! tier! deployment!"),
    "deployment": (
        "basic! dp_variant privacy_loss deployment_model accounting implementation administrative"
    ),
    "deployment.basic": (
        "name! data_curators! description! intended_use! data_product_type! data_product_region! "
        "publication_date! data_product_sector"
    ),
    "deployment.dp_variant": "variant_name data_domain unprotected_quantities",
    "deployment.privacy_loss": (
        "privacy_unit privacy_unit_details privacy_parameters privacy_parameters_details"
    ),
    "deployment.privacy_loss.privacy_parameters": "epsilon delta rho",
    "deployment.deployment_model": (
        "model_name model_name_details actors release_type release_type_details data_source_type "
        "data_source_type_details access_type access_type_details"
    ),
    "deployment.accounting": "post_processing composition",
    "deployment.implementation": (
        "preprocessing_and_hyperparameter_tuning mechanisms justification"
    ),
    "deployment.administrative": "sources notes registry_authors!",
}
WORDS = {
    "status": {"Draft"},
    "tier": {1, 2, 3},
    "deployment.basic.data_product_type": {"Machine learning model"},
    "deployment.basic.data_product_sector": {
        "Technology", "Healthcare", "Education", "Government", "Energy", "Finance",
    },
    "deployment.dp_variant.variant_name": {"Pure DP", "Approximate DP"},
    "deployment.deployment_model.model_name": {"Local", "Central", "Shuffle", "Federated"},
    "deployment.deployment_model.release_type": {"One release", "Many releases"},
    "deployment.deployment_model.data_source_type": {"Static", "Dynamic"},
    "deployment.deployment_model.access_type": {"Interactive", "Non-interactive"},
}  # fmt: skip
LISTS = {"deployment.basic.data_curators", "deployment.administrative.registry_authors"}
NUMBERS = {
    "tier",
    "deployment.privacy_loss.privacy_parameters.epsilon",
    "deployment.privacy_loss.privacy_parameters.delta",
}

FACTS = {
    "name": "Risk: \N{LATIN SMALL LETTER E WITH ACUTE} of ward 3",
    "owner": ["Hospital of Anytown"],
    "purpose": "To plan beds.\nA week ahead.",
    "region": "Anytown",
    "published": "2026-11-19",
    "authors": ["Ann"],
    "releases": "One release",
    "data_source": "Static",
}
MORE = {"actors": "Ann.", "justification": "Reasons.", "preprocessing": "None."}


def problems(node, place=""):
    """Every way in which a record breaks the registry's rules."""
    if place in TABLES:
        if not isinstance(node, dict):
            return [f"{place} is no table"]
        asked = TABLES[place].split()
        known = {name.rstrip("!") for name in asked}
        lines = [f"{place}.{name} is unknown" for name in node if name not in known]
        lines += [
            f"{place}.{n[:-1]} is missing" for n in asked if n[-1] == "!" and n[:-1] not in node
        ]
        for name, value in node.items():
            lines += problems(value, f"{place}.{name}".lstrip("."))
        return lines
    if place in LISTS:
        good = isinstance(node, list) and node and all(isinstance(text, str) for text in node)
    elif place in NUMBERS:
        good = isinstance(node, (int, float)) and not isinstance(node, bool)
    else:
        good = isinstance(node, str) and bool(node)
    if good and place in WORDS:
        good = node in WORDS[place]
    if good and place.endswith("publication_date"):
        good = bool(re.fullmatch(r"\d{4}-\d\d-\d\d", node))
    return [] if good else [f"{place} cannot be {node!r}"]


def test_the_rules_notice_what_breaks_them(read):
    record = deployment.card(read("one"), Owner(**FACTS))
    basic = record["deployment"]["basic"]
    assert problems(record) == []
    for key, value in [
        ("name", None), ("data_curators", []), ("publication_date", "1/1/2026"),
        ("publication_date", datetime.date(2026, 1, 1)), ("data_product_type", "Model"),
        ("surprise", "x"),
    ]:  # fmt: skip
        broken = {**record, "deployment": {**record["deployment"], "basic": {**basic, key: value}}}
        assert len(problems(broken)) == 1
    assert problems({**record, "tier": 0}) == ["tier cannot be 0"]


@pytest.mark.parametrize("name", ["one", "eight", "parts", "edge", "claimed"])
@pytest.mark.parametrize("more", [{}, MORE, {"sector": "Healthcare", "notes": "N", "slug": "s"}])
def test_a_card_keeps_the_registry_s_rules(name, more, read):
    record = deployment.card(read(name), Owner(**FACTS, **more))
    text = deployment.to_yaml(record)
    again = yaml.safe_load(text)
    assert again == record
    assert problems(again) == []
    assert again["tier"] == (3 if more is MORE else 2)
    # Text is plain, quoted or a block that keeps its lines, and holds no stray backslash.
    styles = {token.style for token in yaml.scan(text) if hasattr(token, "style")}
    assert styles <= {None, "|", '"', "'"}
    assert "\\\\" not in text


def test_figures_are_the_certificates(read):
    run = read("eight")
    loss = deployment.card(run, Owner(**FACTS))["deployment"]["privacy_loss"]
    guarantee = run.certificate.guarantee
    assert loss["privacy_parameters"]["epsilon"] == float(round_up(guarantee.epsilon))
    assert loss["privacy_parameters"]["epsilon"] >= guarantee.epsilon * (1 - 1e-8)
    assert loss["privacy_parameters"]["delta"] == guarantee.delta
    for tpr in run.certificate.largest_tpr.values():
        assert f"finds at most {round_up(100 * tpr, 3)} %" in loss["privacy_parameters_details"]


def test_predictions_that_are_charged_at_every_call_are_interactive(read):
    def access(run):
        return deployment.card(run, Owner(**FACTS))["deployment"]["deployment_model"]["access_type"]

    run = read("one")
    more = Charge(paid_for=PAID_FOR_PREDICTION, event=run.certificate.charges[0].event)
    certificate = replace(run.certificate, charges=(*run.certificate.charges, more))
    assert access(run) == "Non-interactive"
    assert access(replace(run, certificate=certificate)) == "Interactive"


def test_the_terms_of_nist_and_the_fingerprint_stand_in_it(read):
    run = read("one")
    record = deployment.card(run, Owner(**FACTS))["deployment"]
    notes = record["administrative"]["notes"]
    for term in ("NIST SP 800-226", "privacy unit", "privacy parameters", "trust model", "hazards"):
        assert term in notes
    for hazard in run.certificate.voided_by:
        assert f"Void if {hazard}." in notes
    assert statement.fingerprint_of(run) in notes
    for line in run.certificate.public:
        assert line in record["dp_variant"]["unprotected_quantities"]


def test_what_only_the_owner_knows_is_asked_for_all_at_once(read):
    with pytest.raises(InvalidInputError) as refusal:
        deployment.card(read("one"), Owner(owner="Ann", name="Risk"))
    for name in deployment.REQUIRED:
        assert (f"{name} (" in str(refusal.value)) == (name not in ("owner", "name"))
    draft = deployment.card(read("one"), Owner(), draft=True)
    text = deployment.to_yaml(draft)
    assert text.count(deployment.TODO) == len(deployment.REQUIRED)
    assert draft["tier"] == 1
    for name in ("actors", "justification", "data_product_sector", "sources"):
        assert f"{name}:" not in text


@pytest.mark.parametrize("name,why", [("void", "void"), ("mlp", "not private")])
def test_what_promises_nothing_has_no_card(name, why, read):
    with pytest.raises(UnprovenError, match=why):
        deployment.card(read(name), Owner(**FACTS))


def test_a_card_names_no_path_and_no_score(copied):
    from graphveil.report import evidence

    directory, change = copied("eight")
    change("settings.json", lambda c: c["data"].update(data="/home/ann/ward-3.csv"))
    run = evidence.read(str(directory))
    text = deployment.to_yaml(deployment.card(run, Owner(**FACTS)))
    for secret in ("ward-3.csv", "/home", "accuracy", str(directory)):
        assert secret not in text


def test_the_owners_facts_are_read_and_options_count_more(tmp_path):
    path = tmp_path / "owner.toml"
    path.write_text('name = "A"\nowner = "Ann"\npublished = 2026-11-19\nsector = "Energy"\n')
    owner = read_owner(str(path), {"name": "B", "authors": (), "region": None})
    assert (owner.name, owner.owner, owner.published) == ("B", ("Ann",), "2026-11-19")
    assert read_owner(None, {}) == Owner()


@pytest.mark.parametrize(
    "text,why",
    [
        ("name = 3", "'name'"),
        ("surprise = 'x'", "unknown key"),
        ("published = '19/11/2026'", "published"),
        ("releases = 'Three'", "releases"),
        ("sector = 'Farming'", "sector"),
        ("name = ''", "'name'"),
        ("owner = ['Ann', 3]", "'owner'"),
        ('name = "a\\u202eb"', "'name'"),
        ("name = ", "TOML"),
    ],
)
def test_facts_that_cannot_be_are_refused(text, why, tmp_path):
    path = tmp_path / "owner.toml"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=why):
        read_owner(str(path), {})
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_owner(str(tmp_path / "absent.toml"), {})


@pytest.mark.parametrize("name", ["Card.yaml", "a-card.yaml", "card.yml", ".yaml"])
def test_files_are_named_as_the_registry_asks(name):
    deployment.check_name("ward_3.yaml")
    with pytest.raises(InvalidInputError, match="yaml"):
        deployment.check_name(name)
