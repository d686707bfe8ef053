"""`graphveil bench`: what there is, running it, checking it, and the page of results."""

import csv
import json
import warnings

import pytest

from graphveil.data.class_list import Notice
from graphveil.methods import METHODS
from graphveil.runs import Source

HEAD = """
title = "Small"
paper = "gap"
shows = "Table 2"
section = "Section 4"
source = "Nobody, Table 2"
seeds = 2
"""
RUNS = """
[[run]]
name = "linear"
method = "mlp"
settings = { num_layers = 1, steps = 2 }

[[run]]
method = "dp-mlp"
settings = { steps = 2, sample_rate = 1.0 }
vary = { epsilon = [2, 8] }
"""


@pytest.fixture
def table(tmp_path, graph):
    """Write a description of runs on the small graph."""

    def call(runs=RUNS, head="", data=None):
        path = tmp_path / "gap-table2.toml"
        names = json.dumps([str(graph)] if data is None else data)
        path.write_text(f"{HEAD}data = {names}\n{head}\n{runs}")
        return path

    return call


def test_every_description_is_listed(answer, run):
    listed = answer("bench list")["descriptions"]
    assert len(listed) > 3
    assert all({"name", "paper", "shows", "title", "shape", "data"} <= set(one) for one in listed)
    assert all({"name", "here", "stand_in", "get"} == set(d) for one in listed for d in one["data"])
    assert listed[0]["name"] in run("bench list")[1]


def test_one_is_shown_with_what_was_published(answer, run, table, graph):
    runs = RUNS.replace('"mlp"\n', f'"mlp"\npublished = {{ "{graph}" = 0.995 }}\n', 1)
    head = 'finding = "Small works."\ndeviations = ["We are small."]\n'
    path = table(runs, head)
    shown = answer(f"bench show {path}")
    assert [one["setting"] for one in shown["runs"]] == ["", "epsilon=2", "epsilon=8"]
    assert shown["runs"][0]["published"] == {"accuracy": {str(graph): 0.995}}
    text = " ".join(run(f"bench show {path}")[1].split())
    for words in ("99.5", "Nobody, Table 2, Section 4", "Small works.", "We are small."):
        assert words in text, words
    assert len(answer(f"bench show {path} --quick")["runs"]) == 3


def test_a_table_is_measured_once_and_written_tidily(answer, run, table, tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    line = f"bench run {table()} --out {out}"
    result = answer(line)
    assert [row["target_epsilon"] for row in result["rows"]] == [None, 2.0, 8.0]
    assert all(len(row["scores"]["macro_f1"]) == 2 for row in result["rows"])
    notes = out / "gap-table2.jsonl"
    assert notes.read_text().count("\n") == 6
    assert len(list(csv.DictReader((out / "gap-table2.csv").open()))) == 6
    assert (out / "gap-table2.png").read_bytes().startswith(b"\x89PNG")
    assert answer(line)["rows"] == result["rows"]
    assert answer(f"{line} --seeds 1 --only linear")["rows"][0]["accuracies"]
    assert notes.read_text().count("\n") == 6
    code, out_text, err = run(line)
    assert (code, err) == (0, "")
    for words in ("published", "claimed", "proven", "ours", "linear", "itself a release"):
        assert words in " ".join(out_text.split()), words
    assert "Each proven epsilon is for one node, at delta" in " ".join(out_text.split())


def test_the_small_version_has_files_of_its_own(answer, table, tmp_path):
    out = tmp_path / "out"
    answer(f"bench run {table()} --quick --only linear --out {out}")
    assert (out / "gap-table2.quick.jsonl").read_text().count("\n") == 1
    assert not (out / "gap-table2.jsonl").exists()


def test_shards_write_apart_and_are_read_together(answer, refused, table, tmp_path, monkeypatch):
    out, path = tmp_path / "out", table()
    for number in (1, 2):
        answer(f"bench run {path} --shard {number}/2 --out {out}")
    assert sorted(file.name for file in out.iterdir()) == [
        "gap-table2.1-of-2.jsonl", "gap-table2.2-of-2.jsonl",
    ]  # fmt: skip
    monkeypatch.setattr(METHODS["mlp"], "fit", lambda *a, **k: pytest.fail("was run again"))
    result = answer(f"bench run {path} --out {out}")
    assert all(len(row["accuracies"]) == 2 for row in result["rows"])
    assert "needs '--out'" in refused(f"bench run {path} --shard 1/2")
    assert "I/N" in refused(f"bench run {path} --shard 3/2 --out {out}")


def test_several_descriptions_run_one_after_the_other(answer, run, table, tmp_path):
    first = table()
    second = tmp_path / "gap-table3.toml"
    second.write_text(first.read_text().replace("Small", "Other"))
    results = answer(f"bench run {first} {second} --only linear --seeds 1")["descriptions"]
    assert [one["name"] for one in results] == ["gap-table2", "gap-table3"]
    code, out, _ = run(f"bench run {first} {second} --only linear --seeds 1")
    assert code == 0
    assert "Small" in out
    assert "Other" in out


def test_a_stand_in_is_named_and_the_download_too(answer, run, table, graph):
    head = f'stand_in = {{ "ogbn-products" = "{graph}" }}\n'
    runs = RUNS.replace('"mlp"\n', '"mlp"\npublished = { "ogbn-products" = 0.995 }\n', 1)
    path = table(runs, head, data=["ogbn-products", "ogbn-mag"])
    rows = answer(f"bench run {path} --only linear --seeds 1 --root {graph.parent}")["rows"]
    assert (rows[0]["data"], rows[0]["stand_in_for"]) == (str(graph), "ogbn-products")
    assert rows[0]["published"] == 0.995
    assert rows[1]["mean"] is None
    assert "ogb.stanford.edu" in rows[1]["refused"]
    text = " ".join(
        run(f"bench run {path} --only linear --seeds 1 --root {graph.parent}")[1].split()
    )
    assert "runs as a stand-in" in text
    assert "not on disk" in text
    assert "other data" in text.replace("(", "").replace(")", "")


def test_what_the_owner_should_know_is_said_once(run, table, monkeypatch):
    def arrange(self, data, arrange=Source.arrange):
        warnings.warn("a split is drawn", Notice, stacklevel=2)
        return arrange(self, data)

    monkeypatch.setattr(Source, "arrange", arrange)
    code, _, err = run(f"bench run {table()} --only linear --seeds 2")
    assert code == 0
    assert err.count("a split is drawn") == 1
    assert "Notice" not in err


def test_a_miss_ends_with_4(run, table, graph):
    missed = RUNS.replace('"mlp"\n', f'"mlp"\nat_least = {{ "{graph}" = 1.0 }}\n', 1)
    code, out, err = run(f"bench run {table(missed)} --only linear")
    assert code == 4
    assert "must reach 1" in err
    assert "Small" in out


def test_bad_requests_are_refused_before_anything_runs(refused, table, tmp_path):
    text = refused(f"bench run {table(RUNS.replace('steps = 2 }', 'stepz = 2 }'))}")
    assert "no setting 'stepz'" in text
    assert "must be a whole number" in refused(f"bench run {table(RUNS.replace('= 1,', '= 1.5,'))}")
    assert "has an option of its own" in refused(
        f"bench run {table(RUNS.replace('steps = 2 }', 'seed = 2 }'))}"
    )
    assert "bench list" in refused("bench run no-such-table")
    assert "--all" in refused("bench run")
    assert "--all" in refused(f"bench run --all {table()}")
    assert "'seeds'" in refused(f"bench run {table()} --seeds 0")
    (tmp_path / "file").touch()
    assert "cannot be a folder" in refused(f"bench run {table()} --out {tmp_path / 'file'}")
    assert "Nothing is left" in refused(f"bench run {table()} --only nobody")


def test_a_plan_that_is_refused_keeps_its_row(answer, run, table):
    runs = RUNS + '[[run]]\nmethod = "dp-gnn"\nepsilon = 1\nsettings = { sender_cap = "none" }\n'
    path = table(runs)
    rows = answer(f"bench run {path}")["rows"]
    assert "cap" in rows[-1]["refused"]
    assert rows[0]["mean"] is not None
    assert "refused" in run(f"bench run {path}")[1]


def test_who_interrupts_is_told_that_nothing_is_lost(run, table, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(METHODS["dp-mlp"], "fit", interrupt)
    code, _, err = run(f"bench run {table()} --out {tmp_path / 'out'}")
    assert code == 130
    assert "the same command goes on" in err
    assert (tmp_path / "out" / "gap-table2.jsonl").read_text().count("\n") == 2


def test_a_wrong_figure_ends_a_check_with_4(answer, run, table, graph, tmp_path):
    runs = RUNS.replace('"mlp"\n', f'"mlp"\npublished = {{ "{graph}" = 0.9 }}\n', 1)
    path, form = table(runs), tmp_path / "form.csv"
    answer(f"bench check {path} --form {form}")
    assert ",,\n" in form.read_text()
    assert answer(f"bench check {path} --no-plans")["unread"] != []
    form.write_text(form.read_text().replace("accuracy,,", "accuracy,0.9,"))
    result = answer(f"bench check {path} --reading {form} --no-plans")
    assert (result["differences"], result["unread"], result["figures"]) == ([], [], 1)
    form.write_text(form.read_text().replace("0.9", "0.8"))
    code, out, err = run(f"bench check {path} --reading {form} --no-plans")
    assert code == 4
    assert "published 0.9 here, 0.8 there" in " ".join(out.split())
    assert "typed them differently" in err
    across = table(runs, 'across = "colour"')
    code, _, err = run(f"bench check {across} --no-plans")
    assert code == 2
    assert "1 problem" in err


def test_a_page_is_made_of_results(answer, refused, table, tmp_path):
    pytest.importorskip("matplotlib")
    path, out = table(head='shape = "lines"\nacross = "epsilon"\n'), tmp_path / "out"
    answer(f"bench run {path} --out {out}")
    page, by_hand = tmp_path / "results.md", tmp_path / "choose.md"
    by_hand.write_text("<!-- bench: gap-table2; only linear -->\n<!-- end -->\n")
    result = answer(f"bench page {path} --results {out} --out {page} --into {by_hand}")
    assert str(page) in result["written"]
    assert "![Small](results/gap-table2.svg)" in page.read_text()
    assert "<svg" in (tmp_path / "results" / "gap-table2.svg").read_text()
    assert "| linear |" in by_hand.read_text()
    assert "dp-mlp" not in by_hand.read_text()
    assert "--into" in refused(f"bench page --results {out}")
    assert "Got none" in refused(f"bench page --results {tmp_path} --out {page}")
