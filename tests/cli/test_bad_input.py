"""Odd numbers, files and paths on the command line: one line, exit code 2, and nothing left."""

import json
import os
import shutil

import pytest

LONG = ("1" * 400, "1" * 5000)


def short(value):
    return f"{value[:3]}_{len(value)}" if isinstance(value, str) else None


@pytest.fixture
def here(tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def trained(run, tmp_path, graph):
    """A finished run."""
    out = tmp_path / "trained"
    assert run(f"train mlp --data {graph} --out {out} --set steps=1")[0] == 0
    return out


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [*LONG, "[" * 3000, "0x" + "f" * 5000], ids=short)
def test_settings_that_no_number_holds(refused, here, graph, value):
    line = refused(["train", "mlp", "--data", str(graph), "--out", "o", "--set", f"steps={value}"])
    assert "'steps'" in line
    assert len(line) < 400
    assert not (here / "o").exists()


@pytest.mark.parametrize("value", LONG, ids=short)
def test_seeds_and_sizes_that_no_number_holds(refused, here, graph, value):
    refused(["train", "mlp", "--data", str(graph), "--out", "o", "--seed", value])
    refused(f"plan dp-mlp --nodes {value} --features 4 --classes 2 --epsilon 1")
    assert not (here / "o").exists()


CONFIGS = {
    "epsilon of 400 digits": f"epsilon = {LONG[0]}",
    "seed of 5000 digits": f"seed = {LONG[1]}",
    "nested": "x = " + "[" * 20000,
    "dotted": ".".join(["a"] * 5000) + " = 1",
    "NUL": 'out = "a\\u0000b"',
}


@pytest.mark.parametrize("text", CONFIGS.values(), ids=CONFIGS)
def test_configs_that_no_setting_can_hold(refused, here, text):
    (here / "c.toml").write_text(f'method = "mlp"\n{text}\n')
    for command in ("train --out o --config", "tune --out o --config", "bench"):
        assert "c.toml" in refused(f"{command} c.toml")
    assert os.listdir(here) == ["c.toml"]


EVENT = '{"type": "SelfComposedDpEvent", "count": %s, "event": {"type": "GaussianDpEvent", "noise_multiplier": 2}}'  # noqa: E501


@pytest.mark.parametrize("text", [EVENT % LONG[0], EVENT % LONG[1], "[" * 200_000], ids=short)
def test_events_that_no_accountant_can_hold(refused, here, text):
    (here / "e.json").write_text(text)
    assert "e.json" in refused("account --event e.json --delta 1e-5")


@pytest.mark.parametrize("name", ["settings.json", "metrics.json", "events.json", "audit.json"])
def test_runs_with_a_number_that_no_float_holds(refused, here, trained, name):
    shutil.copytree(trained, here / "run")
    content = json.loads((trained / name).read_text()) if name != "audit.json" else {"format": 1}
    (here / "run" / name).write_text(json.dumps({**content, "format": 10**400}))
    assert name in refused("report run --out page.html")
    assert not (here / "page.html").exists()


def test_a_run_with_too_few_names_for_its_classes(refused, here, trained, graph):
    shutil.copytree(trained, here / "run")
    settings = json.loads((trained / "settings.json").read_text())
    (here / "run" / "settings.json").write_text(json.dumps({**settings, "class_names": ["a"]}))
    assert "1 names for 3 classes" in refused(f"predict run --data {graph}")


# --- paths ----------------------------------------------------------------------------------------

PATHS = {"long": "y" * 300, "parts": "/".join(["q" * 50] * 100), "NUL": "a\0b"}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_paths_that_no_disk_can_hold(refused, here, graph, trained, path):
    train = ["train", "mlp", "--set", "steps=1"]
    refused([*train, "--data", str(graph), "--out", path])
    refused([*train, "--data", path, "--out", "o"])
    refused([*train, "--config", path, "--out", "o"])
    refused(["report", path, "--out", "page.html"])
    refused(["report", str(trained), "--out", path])
    refused(["predict", str(trained), "--data", str(graph), "--out", path])
    refused(["ledger", "open", path, "--name", "x", "--epsilon", "1", "--delta", "0.1"])
    refused(["ledger", "import", "l.ledger", path])
    refused(["account", "--event", path, "--delta", "0.1"])
    refused(["bench", path])
    assert os.listdir(here) == []


@pytest.mark.skipif(os.name != "posix", reason="paths are text there")
def test_a_path_of_other_bytes_is_used_and_printed(run, here, graph):
    out = os.fsdecode(b"bad\xff")
    train = ["train", "dp-mlp", "--data", str(graph), "--epsilon", "8", "--set", "steps=1"]
    book = os.fsdecode(b"led\xff")
    code, said, _ = run(
        ["ledger", "open", book, "--name", "x", "--epsilon", "9", "--delta", "0.01"]
    )
    assert (code, "led\\udcff" in said) == (0, True)
    code, said, err = run([*train, "--set", "sample_rate=1", "--out", out])
    assert (code, err, "bad\\udcff" in said) == (0, "", True)
    assert run(["report", out, "--out", "page.html"])[0] == 0


@pytest.mark.skipif(os.name != "posix", reason="no links or pipes")
def test_a_run_goes_where_a_link_leads_and_the_link_stays(run, here, graph):
    (here / "real").mkdir()
    (here / "link").symlink_to("real")
    (here / "ahead").symlink_to("later")
    train = ["train", "mlp", "--data", str(graph), "--set", "steps=1", "--out"]
    for more in ([], ["--force"], ["--force"]):
        assert run([*train, "link", *more])[0] == 0
        assert (here / "link").is_symlink()
        assert (here / "real" / "certificate.json").exists()
    assert run([*train, "ahead"])[0] == 0
    assert sorted(os.listdir(here)) == ["ahead", "later", "link", "real"]


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no devices")
@pytest.mark.usefixtures("alarm")
def test_devices_and_pipes_are_not_read(refused, here, trained):
    os.mkfifo("pipe")
    shutil.copytree(trained, here / "run")
    for name in ("pipe", "/dev/zero"):
        assert name in refused(f"train --config {name} --out o")
        assert name in refused(f"account --event {name} --delta 0.1")
        assert name in refused(f"bench {name}")
        assert name in refused(f"ledger import l.ledger {name}")
    os.unlink(here / "run" / "model.safetensors")
    os.mkfifo(here / "run" / "model.safetensors")
    assert "model.safetensors" in refused("report run --out page.html")
    assert not (here / "o").exists()


@pytest.mark.skipif(os.name != "posix", reason="no links")
def test_links_to_themselves_and_homes_of_nobody(refused, run, here, graph):
    (here / "loop").symlink_to("loop")
    open_account = "--name x --epsilon 1 --delta 0.1"
    assert run(f"ledger open a.ledger {open_account}")[0] == 0
    for line in (
        f"ledger open loop {open_account}",
        "ledger export a.ledger --out loop/x",
        "report loop --out page.html",
        f"train mlp --data {graph} --set steps=1 --out loop",
        "data show ~nobody-here/x.npz",
        "train mlp --data social --root ~nobody-here --out o",
        "data build text --documents ~nobody-here/x.csv --links l --features hash --out o.npz",
    ):
        refused(line)
    assert sorted(os.listdir(here)) == ["a.ledger", "loop"]
