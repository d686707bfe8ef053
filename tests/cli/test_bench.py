"""`graphveil bench`: tables by name and by file, and what they end with."""

import pytest

RUNS = """
[[run]]
name = "linear"
method = "mlp"
settings = { num_layers = 1, steps = 2 }

[[run]]
method = "dp-mlp"
settings = { steps = 2 }
vary = { epsilon = [2, 8] }
"""


@pytest.fixture
def table(tmp_path, graph):
    """Write a description of runs on the small graph."""

    def call(runs=RUNS, head=""):
        path = tmp_path / "table.toml"
        path.write_text(f'title = "Small"\ndata = ["{graph}"]\nseeds = 2\n{head}\n{runs}')
        return path

    return call


def test_names_are_listed(answer, run):
    assert {"splits-experiment-a", "splits-table2"} <= set(answer("bench")["tables"])
    assert "splits-experiment-c" in run("bench")[1]


def test_a_table_is_measured_once(answer, run, table, tmp_path):
    line = f"bench {table()} --out {tmp_path / 'r.jsonl'}"
    result = answer(line)
    assert [row["target_epsilon"] for row in result["rows"]] == [None, 2.0, 8.0]
    assert all(len(row["scores"]["macro_f1"]) == 2 for row in result["rows"])
    assert (tmp_path / "r.jsonl").read_text().count("\n") == 6
    assert answer(line)["rows"] == result["rows"]
    assert answer(f"{line} --seeds 1 --only linear")["rows"][0]["accuracies"]
    assert (tmp_path / "r.jsonl").read_text().count("\n") == 6
    code, out, err = run(line)
    assert (code, err) == (0, "")
    assert "linear" in out
    assert "itself a release" in out
    assert "Each epsilon is for one node, at delta" in " ".join(out.split())


def test_published_figures_stand_beside_and_a_miss_ends_with_4(run, table, graph):
    runs = RUNS.replace('"mlp"\n', f'"mlp"\npublished = {{ "{graph}" = 0.995 }}\n', 1)
    code, out, err = run(f"bench {table(runs)} --only linear")
    assert (code, err) == (0, "")
    assert "[99.5]" in out.replace("\n", "").replace(" ", "")
    assert "what was published." in " ".join(out.split())
    missed = RUNS.replace('"mlp"\n', f'"mlp"\nat_least = {{ "{graph}" = 1.0 }}\n', 1)
    code, out, err = run(f"bench {table(missed)} --only linear")
    assert code == 4
    assert "must reach 1" in err
    assert "Small" in out


def test_a_plot_goes_over_what_the_description_says(answer, refused, table, tmp_path):
    pytest.importorskip("matplotlib")
    assert "across" in refused(f"bench {table()} --plot {tmp_path / 'a.svg'}")
    path = table(head='across = "epsilon"')
    assert "must end in" in refused(f"bench {path} --plot {tmp_path / 'a.doc'}")
    answer(f"bench {path} --plot {tmp_path / 'a.svg'}")
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn.startswith("<?xml")
    assert "exists" in refused(f"bench {path} --plot {tmp_path / 'a.svg'}")


def test_bad_settings_are_refused_before_anything_runs(refused, table, tmp_path):
    said = refused(f"bench {table(RUNS.replace('steps = 2 }', 'stepz = 2 }'))}")
    assert "no setting 'stepz'" in said
    assert "must be a whole number" in refused(f"bench {table(RUNS.replace('= 1,', '= 1.5,'))}")
    assert "has an option of its own" in refused(
        f"bench {table(RUNS.replace('steps = 2 }', 'seed = 2 }'))}"
    )
    assert "one of" in refused("bench no-such-table")
    assert "no writable directory" in refused(f"bench {table()} --out {tmp_path}/no/r.jsonl")


def test_a_plan_that_is_refused_keeps_its_row(answer, run, table):
    runs = RUNS + '[[run]]\nmethod = "dp-gnn"\nepsilon = 1\nsettings = { sender_cap = "none" }\n'
    rows = answer(f"bench {table(runs)}")["rows"]
    assert "cap" in rows[-1]["refused"]
    assert rows[0]["mean"] is not None
    assert "refused" in run(f"bench {table(runs)}")[1]
