"""Builds that end early: what is left is no store, and the next one goes on to the same bytes."""

import json
import os
import signal
import subprocess
import sys

import filelock
import numpy as np
import pandas as pd
import pytest
from store_cases import contents, frames, write_tables

import graphveil.data.store_building as building
import graphveil.data.store_edges as store_edges
import graphveil.data.store_nodes as store_nodes
import graphveil.data.store_sources as store_sources
import graphveil.data.store_tables as store_tables
from graphveil._errors import InvalidInputError
from graphveil.data.store_building import build_store
from graphveil.data.store_format import BUILDING, Manifest, is_store, is_unfinished

pytest.importorskip("pyarrow", reason="stores of tables need pyarrow")
pytestmark = pytest.mark.filterwarnings("ignore::graphveil.data.class_list.Notice")


class Killed(BaseException):
    """The end of a process, for everything but the test."""


@pytest.fixture
def folder(tmp_path):
    """Tables with ids that become text on the way."""
    nodes, edges = frames(80, 200)
    names = dict(zip(nodes["id"], [*map(str, range(40)), *nodes["id"][40:]], strict=True))
    nodes["id"] = nodes["id"].map(names)
    edges = edges.apply(lambda column: column.map(names))
    return write_tables(tmp_path / "tables", nodes, edges)


@pytest.fixture
def noted(monkeypatch):
    """States are noted after every part, of a few rows each."""
    monkeypatch.setattr(building, "_NOTE_EVERY", {"nodes": 1, "edges": 1})
    monkeypatch.setattr(building, "_NOTE_MESSAGES", 1)
    monkeypatch.setattr(store_sources.TableSource, "_node_rows", lambda *a: 19)
    monkeypatch.setattr(store_sources, "_edge_rows", lambda memory: 67)
    monkeypatch.setattr(store_tables, "_BLOCK", 600)
    monkeypatch.setattr(store_edges, "LEAST_SENDERS", 23)


def count_down(monkeypatch, owner, name, number, *, before=True):
    """Have the call ``number`` of a function end the process, before or after it did its work."""
    original, left = getattr(owner, name), [number]

    def call(*arguments, **options):
        left[0] -= 1
        if left[0] < 0 and before:
            raise Killed
        answer = original(*arguments, **options)
        if left[0] < 0:
            raise Killed
        return answer

    monkeypatch.setattr(owner, name, call)


STEPS = [
    (building, "write_file", "a state"),
    (store_nodes.GrowingArray, "append", "an array"),
    (store_nodes.GrowingArray, "sync", "a sync"),
    (store_nodes.GrowingArray, "finish", "a header"),
    (store_edges.Spill, "add", "edges"),
    (building, "sha256_of", "a checksum"),
]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("owner, name, what", STEPS, ids=[step[2] for step in STEPS])
def test_a_build_goes_on_wherever_it_was_killed(
    tmp_path, folder, noted, monkeypatch, owner, name, what, before
):
    build_store(folder, tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    out, kills = tmp_path / "killed", 0
    # Every process gets a little further before it is killed.
    for number in range(200):
        with monkeypatch.context() as patch:
            count_down(patch, owner, name, number * 7 // 4 + 1, before=before)
            try:
                build_store(folder, out)
            except Killed:
                kills += 1
                assert not is_store(out)
                assert is_unfinished(out)
                continue
        break
    assert kills >= 2
    assert contents(out) == whole
    assert not (out / BUILDING).exists()


SCRIPT = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
import graphveil.data.store_building as building
from graphveil.data import store_tables
building._NOTE_EVERY = {"nodes": 1, "edges": 1}
building._NOTE_MESSAGES = 1
store_tables._BLOCK = 1500
stop = sys.argv[3]
def track(label, items):
    for number, item in enumerate(items):
        if label == stop and number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        yield item
building.build_store(sys.argv[1], sys.argv[2], track=track)
"""


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX's")
def test_a_process_that_is_killed_leaves_no_lock(tmp_path, folder):
    out = tmp_path / "killed"
    command = [sys.executable, "-c", SCRIPT, str(folder), str(out), "reading edges"]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert is_unfinished(out)
    state = json.loads((out / BUILDING / "state.json").read_text())
    assert 0 < state["edges"]["lines"] < 200
    with pytest.raises(InvalidInputError, match="is not finished; give the command"):
        Manifest.read(out)
    build_store(folder, out)
    build_store(folder, tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")


def test_an_interrupted_build_says_how_it_goes_on(tmp_path, folder, noted, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(store_edges.Spill, "add", interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        build_store(folder, tmp_path / "out")
    assert "the same command goes on" in caught.value.__notes__[0]


# --- what must not go on --------------------------------------------------------------------------


def refusal(*arguments, **options):
    with pytest.raises(InvalidInputError) as caught:
        build_store(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def unfinished(tmp_path, folder, noted, monkeypatch):
    out = tmp_path / "unfinished"
    with monkeypatch.context() as patch:
        count_down(patch, store_edges.Spill, "add", 1)
        with pytest.raises(Killed):
            build_store(folder, out)
    return out


def test_another_source_or_other_settings_start_nothing(tmp_path, folder, unfinished):
    state = (unfinished / BUILDING / "state.json").read_bytes()
    assert "--force" in refusal(folder, unfinished, directed=True)
    assert "--force" in refusal(folder, unfinished, dtype="float16")
    other = write_tables(tmp_path / "other", *frames())
    assert "--force" in refusal(other, unfinished)
    table = pd.read_csv(folder / "edges.csv")
    table[:-1].to_csv(folder / "edges.csv", index=False)
    assert "files that changed since" in refusal(folder, unfinished)
    assert (unfinished / BUILDING / "state.json").read_bytes() == state
    build_store(folder, unfinished, force=True)
    build_store(folder, tmp_path / "whole")
    assert contents(unfinished) == contents(tmp_path / "whole")


@pytest.mark.parametrize("damage", ["state", "array", "messages"])
def test_files_that_were_cut_are_noticed(folder, unfinished, damage):
    names = {"state": "state.json", "messages": "messages-000.part"}
    path = unfinished / BUILDING / names.get(damage, "")
    if damage == "array":
        state = json.loads((unfinished / BUILDING / "state.json").read_text())
        state["done"] = []
        (unfinished / BUILDING / "state.json").write_text(json.dumps(state))
        path = unfinished / "x.npy"
    path.write_bytes(path.read_bytes()[:-9])
    assert "--force" in refusal(folder, unfinished)
    build_store(folder, unfinished, force=True)


def test_a_stream_starts_anew(tmp_path, noted, monkeypatch):
    nodes, edges = frames()
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        count_down(patch, store_edges.Spill, "add", 1)
        with pytest.raises(Killed):
            build_store(nodes=nodes, edges=edges, out=out)
    assert "--force" in refusal(nodes=nodes, edges=edges, out=out)
    build_store(nodes=nodes, edges=edges, out=out, force=True)
    assert is_store(out)


def test_a_query_starts_its_pass_anew(tmp_path, noted, monkeypatch):
    duckdb = pytest.importorskip("duckdb", reason="queries need duckdb")
    folder = write_tables(tmp_path / "tables", *frames())
    with duckdb.connect(str(tmp_path / "graph.db")) as connection:
        for name in ("nodes", "edges"):
            connection.execute(f"CREATE TABLE {name} AS FROM '{folder / name}.csv'")
    source = f"duckdb://{tmp_path / 'graph.db'}"
    queries = {"nodes": "FROM nodes", "edges": "FROM edges"}
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        count_down(patch, store_edges.Spill, "add", 0, before=False)
        with pytest.raises(Killed):
            build_store(source, out, **queries)
    state = json.loads((out / BUILDING / "state.json").read_text())
    assert state["done"] == ["nodes", "index"]
    assert "edges" not in state
    build_store(source, out, **queries)
    build_store(source, tmp_path / "whole", **queries)
    assert contents(out) == contents(tmp_path / "whole")


def test_only_one_process_builds(tmp_path, folder, unfinished):
    with filelock.FileLock(unfinished / BUILDING / "lock"):
        assert "is being built by another process" in refusal(folder, unfinished)
        assert "is being built by another process" in refusal(folder, unfinished, force=True)
    build_store(folder, unfinished)


def test_a_finished_store_is_replaced_by_a_finished_one(tmp_path, folder, noted, monkeypatch):
    out = tmp_path / "out"
    other = write_tables(tmp_path / "other", *frames(seed=5))
    build_store(other, out)
    before = contents(out)
    assert "--force" in refusal(folder, out)
    with monkeypatch.context() as patch:
        count_down(patch, store_edges.Spill, "add", 1)
        with pytest.raises(Killed):
            build_store(folder, out, force=True)
    assert contents(out) == before
    build_store(folder, out, force=True)
    build_store(folder, tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")
    names = {"tables", "other", "out", "whole"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_directory_with_other_files_is_left_alone(tmp_path, folder):
    out = tmp_path / "mine"
    out.mkdir()
    (out / "letter.txt").write_text("dear")
    for force in (False, True):
        assert "letter.txt" in refusal(folder, out, force=force)
    assert [path.name for path in out.iterdir()] == ["letter.txt"]
    (out / "letter.txt").unlink()
    build_store(folder, out)


# --- a full disk ----------------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("what", ["append", "add"])
def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path, folder, noted, monkeypatch, what):
    out = tmp_path / "out"
    calls = [0]
    owner = store_nodes.GrowingArray if what == "append" else store_edges.Spill
    original = getattr(owner, what)

    def fill(self, *values):
        calls[0] += 1
        if calls[0] == 4:
            with open("/dev/full", "wb", buffering=0) as file:
                file.write(b"0" * 10)
        return original(self, *values)

    with monkeypatch.context() as patch:
        patch.setattr(owner, what, fill)
        message = refusal(folder, out)
    assert "No space left on device" in message
    assert "the same command goes on" in message
    build_store(folder, out)
    build_store(folder, tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")


def test_what_was_counted_before_a_kill_counts_once(tmp_path, noted, monkeypatch):
    """Loops and repeated lines, whichever process read them."""
    nodes, _ = frames(text=False)
    ids = nodes["id"].to_numpy()
    pairs = np.stack([ids[:40], ids[20:]], 1)
    lines = np.concatenate([pairs, pairs, np.stack([ids, ids], 1)])
    edges = pd.DataFrame(lines, columns=["source", "target"])
    folder = write_tables(tmp_path / "tables", nodes, edges)
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        count_down(patch, store_edges.Spill, "add", 1)
        with pytest.raises(Killed):
            build_store(folder, out)
    manifest = build_store(folder, out)
    assert (manifest.loops_removed, manifest.repeats_removed) == (60, 40)
