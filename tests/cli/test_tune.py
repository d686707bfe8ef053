"""graphveil tune: settings chosen by trials that are charged."""

import json
import re

import pytest

from graphveil import runs
from graphveil.data.catalog import CATALOG
from graphveil.methods.late_graph import DPMLP
from graphveil.tuning import trials

QUICK = "--set steps=3 --set sample_rate=1.0 --set hidden_channels=4"
VARY = "--vary learning_rate=0.01..0.1 --vary max_grad_norm=0.1,1.0"
BASE = f"tune dp-mlp --epsilon 6 --trials 3 {QUICK} {VARY}"


@pytest.fixture
def counted(monkeypatch):
    """Fix the number of trials; the methods that were fitted."""
    fit, fits = DPMLP.fit, []

    def note(self, *args, **kwargs):
        fits.append(self)
        return fit(self, *args, **kwargs)

    def call(count):
        monkeypatch.setattr(trials, "draw_count", lambda *asked: count)
        monkeypatch.setattr(DPMLP, "fit", note)
        return fits

    return call


def test_a_page_does_not_call_one_trial_s_epsilon_the_run_s(run, answer, graph, tmp_path):
    answer(f"{BASE} --data {graph} --out {tmp_path / 'run'}")
    page = tmp_path / "page.html"
    assert run(f"report {tmp_path / 'run'} --out {page}")[0] == 0
    assert page.read_text().count("epsilon of one trial; the certificate counts the whole") == 1


def test_a_tuned_run_is_a_run_like_any_other(answer, run, graph, tmp_path):
    out = tmp_path / "tuned"
    found = answer(f"{BASE} --data {graph} --out {out}")
    assert set(found["chosen"]) == {"learning_rate", "max_grad_norm"}
    assert 5.98 <= found["epsilon"] <= 6
    assert 0 < found["trial_epsilon"] < found["epsilon"]
    assert found["scores"] == "private"
    assert "seconds" not in found
    method = runs.Run(out).read()
    assert method.certificate_.guarantee.epsilon == found["epsilon"]
    assert method.epsilon == found["trial_epsilon"]
    assert method.learning_rate == found["chosen"]["learning_rate"]
    code, text, _ = run(f"predict {out} --data {graph}")
    assert code == 0
    assert text.count("\n") == 61
    code, text, err = run(f"{BASE} --data {graph} --out {out} --force")
    assert code == 0
    assert "learning_rate = " in text
    assert "through noise" in text
    assert "seconds" not in text + err


def test_neither_losers_nor_their_number_are_told(run, graph, tmp_path, counted):
    said = []
    for count in (1, 6):
        fits = counted(count)
        fits.clear()
        out = tmp_path / str(count)
        code, text, err = run(f"{BASE} --data {graph} --out {out} --json")
        assert (code, err) == (0, "")
        assert len(fits) == count
        chosen = json.loads(text)["chosen"]
        losers = [each for each in fits if each.learning_rate != chosen["learning_rate"]]
        assert len(losers) == count - 1
        told = text + "".join(path.read_bytes().decode(errors="replace") for path in out.rglob("*"))
        assert not any(repr(each.learning_rate) in told for each in losers)
        said.append(json.loads(text))
    assert set(said[0]) == set(said[1])
    same = {"epsilon", "delta", "trial_epsilon", "scores", "void_because"}
    assert {key: said[0][key] for key in same} == {key: said[1][key] for key in same}


def test_public_ways_say_so_on_the_certificate(answer, graph, save, tmp_path):
    found = answer(f"{BASE} --data {graph} --out {tmp_path / 'a'} --public-validation")
    text = (tmp_path / "a" / "certificate.txt").read_text()
    assert "DECLARED PUBLIC" in text
    assert "RepeatAndSelect" in text  # the trainings are charged all the same
    assert found["trial_epsilon"] < 6
    unit = text[text.index("UNIT") : text.index("EPSILON")]
    assert "Not protected: the validation nodes, their labels" in unit
    assert "the chosen settings and their score on the public validation records, to " in text
    public = save("public.npz")
    found = answer(f"{BASE} --data {graph} --out {tmp_path / 'b'} --public-data {public}")
    text = (tmp_path / "b" / "certificate.txt").read_text()
    assert f"TUNED on {public}, declared public" in text
    assert "RepeatAndSelect" not in text
    assert "model weights, to anybody" in text
    assert found["trial_epsilon"] == 6
    fixed = answer(f"{BASE} --data {graph} --out {tmp_path / 'c'} --fixed")
    text = (tmp_path / "c" / "certificate.txt").read_text()
    assert "3 trainings, each with its noisy score" in text
    assert fixed["epsilon"] <= 6


def test_a_certificate_does_not_contradict_itself(answer, run, graph, tmp_path):
    answer(f"{BASE} --data {graph} --out {tmp_path / 'tuned'}")
    certificate = runs.Run(tmp_path / "tuned").read().certificate_
    public = "\n".join(certificate.public)
    assert "these settings were chosen by looking at the data" in public
    assert "hyper-parameters, steps and caps that were not varied, chosen without" in public
    assert "caps, chosen without" not in public
    # What is released does not void it; any other score does.
    assert "noisy validation score" in certificate.released
    assert "any other score on private validation data" in "\n".join(certificate.voided_by)
    assert "statistics, scores" not in "\n".join(certificate.voided_by)
    assert run(f"report {tmp_path / 'tuned'} --out {tmp_path / 'page.html'}")[0] == 0
    text = (tmp_path / "page.html").read_text()
    assert f"{certificate.released}, to anybody" in text
    assert "caps, chosen without" not in text


def test_the_names_in_the_help_are_in_the_catalog(run):
    _, text, _ = run("tune --help")
    named = re.findall(r"--(?:public-)?data ([a-z][a-z-]*) ", text)
    assert len(named) >= 3
    assert set(named) <= set(CATALOG)


def test_a_file_says_it_all(answer, graph, tmp_path):
    config = tmp_path / "tune.toml"
    config.write_text(
        f'method = "dp-mlp"\ndata = "{graph}"\nepsilon = 5\ntrials = 2.5\nlaw = "geometric"\n'
        f'public_validation = true\nout = "{tmp_path / "run"}"\n'
        "[settings]\nsteps = 3\nsample_rate = 1.0\nhidden_channels = 4\n"
        '[vary]\nlearning_rate = "0.01..0.1"\nactivation = ["tanh", "relu"]\n'
    )
    found = answer(f"tune --config {config}")
    assert found["scores"] == "public-validation"
    assert found["chosen"]["activation"] in ("tanh", "relu")
    saved = json.loads((tmp_path / "run" / "settings.json").read_text())["tuning"]
    assert (saved["mean_trials"], saved["law"], saved["epsilon"]) == (2.5, "geometric", 5)
    found = answer(f"tune --config {config} --out {tmp_path / 'two'} --vary learning_rate=0.1,0.2")
    assert found["chosen"]["learning_rate"] in (0.1, 0.2)


@pytest.mark.parametrize("line, code, why", [
    ("", 2, "Missing argument 'METHOD'"),
    ("dp-mlp --trials 3", 2, "--epsilon"),
    ("dp-mlp --epsilon 2", 2, "--trials"),
    ("dp-mlp --epsilon 2 --trials 3", 2, "candidates"),
    ("dp-mlp --epsilon 2 --trials 3 --vary averaged=0..1:even", 2, "--data"),
    ("dp-mlp --epsilon 2 --trials 3 --vary learning_rate", 2, "KEY=VALUES"),
    ("dp-mlp --epsilon 2 --trials 3 --vary learning_rate=0.1", 2, "two values"),
    ("dp-mlp --epsilon 2 --trials 3 --vary learning_rate=1..0.1", 2, "go up"),
    ("dp-mlp --epsilon 2 --trials 3 --vary learning_rate=a,b", 2, "a number"),
    ("dp-mlp --epsilon 2 --trials 3 --vary steps=1.5..9", 2, "whole number"),
    ("dp-mlp --epsilon 2 --trials 3 --vary nothing=1,2", 2, "has no setting"),
    ("dp-mlp --epsilon 2 --trials 1 --vary learning_rate=0.1,0.2", 2, "trials"),
    ("mlp --epsilon 2 --trials 3 --vary learning_rate=0.1,0.2", 2, "private method"),
    ("dp-mlp --epsilon 2 --trials 3 --vary learning_rate=0.1,0.2 --sampler optuna", 3, "--fixed"),
    ("late-graph --epsilon 2 --trials 3 --vary teleport=0.1,0.2", 3, "--public-validation"),
    (
        "dp-mlp --epsilon 2 --trials 3 --vary averaged=0.1,0.2 --data social --out {}/run "
        "--public-data synthetic",
        2,
        "'--public-data': There is no file or directory 'synthetic'",
    ),
    (
        "dp-mlp --epsilon 2 --trials 3 --vary averaged=0.1,0.2 --data x --public-data x",
        2,
        "another data set",
    ),
    (
        "dp-mlp --epsilon 2 --trials 3 --vary averaged=0.1,0.2 --public-data x --public-validation",
        2,
        "not both",
    ),
    (
        "dp-mlp --epsilon 2 --trials 3 --vary steps=50..150 --data social --out {}/run",
        3,
        "give a list",
    ),
    (
        "dp-mlp --epsilon 2 --trials 3 --vary averaged=0.1,0.2 --data social --out {}/run "
        "--account a",
        2,
        "--ledger",
    ),
])  # fmt: skip
def test_refusals_are_one_line_and_touch_nothing(refused, tmp_path, line, code, why):
    assert why in refused(f"tune {line}".format(tmp_path), code)
    assert not list(tmp_path.iterdir())


def test_an_account_is_charged_before_data_and_stays_charged(
    refused, run, answer, graph, tmp_path, counted, monkeypatch
):
    ledger, out = tmp_path / "ledger.db", tmp_path / "run"
    assert run(f"ledger open {ledger} --name a --epsilon 10 --delta 1e-4")[0] == 0
    assert run(f"ledger open {ledger} --name b --epsilon 1 --delta 1e-4")[0] == 0
    base = f"{BASE} --delta 1e-4 --ledger {ledger}"
    # Over budget: refused before data is opened.
    assert "--epsilon" in refused(f"{base} --account b --data nowhere.npz --out {out}", 3)
    assert not out.exists()
    counted(2)
    found = answer(f"{base} --account a --data {graph} --out {out}")
    assert found["ledger"]["account"] == "a"

    def spent():
        accounts = answer(f"ledger show {ledger}")["accounts"]
        return next(each["spent"] for each in accounts if each["account"] == "a")

    once = spent()
    assert once == pytest.approx(found["epsilon"], rel=1e-3)

    # A kill in the midst of the trials: charged in full, whether it is started anew or not.
    def killed(*asked):
        raise KeyboardInterrupt

    base = f"{base.replace('--epsilon 6', '--epsilon 2')} --account a --data {graph}"
    with monkeypatch.context() as patch:
        patch.setattr(trials, "private_count", killed)
        assert run(f"{base} --out {tmp_path / 'two'}")[0] == 130
    twice = spent()
    assert twice > once
    assert answer(f"ledger show {ledger}")["accounts"][0]["open"] == []
    assert "--force" in refused(f"{base} --out {tmp_path / 'two'}")
    assert spent() == twice
    answer(f"{base} --out {tmp_path / 'two'} --force")
    assert spent() > twice
    # A plan that cannot be had after data was read gives back what it reserved.
    before = spent()
    refused(f"{base} --out {tmp_path / 'three'} --split transductive --vary num_layers=1,99")
    assert spent() == before
    assert not (tmp_path / "three").exists()


def test_a_metric_decides_among_public_scores_alone(answer, refused, graph, tmp_path):
    found = answer(
        f"{BASE} --data {graph} --public-validation --metric brier --out {tmp_path / 'public'}"
    )
    assert found["validation_accuracy"] < 0  # the less, the better
    asked = json.loads((tmp_path / "public" / "settings.json").read_text())
    assert asked["tuning"]["metric"] == "brier"
    line = f"{BASE} --data {graph} --metric brier --out {tmp_path / 'private'}"
    assert "--public-validation" in refused(line, 3)
    assert "metric" in refused(f"{BASE} --data {graph} --public-validation --metric x --out y")
