"""The command audit: what it answers, where findings go, how it ends."""

import json

import pytest

from graphveil.audit import results
from graphveil.audit.results import Finding, Violation
from graphveil.cli import main

QUICK = ("--set", "steps=2", "--set", "hidden_channels=4")


def run(capsys, *words):
    """Run a command in this process: exit code, stdout, stderr."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    out, err = capsys.readouterr()
    return ended.value.code, out, err


@pytest.fixture
def few_tasks(monkeypatch):
    """One quick task for each kind of audit."""
    from graphveil.audit import tasks

    ran = []

    def works(method, data, plan, name, how):
        def work(what):
            ran.append(what)
            return [Finding(kind="mechanism", name=what, holds=True, figures={"ratio": 0.95})]

        return {what: lambda what=what: work(what) for what in ("one", "two", "three")}

    monkeypatch.setitem(tasks._LISTS, "mechanism", works)
    return ran


def test_findings_are_one_json_object(capsys, few_tasks):
    words = ("audit", "mechanism", "dp-gnn", "--data", "social", "--json")
    code, out, _ = run(capsys, *words)
    answer = json.loads(out)
    assert code == 0
    assert answer["holds"] is True
    assert [one["name"] for one in answer["findings"]] == ["one", "two", "three"]


def test_an_audit_goes_on_where_it_was_cut_short(capsys, few_tasks, tmp_path):
    file = tmp_path / "audit.json"
    words = ("audit", "mechanism", "dp-gnn", "--data", "social", "--out", str(file))
    assert run(capsys, *words, "--shard", "1/2")[0] == 0
    assert few_tasks == ["one", "three"]
    assert run(capsys, *words)[0] == 0
    assert few_tasks == ["one", "three", "two"]
    assert {one.name for one in results.read_file(file)} == {"one", "two", "three"}
    assert run(capsys, *words, "--force")[0] == 0
    assert len(few_tasks) == 6


def test_another_setting_is_another_audit(capsys, few_tasks, tmp_path):
    file = tmp_path / "audit.json"
    words = ("audit", "mechanism", "dp-gnn", "--data", "social", "--out", str(file))
    run(capsys, *words)
    run(capsys, *words, "--set", "steps=7")
    assert len(few_tasks) == 6


@pytest.mark.parametrize("more", [("--draws", "1000"), ("--epsilon", "4"), ("--seed", "3")])
def test_other_settings_of_the_audit_are_another_audit(capsys, few_tasks, tmp_path, more):
    file = tmp_path / "audit.json"
    words = ("audit", "mechanism", "dp-gnn", "--data", "social", "--out", str(file))
    assert run(capsys, *words)[0] == 0
    assert run(capsys, *words, *more)[0] == 0
    assert len(few_tasks) == 6
    _, _, err = run(capsys, *words, *more)
    assert len(few_tasks) == 6
    assert "3 findings were there already (--force does them again)" in err


def test_other_data_of_the_same_name_is_another_audit():
    from graphveil.audit.cases import node_cases
    from graphveil.audit.tasks import list_tasks
    from graphveil.methods import DPMLP, Facts

    method, data = DPMLP(epsilon=8.0, steps=2), node_cases()["chain"]
    how = {"most": 1, "steps": 1, "seed": 0}

    def name(data, kind="replay", **changed):
        plan = method.plan(Facts.of(data)).on(data)
        return list_tasks(kind, method, data, plan, name="d", how={**how, **changed})[0].name

    other = data.clone()
    other.x[0, 0] += 1
    assert name(data) == name(data.clone())
    assert name(other) != name(data)
    assert name(data, most=2) != name(data)
    assert name(other, "run") == name(data, "run")  # findings that do not follow from rows


def test_other_versions_are_other_audits(capsys, few_tasks, tmp_path, monkeypatch):
    words = ("audit", "mechanism", "dp-gnn", "--data", "social", "--out", str(tmp_path / "a.json"))
    run(capsys, *words)
    monkeypatch.setattr("graphveil.__version__", "99.0")
    run(capsys, *words)
    assert len(few_tasks) == 6
    assert len(results.read_file(tmp_path / "a.json")) == 3  # the older ones were replaced


def test_a_broken_promise_has_an_exit_code_of_its_own(capsys, monkeypatch):
    from graphveil.audit import tasks

    violation = Violation(rule="more terms change", part="weights", step=3, value="9", allowed="1")

    def works(*_):
        return {"one": lambda: [Finding(
            kind="mechanism", name="one", holds=False, violations=(violation,)
        )]}  # fmt: skip

    monkeypatch.setitem(tasks._LISTS, "mechanism", works)
    code, out, err = run(capsys, "audit", "mechanism", "dp-gnn", "--data", "social")
    assert code == 5
    assert "part 'weights', step 3: more terms change: 9, allowed: 1" in " ".join(out.split())
    assert "broke the promise" in err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("replay", "nothing", "--data", "social"), "must be a method or the directory of a run"),
        (("replay", "dp-gnn"), "Missing option '--data'"),
        (("replay", "mlp", "--data", "social"), "trains in the open"),
        (("mechanism", "dp-gnn", "--data", "social", "--shard", "3/2"), "I/N"),
        (("mechanism", "dp-gnn", "--data", "social", "--shard", "x"), "I/N"),
        (("mechanism", "dp-gnn", "--data", "social", "--set", "colour=1"), "colour"),
        (("mechanism", "dp-gnn", "--data", "nowhere"), "There is no file or directory 'nowhere'"),
        (("replay", "dp-gnn", "--data", "social", "--neighbours", "0"), "'neighbours' parameter"),
        (("replay", "dp-gnn", "--data", "social", "--steps", "0"), "'steps' parameter"),
        (("run", "gap", "--data", "social", "--set", "unit=edge"), "by 'mechanism' or 'replay'"),
    ],
)
def test_a_mistake_is_one_line(capsys, words, line):
    code, out, err = run(capsys, "audit", *words)
    assert code == 2
    assert not out
    assert line in err
    assert len(err.strip().splitlines()) == 1


def test_an_empty_shard_says_that_nothing_was_tried(capsys, few_tasks):
    words = ("audit", "mechanism", "dp-gnn", "--data", "social", "--shard", "4/4")
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert "Nothing was tried: shard 4/4 has none of 3 tasks." in " ".join(out.split())
    assert json.loads(run(capsys, *words, "--json")[1])["holds"] is None


@pytest.mark.parametrize("content", ["no json", "[]", '{"format": 2}', '{"format": 9}'])
def test_a_file_that_has_no_findings_is_named(capsys, few_tasks, tmp_path, content):
    file = tmp_path / "audit.json"
    file.write_text(content)
    words = ("audit", "mechanism", "dp-gnn", "--data", "social", "--out", str(file))
    code, _, err = run(capsys, *words)
    assert code == 2
    assert f"The findings in {file} cannot be read" in err
    assert file.read_text() == content
    assert not few_tasks


@pytest.mark.parametrize("kept", [True, False])
def test_who_interrupts_is_told_how_it_goes_on(capsys, monkeypatch, tmp_path, kept):
    from graphveil.audit import tasks

    def interrupt():
        raise KeyboardInterrupt

    done = Finding(kind="mechanism", name="one", holds=True)
    monkeypatch.setitem(
        tasks._LISTS, "mechanism", lambda *_: {"one": lambda: [done], "two": interrupt}
    )
    out = ("--out", str(tmp_path / "a.json")) if kept else ()
    code, _, err = run(capsys, "audit", "mechanism", "dp-gnn", "--data", "social", *out)
    assert code == 130
    assert ("the same command" if kept else "Nothing was kept") in err


def test_what_is_no_proof_is_suspect_and_breaks_nothing(capsys, monkeypatch):
    from graphveil.audit import tasks

    finding = Finding(
        kind="run", name="c: asymptotic Gauss", holds=True, suspect=True, epsilon_at_least=9.0,
        confidence=0.95, trials=10, bound=results.ASYMPTOTIC, figures={"proven": 8.0},
    )  # fmt: skip
    monkeypatch.setitem(tasks._LISTS, "run", lambda *_: {"one": lambda: [finding]})
    words = ("audit", "run", "dp-mlp", "--data", "social")
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert "Suspect: c: asymptotic Gauss gives 9" in " ".join(out.split())
    answer = json.loads(run(capsys, *words, "--json")[1])
    assert answer["suspect"] is True
    assert answer["findings"][0]["suspect"] is True
    assert Finding.from_json(answer["findings"][0]).suspect


def test_a_run_keeps_its_findings_and_reports_them(capsys, few_tasks, tmp_path):
    place, page = tmp_path / "run", tmp_path / "page.html"
    words = ("train", "dp-gnn", "--data", "social", "--epsilon", "8", "--out", str(place), *QUICK)
    assert run(capsys, *words)[0] == 0
    assert run(capsys, "audit", "mechanism", str(place))[0] == 0
    assert len(results.read(place)) == 3
    assert run(capsys, "report", str(place), "--out", str(page))[0] == 0
    code, _, err = run(capsys, "audit", "mechanism", str(place), "--epsilon", "2")
    assert code == 2
    assert "its own settings" in err


def test_a_replay_of_a_method(capsys):
    words = ("audit", "replay", "dp-mlp", "--data", "social", "--neighbours", "1", "--steps", "1")
    code, out, _ = run(capsys, *words, "--shard", "1/9", "--json")
    assert code == 0
    assert json.loads(out)["findings"][0]["figures"]["neighbours"] == 1


def test_results_of_private_data_do_not_reach_a_run(capsys, tmp_path):
    from graphveil.cli.audit import _choose_file

    assert _choose_file(str(tmp_path), None, True) is None
    assert _choose_file(str(tmp_path), None, False) == tmp_path / "audit.json"
    assert _choose_file(None, None, True) is None


# --- the file -------------------------------------------------------------------------------------


def test_findings_come_back_as_they_were(tmp_path):
    violation = Violation(rule="r", part="p", step=1, term=2, value="3", allowed="2")
    finding = Finding(
        kind="run", name="n", holds=False, epsilon_at_least=1.5, confidence=0.95, trials=10,
        bound="b", note="o", figures={"x": 1.0}, violations=(violation,), task="t",
    )  # fmt: skip
    results.add(tmp_path / "audit.json", [finding])
    assert results.read(tmp_path) == (finding,)
    results.add(tmp_path / "audit.json", [finding])
    assert len(results.read(tmp_path)) == 1


def test_files_of_the_first_format_are_read(tmp_path):
    attack = {"attack": "loss", "epsilon_at_least": 0.4, "confidence": 0.95, "trials": 100}
    (tmp_path / "audit.json").write_text(json.dumps({"format": 1, "results": [attack]}))
    (finding,) = results.read(tmp_path)
    assert (finding.kind, finding.name, finding.epsilon_at_least) == ("attack", "loss", 0.4)
