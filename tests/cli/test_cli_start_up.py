"""Commands that need no torch do not load it, and help is there at once."""

import json
import subprocess
import sys

import click
import pytest

from graphveil import cli, runs
from graphveil.cli import COMMANDS
from graphveil.data.synthetic import social_network
from graphveil.methods import DPMLP

LIGHT = [
    "--help",
    *(f"{name} --help" for name in COMMANDS),
    "data list --help",
    "ledger show --help",
    "claims dpar --help",
    "claims dpar --epsilon 8 --graph-rate 0.09",
    "claims list",
    "claims show gap",
    "ledger show LEDGER",
    "data list",
    "bench list",
    "bench show FILE",
    "bench check FILE --no-plans",
    "bench check FILE",
    "bench page FILE --results RESULTS --out OUT",
    "train dp-gnn --help",
    "plan late-graph --data pubmed --epsilon 8",
    "plan gap --data pubmed --epsilon 8",
    "plan graph-dpsgd --nodes 900 --features 4 --classes 2 --epsilon 8",
    "choose --data pubmed --epsilon 8 --shown-to themselves",
    "plan auto --data pubmed --epsilon 8",
    "report RUN --out PAGE",
    "cite gap",
    "cite",
    "card RUN --draft",
    "certificate show RUN",
    "certificate key make KEY",
    "certificate key show PUBLIC",
    "certificate sign RUN --key SIGNER --signer Ann --out SIGNED",
    "publish RUN --license mit --out FOLDER",
    "certificate verify CERTIFIED --trusted PUBLIC --run RUN",
]

HEAVY = ("torch", "torch_geometric")


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    from graphveil.privacy.ledger import Ledger

    path = tmp_path_factory.mktemp("light") / "study.ledger"
    Ledger(path).open("people", 8.0, 1e-6, None, None)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("light") / "run"
    source = runs.Source(data="memory")
    arranged = source.arrange(social_network(num_nodes=60, num_classes=3, num_features=5, seed=1))
    method = DPMLP(epsilon=8.0, steps=2, sample_rate=1.0)
    runs.Run(directory).train(method, source, arranged=arranged)
    return directory


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    """A description, and a folder with a result of it."""
    folder = tmp_path_factory.mktemp("light-bench")
    path = folder / "gap-table9.toml"
    path.write_text(
        'title = "t"\npaper = "gap"\nshows = "Table 9"\nsection = "Section 1"\n'
        'source = "s"\ndata = ["social"]\n'
        '[[run]]\nmethod = "dp-mlp"\nepsilon = 8\npublished = { social = 0.5 }\n'
    )
    run = {
        "data": "social", "split": None, "train_share": 1.0, "seed": 0, "method": "dp-mlp",
        "epsilon": 8.0, "delta": None, "settings": {},
    }  # fmt: skip
    outcome = {
        "unit": "node", "epsilon": 7.9, "delta": 1e-5, "claimed_epsilon": None, "seconds": 1.0,
        "noise_multiplier": 1.0, "void_because": [], "scores": {"accuracy": 0.5},
        "class_accuracy": [0.5], "class_share": [1.0],
    }  # fmt: skip
    results = folder / "gap-table9.jsonl"
    results.write_text(json.dumps({"run": run, "outcome": outcome}) + "\n")
    return path


HANDED_OVER = {"SIGNER": "ann.pem", "PUBLIC": "ann.pem.pub", "CERTIFIED": "signed.json"}


@pytest.fixture(scope="module")
def handed_over(trained, tmp_path_factory):
    """A key pair, and a certificate that was signed with it."""
    pytest.importorskip("cryptography")
    from graphveil.privacy import signing
    from graphveil.report import evidence, statement

    folder = tmp_path_factory.mktemp("light")
    signing.make_key(folder / "ann.pem")
    content = statement.statement_of(evidence.read(str(trained)))
    key = signing.read_private_key(folder / "ann.pem")
    signed = signing.sign(content, key, signer="Ann", date="today")
    (folder / "signed.json").write_text(json.dumps(signed))
    return folder


# Runs commands one after the other: what one of them loads is seen at the first that does.
RUNNER = """
import contextlib, io, json, sys
from graphveil.cli import main
for words in json.load(sys.stdin):
    known, out = set(sys.modules), io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            main(words)
        except SystemExit as left:
            code = left.code
    loaded = [name for name in HEAVY if name in sys.modules and name not in known]
    print(json.dumps([code, loaded, out.getvalue()]))
"""


@pytest.fixture(scope="module")
def answers(ledger, trained, described, handed_over, tmp_path_factory):
    """What each line loads and says, in a process that has loaded nothing else."""
    folder = tmp_path_factory.mktemp("light-out")
    places = {"LEDGER": str(ledger), "RUN": str(trained), "PAGE": str(folder / "page.html")}
    places |= {"FILE": str(described), "RESULTS": str(described.parent)}
    places |= {"OUT": str(folder / "results.md"), "KEY": str(folder / "new.pem")}
    places |= {name: str(handed_over / place) for name, place in HANDED_OVER.items()}
    places |= {"SIGNED": str(folder / "signed.json"), "FOLDER": str(folder / "f")}
    lines = [[places.get(word, word) for word in line.split()] for line in LIGHT]
    run = subprocess.run(
        [sys.executable, "-c", f"HEAVY = {HEAVY}{RUNNER}"],
        input=json.dumps(lines), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return dict(zip(LIGHT, map(json.loads, run.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("line", LIGHT)
def test_what_needs_no_torch_does_not_load_it(line, answers):
    code, loaded, out = answers[line]
    assert code == 0
    assert loaded == []
    assert len(out.splitlines()) > 2


def test_the_table_of_commands_says_what_they_say_themselves():
    context = click.Context(cli.cli)
    assert cli.cli.list_commands(context) == list(COMMANDS)
    for name, (_, sentence) in COMMANDS.items():
        command = cli.cli.get_command(context, name)
        assert command.name == name
        assert command.help.split("\n\n")[0] == sentence
    assert cli.cli.get_command(context, "nobody") is None


def test_help_of_the_group_lists_every_command_in_full(run):
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    assert all(f"{name} {sentence}" in words for name, (_, sentence) in COMMANDS.items())


def test_no_command_imports_another(request):
    modules = {module for module, _ in COMMANDS.values()}
    for module in modules:
        path = request.config.rootpath / "src" / "graphveil" / "cli" / f"{module}.py"
        lines = [line for line in path.read_text().splitlines() if "graphveil.cli" in line]
        imported = [line.split()[1] for line in lines if line.split()[0] == "from"]
        assert not [name for name in imported if name.rpartition(".")[2] in modules], module


def test_train_says_at_once_what_it_does(run, monkeypatch):
    """Before anything heavy is loaded; on a terminal, where somebody waits."""
    seen = []

    def fail(name, **more):
        seen.append(name)
        raise KeyboardInterrupt

    monkeypatch.setattr("graphveil.cli._settings.method_named", fail)
    line = "train dp-gnn --data social --epsilon 8 --out nowhere"
    assert "training" not in run(line)[2]
    monkeypatch.setattr("graphveil.cli.train.sys.stderr.isatty", lambda: True, raising=False)
    assert run(line)[2].splitlines()[0] == "graphveil: training dp-gnn on social"
    assert "training" not in run(f"{line} --json")[2]
    assert seen == ["dp-gnn"] * 3


def test_without_a_method_a_recipe_is_offered_where_there_are_some(run):
    for command in ("train --data social --out nowhere", "plan --data social"):
        assert "or '--recipe' in its place" in run(command)[2]


def test_the_docs_list_the_same_commands(request):
    text = (request.config.rootpath / "docs" / "cli.md").read_text()
    lines = [f"    graphveil {name:<12s} {COMMANDS[name][1]}\n" for name in COMMANDS]
    assert "".join(lines) in text
