"""Sets of graphs in the catalog and on disk, as the command line shows them."""

import numpy as np
import torch

from graphveil.data.synthetic import erdos_renyi


def test_a_set_of_graphs_is_listed_and_shown_with_its_size(answer, run):
    listed = {entry["name"]: entry for entry in answer("data list")["data"]}
    assert (listed["molbace"]["record"], listed["molbace"]["num_graphs"]) == ("graph", 1513)
    assert (listed["social"]["record"], listed["social"]["num_graphs"]) == ("node", None)
    assert listed["tu"]["num_classes"] is None
    shown = answer("data show fingerprint")
    assert (shown["num_graphs"], shown["mean_nodes"], shown["unit"]) == (
        1900,
        7.55,
        "a fingerprint",
    )
    code, out, _ = run("data show synthetic-er:50")
    assert code == 0
    assert "1,000" in out
    assert "mean nodes" in out


def test_ones_own_graphs_are_counted(answer, tmp_path):
    data = erdos_renyi(10, num_graphs=30)
    arrays = {name: np.asarray(data[name]) for name in data.keys()}  # noqa: SIM118
    np.savez(tmp_path / "graphs.npz", **arrays)
    shown = answer(f"data show {tmp_path / 'graphs.npz'}")
    assert (shown["record"], shown["num_graphs"], shown["num_nodes"]) == ("graph", 30, 300)
    assert (shown["mean_nodes"], shown["labelled"], shown["num_classes"]) == (10, 30, 2)
    assert (shown["train"], shown["val"], shown["test"]) == (18, 3, 9)


def test_bad_graphs_are_one_line_and_exit_code_2(run, tmp_path):
    data = erdos_renyi(10, num_graphs=30)
    data.edge_index[:, 0] = torch.tensor([0, 299])
    arrays = {name: np.asarray(data[name]) for name in data.keys()}  # noqa: SIM118
    np.savez(tmp_path / "graphs.npz", **arrays)
    code, _, err = run(f"data show {tmp_path / 'graphs.npz'}")
    assert code == 2
    assert "0 -> 299 from graph 0 to 29" in err
    assert len(err.strip().splitlines()) == 1
