"""Pages about every task: figures that fit it, the guess beside them, and who learnt nothing."""

import json
import shutil
from dataclasses import replace

import pytest
from report_html import assert_only_our_own, parse

from graphveil import cli, runs
from graphveil._errors import InvalidInputError
from graphveil.cli._metrics import add_figures
from graphveil.cli._output import Result
from graphveil.methods import DPMLP, MLPBaseline
from graphveil.methods.measures import METRICS, OF_LINKS
from graphveil.report import evidence, page, svg, wording
from graphveil.report.comparison import baselines, groups
from graphveil.report.sections import utility

QUICK = {"sample_rate": 1.0}
HOSPITAL = {
    "lab": ("hospital:lab", lambda: DPMLP(epsilon=4.0, steps=20, **QUICK)),
    "lab-hasty": ("hospital:lab", lambda: DPMLP(epsilon=0.5, steps=2, **QUICK)),
    "lab-open": ("hospital:lab", lambda: MLPBaseline(steps=40)),
    "diagnoses": ("hospital:diagnoses", lambda: DPMLP(epsilon=4.0, steps=20, **QUICK)),
    "triage": ("hospital:triage", lambda: DPMLP(epsilon=4.0, steps=20, **QUICK)),
    "died": ("hospital", lambda: DPMLP(epsilon=4.0, steps=20, **QUICK)),
}


@pytest.fixture(scope="session")
def hospital(tmp_path_factory):
    """The directory of a run on the synthetic hospital by its name; trained once."""
    folder, arranged = tmp_path_factory.mktemp("hospital"), {}

    def call(name):
        data, make = HOSPITAL[name]
        if not (folder / name).exists():
            source = runs.Source(data=data)
            if data not in arranged:
                arranged[data] = source.arrange(source.load())
            runs.Run(folder / name).train(make(), source, arranged=arranged[data])
        return folder / name

    return call


@pytest.fixture(scope="session")
def patient(hospital):
    """The evidence of such a run."""
    known = {}

    def call(name):
        if name not in known:
            known[name] = evidence.read(str(hospital(name)))
        return known[name]

    return call


def with_metrics(run, path=None, **new):
    return replace(run, metrics={**run.metrics, **new}, path=path or run.path)


def scores_on(tree):
    """The table of scores: columns, and cells by name."""
    table = tree.one("table", class_="utility")
    columns = [cell.text for cell in table.one("thead").all("th")][1:]
    return columns, {row[0]: row[1:] for row in table.table()}


# --- pages of every task --------------------------------------------------------------------------


def test_a_regression_is_reported_by_its_errors_beside_the_mean(hospital, patient):
    tree = assert_only_our_own(page.render([patient("lab"), patient("lab-open")]))
    metrics = json.loads((hospital("lab") / "metrics.json").read_text())
    article = tree.one("article", id="run-1")
    columns, rows = scores_on(article)
    assert columns == ["R²", "mean absolute error", "root mean square error"]
    for name, figures in (("dp-mlp", metrics), ("always the mean", metrics["baseline"])):
        r2, mae, rmse = (
            figures[f"test_{m}" if figures is metrics else m] for m in ("r2", "mae", "rmse")
        )
        assert rows[name] == [f"{r2:.3f}", f"{mae:.4g}", f"{rmse:.4g}"]
    assert "mlp, in the open" in rows
    assert f"On {metrics['test_nodes']:,} labelled test nodes" in article.text
    assert not tree.all("table", class_="classes")
    assert not tree.all("table", class_="confusion")
    assert "Accuracy by class" not in tree.text
    assert "its R² is 0." in article.text
    card = article.one("section", **{"aria-label": "Data"}).pairs()
    assert card["predicted"] == "albumin, a number from 10 to 60"
    assert "classes" not in card
    assert card["tested on"] == f"{metrics['test_nodes']:,} labelled nodes"


def test_several_labels_are_reported_beside_how_often_each_occurs(hospital, patient):
    tree = assert_only_our_own(page.render([patient("diagnoses")]))
    metrics = json.loads((hospital("diagnoses") / "metrics.json").read_text())
    columns, rows = scores_on(tree)
    assert columns[0] == "average precision"
    assert rows["dp-mlp"][0] == f"{metrics['test_average_precision']:.3f}"
    guess = rows["how often each label occurs"]
    assert guess[0] == f"{metrics['baseline']['average_precision']:.3f}"
    assert guess[columns.index("Brier score")] == f"{metrics['baseline']['brier']:.3f}"
    assert not tree.all("table", class_="classes")
    assert not tree.all("table", class_="confusion")
    card = tree.one("section", **{"aria-label": "Data"}).pairs()
    assert card["labels"] == str(patient("diagnoses").facts.num_classes)


def test_classes_in_their_order_are_reported_by_how_far_off_they_are(hospital, patient):
    tree = assert_only_our_own(page.render([patient("triage")]))
    metrics = json.loads((hospital("triage") / "metrics.json").read_text())
    columns, rows = scores_on(tree)
    assert columns[:2] == ["mean absolute error", "accuracy"]
    assert rows["the best guess, figure by figure"][0] == f"{metrics['baseline']['mae']:.4g}"
    assert len(tree.one("table", class_="classes").table()) == 5
    assert len(tree.one("table", class_="confusion").table()) == 5
    assert wording.MEANINGS["mae"] in tree.one("p", class_="meanings").text
    assert wording.MEANINGS["r2"] not in tree.text


def test_a_rare_class_is_reported_by_how_well_it_is_ranked(patient):
    columns, rows = scores_on(parse(page.render([patient("died")])))
    assert columns[:4] == ["average precision", "ROC AUC", "F1", "sensitivity"]
    guess = dict(zip(columns, rows["the best guess, figure by figure"], strict=True))
    assert guess["ROC AUC"] == "0.500"
    assert guess["sensitivity"] == guess["specificity"] == "–"


def test_every_metric_has_its_words():
    assert set(wording.SCORES) == {*METRICS, *OF_LINKS}
    for task, names in wording.TASK_SCORES.items():
        assert set(names) <= {*METRICS, *OF_LINKS}
        assert wording.scores_of(task, names[-1])[0] == names[-1]
        assert len(wording.scores_of(task, names[-1])) == len(names)
    assert wording.scores_of("regression", "accuracy")[:2] == ["accuracy", "r2"]
    assert wording.score("r2", -0.25) == "-0.250"
    assert wording.score("mae", 12.3456) == "12.35"
    assert wording.score("balanced_accuracy", 0.5) == f"50.0{wording.PERCENT}"
    assert wording.score_axis("mae") == "test mean absolute error (less is better)"
    assert wording.score_axis("accuracy") == "test accuracy (%)"


# --- what learnt nothing --------------------------------------------------------------------------


def test_a_model_that_says_the_same_of_everybody_learnt_nothing(rendered, read):
    assert read("eight").metrics["constant"]
    tree = parse(rendered("eight"))
    words = tree.one("p", class_="nothing").text
    assert words.startswith("This model learnt nothing: it says “")
    decided = next(
        name
        for name, column in zip(
            read("eight").names, zip(*read("eight").metrics["confusion"], strict=True), strict=True
        )
        if any(column)
    )
    assert f"it says “{decided}” of every test node" in words
    assert "is no better than the" in words
    figure = tree.one("section", **{"aria-label": "Utility"}).one("figure")
    assert {
        bar.attributes["class"] for bar in figure.all("rect") if bar.attributes["x"] != "6"
    } == {"bar b2"}
    assert "dp-gnn, learnt nothing" in figure.text


def test_a_model_that_is_no_better_than_the_mean_learnt_nothing(patient):
    run = patient("lab-hasty")
    words = parse(page.render([run])).one("p", class_="nothing").text
    mine, theirs = f"{run.metrics['r2']:.3f}", f"{run.metrics['baseline']['r2']:.3f}"
    assert f"its R², {mine}, is no better than the {theirs} of a guess" in words
    assert "always the mean" in words
    assert "says the same" not in words


def test_nothing_is_said_of_a_model_that_learnt(patient, read):
    for run in (with_metrics(read("parts"), learnt=True), patient("lab")):
        text = page.render([run])
        assert not parse(text).all("p", class_="nothing")
        assert "learnt nothing" not in parse(text).text
        assert "bar b2" not in text


def test_who_decides_the_same_of_everybody_but_ranks_is_told_so(patient):
    run = with_metrics(patient("died"), constant=True, learnt=True)
    words = parse(page.render([run])).one("p", class_="nothing").text
    assert "tells nobody apart by what it decides" in words
    assert "it may still rank" in words
    assert "learnt nothing" not in words


def test_who_ranks_better_than_a_guess_but_not_than_chance_is_told_so(patient):
    given = {"learnt": False, "average_precision": 0.172, "baseline": {"average_precision": 0.1}}
    for constant in (True, False):
        run = with_metrics(patient("died"), constant=constant, **given)
        words = utility("a", run, []).nothing
        assert words.startswith("This model learnt nothing: ")
        assert "is better than the 0.100" in words
        assert "not told apart from chance" in words
        assert "may still rank" not in words


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("mine", [0.05, 0.172])
@pytest.mark.parametrize("learnt", [True, False])
def test_the_command_says_what_the_page_says(patient, constant, mine, learnt):
    guess = {"average_precision": 0.1}
    given = {"constant": constant, "learnt": learnt, "baseline": guess}
    page_says = utility("a", with_metrics(patient("died"), average_precision=mine, **given), [])
    figures = {"task": "binary", "metric": "average_precision", "test_average_precision": mine}
    for weighs in (False, True):
        result = Result("x")
        add_figures(result, figures | given, weighs=weighs)
        rows = dict(result.rows())
        assert ("learnt nothing" in rows) is (not learnt)
        assert ("same of all" in rows) is (learnt and constant)
        assert ("class_weights=noisy" in str(rows)) is (
            not weighs and page_says.nothing is not None
        )
        line = rows.get("learnt nothing", rows.get("same of all", ""))
        for words in ("is better than the 0.100", "is no better than", "from chance", "still rank"):
            assert (words in line) is (words in (page_says.nothing or "")), words


@pytest.mark.parametrize(
    "name, value", [("lab", "the same value"), ("diagnoses", "the same labels")]
)
def test_a_constant_model_without_classes_is_told_so(patient, name, value):
    run = with_metrics(patient(name), constant=True, learnt=False, r2=-1.0, average_precision=0.0)
    assert f"it says {value} of every test node" in utility("a", run, []).nothing


def test_what_learnt_nothing_is_marked_in_tables_and_off_the_line(read):
    good, bad = with_metrics(read("parts"), learnt=True), read("eight")
    tree = parse(page.render([good, bad, read("mlp")]))
    rows = {
        row.attributes["data-run"].rsplit("/", 1)[-1]: row
        for row in tree.all("tr", class_="failed")
    }
    assert set(rows) == {"eight", "mlp"}
    assert all(row.one("span", class_="tag").text == "learnt nothing" for row in rows.values())
    scored = [head.text for head in tree.all("th") if "data-score" in head.attributes]
    assert scored == ["accuracy", "macro F1"]
    description = tree.one("desc", id="group-1-curve-desc").text
    assert description.count("(learnt nothing)") == 1
    assert "mlp, not private, learnt nothing: level at" in description
    curve = tree.one("section", class_="group").one("svg", class_="plot")
    assert len(curve.all("path", class_="failed")) == 1
    assert len(curve.all("path", class_="dot")) == 1
    assert "empty and grey: learnt nothing" in tree.one("section", class_="group").text


# --- several runs ---------------------------------------------------------------------------------


def test_runs_of_other_targets_stand_in_other_tables(patient):
    some = [patient("lab"), patient("lab-hasty"), patient("lab-open")]
    by_error = [with_metrics(run, f"{run.path}-mae", metric="mae") for run in some]
    tree = parse(page.render([*some, *by_error]))
    tables = tree.all("section", class_="group")
    assert len(tables) == 2
    assert [
        len([r for r in table.all("tr") if "data-run" in r.attributes]) for table in tables
    ] == [
        3,
        3,
    ]
    heads = [[h.text for h in t.all("th") if "data-score" in h.attributes] for t in tables]
    assert heads == [["R²", "mean absolute error"], ["mean absolute error", "R²"]]
    titles = [table.one("title").text for table in tables]
    assert titles == [
        "Test R² over proven epsilon",
        "Test mean absolute error over proven epsilon",
    ]
    assert all("predicted is albumin" in table.one("h2").text for table in tables)
    r2 = f"{patient('lab').metrics['r2']:.3f} at epsilon"
    assert r2 in tree.one("desc", id="group-1-curve-desc").text
    assert "%" not in tree.one("desc", id="group-1-curve-desc").text
    # The same people all the same: what all of them cost is composed.
    assert "all 4 runs" in tables[0].one("p", class_="together").text


def test_another_label_of_the_same_tables_is_another_target(patient):
    run = patient("lab-open")
    label = {**run.schema["label"], "column": "sodium"}
    other = replace(run, path="other", schema={**run.schema, "label": label})
    assert baselines(patient("lab"), [patient("lab"), run, other]) == [run]
    assert len(groups([patient("lab"), run, other])) == 2


def test_open_runs_are_compared_by_the_main_figure(patient):
    run, opened = patient("lab"), patient("lab-open")

    def variant(path, metric, **new):
        return with_metrics(opened, path, metric=metric, learnt=True, **new)

    wide = variant("wide", "r2", r2=0.9, mae=9.0)
    near = variant("near", "r2", r2=0.5, mae=1.0)
    assert baselines(run, [near, wide]) == [wide, near]
    by_error = [with_metrics(other, metric="mae") for other in (wide, near)]
    assert [r.path for r in baselines(with_metrics(run, metric="mae"), by_error)] == [
        "near",
        "wide",
    ]
    failed = with_metrics(wide, learnt=False)
    assert baselines(run, [failed, near]) == [near, failed]
    assert "learnt nothing itself" in utility("a", run, [failed]).lost
    fewer = with_metrics(wide, tests=wide.tests - 1)
    assert baselines(run, [fewer, near]) == [near]
    assert not baselines(run, by_error)


# --- axes -----------------------------------------------------------------------------------------


def test_an_axis_has_round_steps_around_all_values():
    assert svg._steps([0.31, 0.62], 0.1) == [0.3, 0.4, 0.5, 0.6, 0.7]
    assert svg._steps([1.0, 1.0], 0.1) == [0.8, 1.0]
    assert svg._steps([-1.9, 0.27], None) == [-2.0, -1.5, -1.0, -0.5, 0.0, 0.5]
    assert svg._steps([0.0, 0.0], None) == [-0.2, 0.0, 0.2]
    for values in ([3.2, 3.21], [812.0, 4010.0], [-7.0, -7.0]):
        steps = svg._steps(values, None)
        assert steps[0] <= min(values)
        assert max(values) <= steps[-1]
        assert 2 <= len(steps) <= 8


# --- files ----------------------------------------------------------------------------------------

NEW = ("task", "metric", "baseline", "learnt", "constant", "test_nodes")


def test_a_run_of_an_earlier_version_is_judged_by_the_commonest_class(copied):
    for name, learnt in (("parts", True), ("eight", False)):
        directory, change = copied(name, to=name)
        change("metrics.json", lambda content: [content.pop(key) for key in NEW])
        run = evidence.read(str(directory))
        counts = run.metrics["class_count"]
        assert run.metric == "accuracy"
        assert run.tests == sum(counts)
        assert run.metrics["baseline"] == {"accuracy": max(counts) / sum(counts)}
        assert run.metrics["constant"] is not learnt
        assert run.metrics["learnt"] is (run.figure > max(counts) / sum(counts) and learnt)
        rows = scores_on(parse(page.render([run])))[1]
        assert rows["the best guess, figure by figure"][1:] == ["–"] * 6


@pytest.mark.parametrize(
    "edit",
    [
        {"metric": "luck"},
        {"metric": None},
        {"task": "multiclass"},
        {"learnt": "yes"},
        {"constant": 1},
        {"baseline": []},
        {"baseline": {"r2": 2.0}},
        {"test_r2": 1.5},
        {"test_mae": -1.0},
        {"test_nodes": -1},
        {"class_count": [3]},
        {"confusion": [[1]]},
    ],
)
def test_figures_that_cannot_be_are_refused(hospital, tmp_path, edit):
    directory = tmp_path / "run"
    shutil.copytree(hospital("lab"), directory)
    evidence.read(str(directory))
    path = directory / "metrics.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **edit}))
    with pytest.raises(InvalidInputError, match=r"metrics\.json"):
        evidence.read(str(directory))


def test_the_command_says_who_learnt_nothing(hospital, tmp_path, capsys):
    words = [str(hospital("lab")), str(hospital("lab-hasty")), "--out", str(tmp_path / "a.html")]
    with pytest.raises(SystemExit) as left:
        cli.main(["report", *words, "--json"])
    assert left.value.code == 0
    good, bad = json.loads(capsys.readouterr().out)["runs"]
    assert (good["task"], good["metric"]) == ("regression", "r2")
    assert good["figure"] > good["guess"] > bad["figure"]
    assert (good["learnt"], bad["learnt"]) == (True, False)


# --- the schema -----------------------------------------------------------------------------------


def test_a_long_schema_is_folded_and_all_of_it_is_there(patient, rendered):
    run = patient("lab")
    lines = run.certificate.public
    assert len(lines) > 12
    section = parse(page.render([run])).one("section", class_="promise")
    folded = section.one("details", class_="more")
    assert folded.one("summary").text == f"and {len(lines) - 12} more"
    assert [item.text for item in folded.all("li")] == list(lines[12:])
    texts = [item.text for item in section.all("li")]
    assert [text for text in texts if text in lines] == list(lines)
    assert any(line.startswith("the schema, column age") for line in lines)
    assert not parse(rendered("one")).one("section", class_="promise").all("details")


def test_the_unit_is_called_what_its_owner_calls_it(patient, rendered):
    run = patient("lab")
    tree = parse(page.render([run]))
    assert "for one patient" in tree.one("p", class_="verdict").text
    assert "Here a node is a patient." in tree.one("section", class_="promise").text
    ours, nobodys = (replace(run, plan=replace(run.plan, record_name=n)) for n in ("owner", None))
    assert "Here a node is an owner." in parse(page.render([ours])).text
    assert "(patient)" not in parse(page.render([nobodys])).text
    assert "(" not in parse(rendered("edge")).one("p", class_="verdict").text
