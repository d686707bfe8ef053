"""A plan that is read for others is the one that its method makes, and no other one."""

import json
from dataclasses import replace

import dp_accounting as dpa
import pytest
from report_cases import edit_plan

from graphveil import VerificationError, cli
from graphveil._validate import is_name
from graphveil.methods import METHODS, Facts, Plan, tuned
from graphveil.methods.parts import Earlier
from graphveil.methods.plan_checks import check_plan
from graphveil.privacy import signing
from graphveil.privacy.agreement import check_whole
from graphveil.privacy.guarantee import DECLARED_PUBLIC, charges_from_json
from graphveil.report import evidence, statement
from graphveil.tuning import Tuning, values_of

FACTS = {
    "node": Facts(num_nodes=300, num_features=5, num_classes=3, num_train=200, directed=False),
    "graph": Facts(
        num_nodes=300, num_features=5, num_classes=3, num_train=200, directed=False, record="graph"
    ),
    "link": Facts(
        num_nodes=300, num_features=5, num_classes=40, num_train=200, directed=True,
        record="link", task="link", target_features=4,
    ),
}  # fmt: skip
OWNED = {"num_owners": 150, "train_rows": 200, "owner_rows": 4}
MODES = [
    ("dp-gnn", {"num_layers": 2, "sender_cap": 4}),
    ("dp-gnn", {"unit": "edge"}),
    ("dp-gnn", {"relation": "remove", "public_degree": 6}),
    ("dp-gnn", {"paper": True, "sender_cap": 2, "steps": 3}),
    ("dp-gnn", {"class_weights": "noisy"}),
    ("dp-gnn", {"clipping": "per_layer"}),
    ("gap", {"unit": "edge"}),
    ("gap", {"unit": "edge", "paper": True}),
    ("dpar", {"graph_rate": 0.5}),
    ("dp-link", {"unit": "edge"}),
    ("late-graph", {"class_weights": [1.0, 2.0, 1.0]}),
]


def make(name, **settings):
    kind = METHODS[name]
    return kind(**({"epsilon": 3.0} if kind.private else {}), **settings)


def read_back(plan):
    """The plan as somebody else reads it."""
    return Plan.from_json(json.loads(json.dumps(plan.to_json())))


# --- honest plans ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name, settings", [*((name, {}) for name in METHODS), *MODES])
def test_what_a_method_plans_is_its_plan(name, settings):
    method = make(name, **settings)
    plan = read_back(method.plan(FACTS[method.record]))
    check_plan(plan, method)
    check_plan(plan, METHODS[name](**plan.settings))


@pytest.mark.parametrize("name", ["late-graph", "dp-mlp", "dp-gnn", "graph-dpsgd"])
def test_what_a_method_plans_for_owners_is_its_plan(name):
    method = make(name, **({"delivery": 1.0} if name == "dp-gnn" else {}))
    facts = replace(FACTS[method.record], num_train=120, **OWNED)
    plan = replace(read_back(method.plan(facts)), owner_name="patient", record_name="visit")
    assert plan.unit == "owner"
    check_plan(plan, method)


@pytest.mark.parametrize("scores", ["private", "public-validation", "public-data"])
@pytest.mark.parametrize("fixed", [True, False])
def test_a_plan_whose_settings_trials_chose_is_its_plan(scores, fixed):
    data = "cora" if scores == "public-data" else None
    tuning = Tuning(
        method="dp-mlp", vary={"learning_rate": values_of("learning_rate", "0.01..0.1")},
        trials=5, epsilon=3.0, scores=scores, public_data=data, fixed=fixed,
    )  # fmt: skip
    method = make("dp-mlp")
    before = replace(method.plan(FACTS["node"]), public=("a line of the data",))
    plan = read_back(tuning.apply_to(before))
    assert plan.tuned
    check_plan(plan, method)
    for name in ("public", "voided_by", "unprotected"):
        if lines := getattr(plan, name):
            with pytest.raises(ValueError, match=f"{name}|public"):
                check_plan(replace(plan, **{name: lines[:-1]}), method)
    with pytest.raises(ValueError, match=r"tuned|released|public|voided_by"):
        check_plan(replace(plan, tuned=False), method)


def test_what_data_adds_is_the_datas():
    method, declared = make("dp-mlp"), f"some rows: {DECLARED_PUBLIC}"
    plan = replace(
        method.plan(FACTS["node"]),
        public=("the schema", declared),
        unprotected=(declared,),
        void_because=("its rows were scaled by their mean",),
        record_name="patient",
    )
    before = Earlier(name="sums", paid_for="sums", event=dpa.GaussianDpEvent(9.0))
    check_plan(read_back(replace(plan, parts=(*plan.parts, before))), method)


def test_another_noise_for_the_same_budget_may_have_been_found():
    """As by the accountant of another version; what it costs is charged."""
    method = make("dp-mlp")
    plan = method.plan(FACTS["node"])
    steps = plan.parts[-1]
    for factor, fits in [(1.05, True), (0.97, True), (0.5, False), (2.0, False)]:
        other = replace(steps, noise_multiplier=factor * steps.noise_multiplier)
        changed = replace(plan, parts=(*plan.parts[:-1], other))
        if fits:
            check_plan(changed, method)
        else:
            with pytest.raises(ValueError, match="noise_multiplier of the part"):
                check_plan(changed, method)


# --- forgeries ------------------------------------------------------------------------------------


def steps_of(plan):
    return next(part for part in plan["parts"] if part["kind"] == "steps")


def release_of(plan):
    return next(part for part in plan["parts"] if part["kind"] == "release")


FORGED = {
    "no void reason": ("void", lambda p: p.update(void_because=[])),
    "neither void nor claimed": ("void", lambda p: p.update(void_because=[], claim=None)),
    "no claim": ("claimed", lambda p: p.update(claim=None)),
    "a smaller claim": ("claimed", lambda p: p["claim"].update(epsilon=0.1)),
    "why a claim differs": ("claimed", lambda p: p["claim"].update(why_it_differs="it is tight")),
    "an edge is a node": ("edge", lambda p: p.update(unit="node")),
    "a node has a direction": ("parts", lambda p: p.update(unit="edge-undirected")),
    "the strict relation": (
        "one",
        lambda p: p.update(relation="remove", public_degree=3),
    ),
    "predictions reveal nothing": (
        "parts",
        lambda p: p.update(inference=["visible: a prediction reveals nothing about anybody"]),
    ),
    "everything is released": (
        "parts",
        lambda p: p.update(released="model weights, all raw rows and every prediction"),
    ),
    "released to anybody": ("parts", lambda p: p.update(released_to="anybody")),
    "a hospital": ("edge", lambda p: p.update(record_name="hospital")),
    "a sentence for a name": (
        "one",
        lambda p: p.update(record_name="patient, whose data nobody can ever learn"),
    ),
    "an owner": ("one", lambda p: p.update(owner_name="clinic")),
    "rows are protected": (
        "one",
        lambda p: p["public"].append(f"all rows: {DECLARED_PUBLIC}"),
    ),
    "trials": ("one", lambda p: p.update(tuned=True)),
    "one void reason more and less": ("void", lambda p: p.update(void_because=["a trifle"])),
    "nothing is clipped": ("one", lambda p: steps_of(p).update(max_grad_norm=None)),
    "a large bound": ("one", lambda p: steps_of(p).update(max_grad_norm=1e30)),
    "another clipping": ("eight", lambda p: steps_of(p).update(clipping="none")),
    "a tiny sensitivity": ("parts", lambda p: release_of(p)["mechanism"].update(sensitivity=1e-9)),
    "another order of parts": ("parts", lambda p: p["parts"].reverse()),
    "details": ("one", lambda p: p["details"].update(noise_multiplier=1e6)),
    "one more detail": ("one", lambda p: p["details"].update(epsilon=1e-3)),
    "one detail less": ("one", lambda p: p["details"].pop("removed")),
    "another width": ("eight", lambda p: p["settings"].update(hidden_channels=7)),
}


@pytest.fixture
def forged(copied):
    """A run whose plan is edited, and all that was written of it made anew, so that it agrees."""

    def call(name, edit):
        directory, _ = copied(name)
        edit_plan(directory, edit)
        return directory

    return call


def test_an_edit_that_changes_nothing_is_read(forged, read):
    again = evidence.read(str(forged("parts", lambda plan: None)))
    assert again.certificate.guarantee == read("parts").certificate.guarantee


@pytest.mark.parametrize("name, edit", FORGED.values(), ids=FORGED)
def test_a_plan_that_its_method_does_not_make_is_read_by_nobody(name, edit, forged):
    directory = forged(name, edit)
    with pytest.raises(VerificationError, match=r"plan\.json is not|plan that ran"):
        evidence.read(str(directory))


def test_a_run_says_what_its_settings_state(forged):
    """Which names are public stands in the settings, and in no statement."""
    directory = forged("one", lambda plan: plan.update(public=[]))
    with pytest.raises(VerificationError, match="public has not 'the names of the classes: cats"):
        evidence.read(str(directory))


@pytest.mark.parametrize("name, edit", FORGED.values(), ids=FORGED)
def test_a_plan_that_its_method_does_not_make_is_not_verified(name, edit, read, tmp_path):
    pytest.importorskip("cryptography")
    signing.make_key(tmp_path / "ann.pem")
    key = signing.read_private_key(tmp_path / "ann.pem")
    content = json.loads(json.dumps(statement.statement_of(read(name))))
    plan, run = content["run"]["plan"], content["run"]
    edit(plan)
    certificate = Plan.from_json(plan).certificate(
        charges_from_json(content["certificate"]["charges"])
    )
    content["certificate"] = json.loads(certificate.to_json())
    run["status"] = statement.status_of(Plan.from_json(plan), certificate)
    (tmp_path / "signed.json").write_text(
        json.dumps(signing.sign(content, key, signer="Ann", date="today"))
    )
    signed = signing.read_signed(tmp_path / "signed.json")
    with pytest.raises(VerificationError, match="does not follow from its charges and its plan"):
        statement.verify(signed, key.public_key())


@pytest.mark.parametrize(
    "line",
    [
        "certificate show {run}",
        "certificate sign {run} --key {here}/ann.pem --signer Ann --out {here}/signed.json",
        "certificate verify {here}/honest.json --trusted {here}/ann.pem.pub --run {run}",
        "report {run} --out {here}/page.html",
        "report {run} --for officer --out {here}/page.html",
        "card {run} --facts {here}/owner.toml --out {here}/card.yaml --draft",
        "publish {run} --license mit --name x --out {here}/folder",
    ],
)
def test_every_door_is_shut(line, forged, trained, tmp_path, capsys):
    pytest.importorskip("cryptography")
    (tmp_path / "owner.toml").write_text('name = "A"\nowner = "B"\npurpose = "C"\n')
    directory = forged("void", lambda p: p.update(void_because=[], claim=None))
    codes = []
    key = f"--key {tmp_path}/ann.pem --signer Ann --out {tmp_path}/honest.json"
    for command in (
        f"certificate key make {tmp_path}/ann.pem",
        f"certificate sign {trained}/void {key}",
        line.format(run=directory, here=tmp_path),
    ):
        with pytest.raises(SystemExit) as left:
            cli.main(command.split())
        codes.append(left.value.code)
    assert codes == [0, 0, 3], capsys.readouterr().err
    assert not {"signed.json", "page.html", "card.yaml", "folder"} & set(
        path.name for path in tmp_path.iterdir()
    )


# --- what the owner states ------------------------------------------------------------------------


def test_the_words_of_the_owner_are_those_of_the_plan(copied):
    """settings.json alone cannot rename what is protected, nor what the data is."""
    schema = {"unit": "hospital", "columns": {"age": {"kind": "number", "low": 0, "high": 9}}}
    directory, change = copied("one")
    change("settings.json", lambda content: content.update(schema=schema))
    with pytest.raises(VerificationError, match=r"record_name is None.*'hospital'"):
        evidence.read(str(directory))


@pytest.mark.parametrize(
    "edit, why",
    [
        (lambda c: c["run"]["data"].update(unit="hospital"), "unit of the data is 'hospital'"),
        (lambda c: c["run"]["data"].update(name="a hospital"), "sizes is called 'a hospital'"),
        (lambda c: c["run"]["data"].update(name="cora"), "no data of these sizes is called 'cora'"),
        (lambda c: c["run"].update(settings_sha256=5), "settings_sha256 must be"),
        (
            lambda c: c["certificate"]["versions"].update(graphveil="99\nVERIFIED"),
            "which is no version",
        ),
    ],
)
def test_a_statement_says_nothing_that_is_not_compared(edit, why, read, tmp_path):
    pytest.importorskip("cryptography")
    signing.make_key(tmp_path / "ann.pem")
    key = signing.read_private_key(tmp_path / "ann.pem")
    content = json.loads(json.dumps(statement.statement_of(read("one"))))
    edit(content)
    (tmp_path / "signed.json").write_text(
        json.dumps(signing.sign(content, key, signer="Ann", date="today"))
    )
    with pytest.raises(VerificationError, match=why):
        statement.verify(signing.read_signed(tmp_path / "signed.json"), key.public_key())


def test_whose_targets_are_is_compared_too():
    certificate = make("dp-link").plan(FACTS["link"]).certificate()
    assert certificate.guarantee.targets == "public"
    check_whole(certificate, certificate)
    other = replace(certificate, guarantee=replace(certificate.guarantee, targets="people"))
    with pytest.raises(ValueError, match="targets is 'people'"):
        check_whole(other, certificate)


def test_figures_in_notes_are_written_in_usual_digits():
    certificate = make("gap").plan(FACTS["node"]).certificate()
    digits = str.maketrans("0123456789", "".join(chr(0x660 + digit) for digit in range(10)))
    notes = tuple(note.translate(digits) for note in certificate.notes)
    assert notes != certificate.notes
    with pytest.raises(ValueError, match="notes is"):
        check_whole(replace(certificate, notes=notes), certificate)


@pytest.mark.parametrize(
    "name, sizes, fits",
    [
        ("cora", {}, True),
        ("cora", {"num_nodes": 2000, "num_classes": 5}, True),
        ("cora", {"num_features": 41}, False),
        ("cora", {"num_nodes": 3000}, False),
        ("cora", {"num_classes": 8}, False),
        ("cora", {"record": "graph"}, False),
        ("cora", {"record": "link", "task": "link", "num_classes": 2708}, True),
        ("/home/ann/cora", {}, False),
    ],
)
def test_data_is_called_as_the_catalog_calls_data_of_its_sizes(name, sizes, fits):
    usual = {"num_nodes": 2708, "num_features": 1433, "num_classes": 7, "num_train": 140}
    assert statement.fits_catalog(name, Facts(**{**usual, **sizes})) is fits


@pytest.mark.parametrize(
    "word, fits",
    [
        ("patient", True), ("patient or doctor", True), ("sick person's visit", True),
        ("lab_test", True), ("Patientin", True), ("", False), (" ", False), ("?", False),
        ("patient, whose diagnosis", False), ("patient: nobody learns it", False),
        ("patient whose diagnosis nobody learns", False), ("pa\ntient", False), ("x" * 61, False),
    ],
)  # fmt: skip
def test_a_name_is_a_few_words(word, fits):
    assert is_name(word) is fits


def test_lines_of_trials_are_read_back_from_where_they_stand():
    line = tuned.ON_PUBLIC_DATA.format(data="cora", tried="steps = 1, 2")
    voided = tuned.rests_on(["else", line], "node", "node")["voided_by"]
    assert voided == ["cora was not public, or not another data set than this one"]
    with pytest.raises(ValueError, match="does not end with how"):
        tuned.rests_on([line, "else"], "node", "node")
