"""graphveil ledger, and train and predict that charge one."""

import json
import os
import shutil
import signal

import pytest

TRAIN = "train dp-mlp --epsilon 1 --set steps=3 --set sample_rate=1.0 --delta 1e-4"


@pytest.fixture
def ledger(run, tmp_path):
    path = tmp_path / "study.ledger"
    code, _, err = run(f"ledger open {path} --name people --epsilon 4 --delta 1e-4")
    assert (code, err) == (0, "")
    return path


@pytest.fixture
def charged(run, ledger, graph, tmp_path):
    """A run that was charged."""
    late = TRAIN.replace("dp-mlp", "late-graph")
    code, out, err = run(f"{late} --data {graph} --out {tmp_path / 'run'} --ledger {ledger}")
    assert (code, err) == (0, "")
    assert "charged to" in out
    return tmp_path / "run"


def unwrapped(text):
    """Without the line breaks of a narrow terminal, and where they are put."""
    return "".join(text.split())


def entries(ledger):
    from graphveil.privacy.ledger import Ledger

    return Ledger(ledger).read().entries


def test_open_makes_a_file_then_adds_accounts(answer, refused, ledger):
    found = answer(f"ledger open {ledger} --name graphs --epsilon 2 --delta 1e-5 --unit graph")
    assert (found["entries"], found["unit"], found["epsilon"]) == (3, "graph", 2.0)
    assert "'people'" in refused(f"ledger open {ledger} --name people --epsilon 9 --delta 1e-5")
    assert "unit" in refused(f"ledger open {ledger} --name x --epsilon 9 --delta 1e-5 --unit us")
    assert "epsilon" in refused(f"ledger open {ledger} --name x --epsilon 0 --delta 1e-5")
    assert "--name" in refused(f"ledger open {ledger} --epsilon 1 --delta 1e-5")
    missing = ledger.parent / "nowhere" / "x.ledger"
    assert "directory" in refused(f"ledger open {missing} --name x --epsilon 1 --delta 1e-5")


def test_show_gives_both_sums_and_what_is_left(run, answer, ledger, graph, charged, tmp_path):
    answer(f"{TRAIN} --data {graph} --out {tmp_path / 'second'} --ledger {ledger}")
    found = answer(f"ledger show {ledger}")
    (people,) = found["accounts"]
    assert people["spent"] < people["sum_of_epsilons"]
    assert 0 < people["left"] < 4
    assert (people["open"], people["unit"]) == ([], "node")
    first, second = people["charges"]
    assert first["purpose"] == "training, late-graph"
    assert (second["run"], second["settled"]) == (str(tmp_path / "second"), True)
    assert first["epsilon"] + second["epsilon"] == people["sum_of_epsilons"]
    assert len(people["versions"]) == 1
    assert people["who"] is None
    assert found["entries"] == len(entries(ledger))
    code, out, _ = run(f"ledger show {ledger}")
    assert code == 0
    listed = f"{second['at'][:10]} epsilon 1 by itself, training, dp-mlp, in {tmp_path}"
    assert unwrapped(listed) in unwrapped(out)
    for word in ("people", "2 charges", "epsilon 4 at delta 0.0001", "by composition", "plain sum",
                 "left", found["head"], "node (withhold)"):  # fmt: skip
        assert word in out, word


def test_show_names_what_was_not_settled_and_an_overdraft(run, answer, refused, ledger):
    import dp_accounting as dpa

    from graphveil.privacy.guarantee import Charge
    from graphveil.privacy.ledger import Ledger
    from graphveil.privacy.ledger_state import Promise

    def charges(noise):
        return [Charge(paid_for="a test", event=dpa.GaussianDpEvent(noise))]

    node = Promise(unit="node")
    Ledger(ledger).reserve("one", "people", charges(3.0), node, purpose="a test", run="/runs/one")
    assert "a test, in /runs/one" in run(f"ledger show {ledger}")[1]
    assert answer(f"ledger show {ledger}")["accounts"][0]["open"][0]["id"] == "one"
    Ledger(ledger).settle("one", charges(0.3))
    code, out, _ = run(f"ledger show {ledger}")
    assert code == 0
    assert "OVERDRAWN" in out
    assert "is overdrawn" in refused(f"ledger verify {ledger}", 3)


def test_verify_notices_a_flipped_byte_and_a_cut_off_end(run, answer, refused, ledger, charged):
    head = answer(f"ledger verify {ledger}")["head"]
    assert answer(f"ledger verify {ledger} --head {head} --at-least 4")["holds"] is True
    assert "cut off" in refused(f"ledger verify {ledger} --head {'0' * 64}")
    assert "entries" in refused(f"ledger verify {ledger} --at-least 99")
    whole = bytearray(ledger.read_bytes())
    whole[whole.find(b"training of the weights")] ^= 1
    ledger.write_bytes(whole)
    for command in ("verify", "show", "export"):
        assert "does not hold" in refused(f"ledger {command} {ledger}")


def test_a_directory_is_no_ledger(refused, tmp_path):
    line = f"ledger open {tmp_path} --name people --epsilon 1 --delta 1e-5"
    assert "must be a file" in refused(line)


def test_export_and_import_make_the_same_ledger(run, answer, refused, ledger, charged, tmp_path):
    out = tmp_path / "export.json"
    answer(f"ledger export {ledger} --out {out}")
    assert "exists" in refused(f"ledger export {ledger} --out {out}")
    code, text, _ = run(f"ledger export {ledger}")
    assert (code, text) == (0, out.read_text())
    assert answer(f"ledger export {ledger}") == json.loads(text)
    for end in ("", "-journal", "-wal"):
        said = refused(f"ledger export {ledger} --out {ledger}{end} --force")
        assert "must not take the place of the ledger" in said
    again = tmp_path / "again.ledger"
    assert (
        answer(f"ledger import {again} {out}")["head"] == answer(f"ledger verify {ledger}")["head"]
    )
    assert "there already" in refused(f"ledger import {again} {out}")
    out.write_text(text.replace("people", "peoplf", 1))
    assert "entry 2" in refused(f"ledger import {tmp_path / 'third.ledger'} {out}")
    assert "cannot be read" in refused(
        f"ledger import {tmp_path / 'third.ledger'} {tmp_path / 'no'}"
    )
    assert "no text" in refused(
        f"ledger import {tmp_path / 'third.ledger'} {charged / 'model.safetensors'}"
    )


@pytest.mark.parametrize("first", [True, False])
def test_an_overrun_exits_3_before_data_is_opened(refused, ledger, graph, charged, tmp_path, first):
    """The data is not there, and nobody notices: also when the account knows no sizes yet."""
    if first:
        ledger = tmp_path / "other.ledger"
        from graphveil.privacy.ledger import Ledger

        Ledger(ledger).open("people", 4.0, 1e-4)
    before = entries(ledger)
    asked = TRAIN.replace("--epsilon 1", "--epsilon 4.1" if first else "--epsilon 3.95")
    said = refused(
        f"{asked} --data {tmp_path / 'missing.npz'} --out {tmp_path / 'x'} --ledger {ledger}", 3
    )
    assert "would fit" in said
    assert entries(ledger) == before
    assert not (tmp_path / "x").exists()


def test_data_that_is_not_there_costs_nothing(refused, answer, ledger, charged, tmp_path):
    spent = answer(f"ledger show {ledger}")["accounts"][0]["spent"]
    missing = tmp_path / "missing.npz"
    assert "missing.npz" in refused(
        f"{TRAIN} --data {missing} --out {tmp_path / 'x'} --ledger {ledger}"
    )
    people = answer(f"ledger show {ledger}")["accounts"][0]
    assert (people["spent"], people["open"]) == (spent, [])


def test_a_noisy_prediction_is_charged_and_can_be_refused(
    run, answer, refused, ledger, graph, charged, tmp_path
):
    before = answer(f"ledger show {ledger}")["accounts"][0]["spent"]
    noisy = f"predict {charged} --mode noisy --out {tmp_path / 'classes.csv'} --force"
    assert "is spent" in refused(f"{noisy} --data {tmp_path / 'missing.npz'} --epsilon 9", 3)
    answer(f"{noisy} --data {graph} --epsilon 1")
    assert before < answer(f"ledger show {ledger}")["accounts"][0]["spent"]
    shutil.move(ledger, tmp_path / "moved.ledger")
    said = refused(f"{noisy} --data {graph} --epsilon 1")
    assert "There is no ledger" in said
    assert "was it moved? Name it with --ledger" in said
    found = answer(f"{noisy} --data {graph} --epsilon 1 --ledger {tmp_path / 'moved.ledger'}")
    assert found["ledger"]["account"] == "people"
    assert found["ledger"]["ledger"] == str(tmp_path / "moved.ledger")
    spoken = f"{noisy} --data {graph} --epsilon 0.1 --ledger {tmp_path / 'moved.ledger'}"
    words = f"account 'people' of {tmp_path / 'moved.ledger'}"
    assert unwrapped(words) in unwrapped(run(spoken)[1])
    shown = spoken.replace(f"--out {tmp_path / 'classes.csv'} --force", "")
    assert f"charged to {words}" in run(shown)[2]
    assert answer(f"ledger show {tmp_path / 'moved.ledger'}")["accounts"][0]["charges"][2][
        "purpose"
    ] == ("a noisy prediction")
    plain = noisy.replace("--mode noisy", "--mode visible")
    assert "Only the mode" in refused(f"{plain} --data {graph} --ledger {ledger}")


def test_a_config_may_name_ledger_and_account(answer, run, refused, ledger, graph, tmp_path):
    answer(f"ledger open {ledger} --name others --epsilon 4 --delta 1e-4")
    config = tmp_path / "run.toml"
    config.write_text(
        f'method = "dp-mlp"\ndata = "{graph}"\nepsilon = 1\ndelta = 1e-4\nledger = "{ledger}"\n'
        "[settings]\nsteps = 3\nsample_rate = 1.0\n"
    )
    out = tmp_path / "run"
    assert "'people', 'others'" in refused(f"train --config {config} --out {out}")
    found = answer(f"train --config {config} --out {out} --account others")
    assert found["ledger"]["account"] == "others"
    config.write_text("ledger = 5\n")
    assert "'ledger' must be a text. Got 5" in refused(f"train --config {config} --out {out}")


def test_an_account_needs_a_ledger(refused, ledger, graph, tmp_path):
    assert "'--ledger'" in refused(
        f"{TRAIN} --data {graph} --out {tmp_path / 'x'} --account people"
    )
    asked = f"{TRAIN} --data {graph} --out {tmp_path / 'x'} --ledger"
    assert "'nobody'" in refused(f"{asked} {ledger} --account nobody")
    assert "There is no ledger" in refused(f"{asked} {tmp_path / 'none.ledger'}")
    (tmp_path / "text.ledger").write_text("hello" * 1000)
    assert "does not hold" in refused(f"{asked} {tmp_path / 'text.ledger'}")
    assert not (tmp_path / "x").exists()


def test_methods_in_the_open_are_not_charged(refused, ledger, graph, tmp_path):
    said = refused(f"train mlp --data {graph} --out {tmp_path / 'x'} --ledger {ledger}", 3)
    assert "trains in the open" in said
    assert not (tmp_path / "x").exists()


def test_the_ledger_is_read_without_torch(ledger):
    import subprocess
    import sys

    program = (
        "import sys\nfrom graphveil import cli\n"
        f"try: cli.main(['ledger', 'show', {str(ledger)!r}, '--json'])\n"
        "except SystemExit as left: assert left.code == 0\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=os.environ)
    assert done.returncode == 0, done.stderr


# --- people, runs and interrupts ------------------------------------------------------------------


def test_an_account_says_who_is_in_it(run, answer, ledger):
    said = "patients of ward 3, 2024"
    line = ["ledger", "open", str(ledger), "--name", "ward", "--epsilon", "2", "--delta", "1e-5"]
    code, out, err = run([*line, "--who", said])
    assert (code, err) == (0, "")
    assert said in out
    assert answer(f"ledger show {ledger} --account ward")["accounts"][0]["who"] == said
    assert said in run(f"ledger show {ledger} --account ward")[1]


def test_a_new_version_of_the_data_is_noticed_and_listed(run, ledger, charged, save, arrays):
    y = arrays["y"].copy()
    y[0] = (y[0] + 1) % 3
    asked = f"{TRAIN} --data {save('other.npz', y=y)} --out {charged.parent / 'second'}"
    code, _, err = run(f"{asked} --ledger {ledger}")
    assert code == 0
    assert err.startswith("graphveil: The account 'people' has seen other data than this")
    assert err.count("\n") == 1
    out = run(f"ledger show {ledger}")[1]
    assert "version 1, " in out
    assert "version 2, " in out


def test_verify_compares_runs_with_the_ledger(run, answer, refused, ledger, graph, charged):
    from graphveil.privacy.ledger import Ledger

    second = charged.parent / "second"
    shutil.copy(ledger, charged.parent / "copy.ledger")
    answer(f"{TRAIN} --data {graph} --out {second} --ledger {ledger}")
    found = answer(f"ledger verify {ledger} --runs {charged} {second}")
    assert found["charges_of_runs"] == 2
    assert (
        "2, which made 2 of 2 charges"
        in run(f"ledger verify {ledger} --runs {charged} {second}")[1]
    )
    Ledger(charged.parent / "copy.ledger").verify()
    said = refused(f"ledger verify {charged.parent / 'copy.ledger'} --runs {second}")
    assert "charges less than was released" in said
    assert "--runs" in refused(f"ledger verify {ledger} {charged}")
    assert "not a run" in refused(f"ledger verify {ledger} --runs {charged.parent}")


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_whoever_interrupts_is_told_what_stays_charged_and_how_it_goes_on(
    run, answer, ledger, graph, tmp_path, monkeypatch, name, code
):
    from graphveil.grads.step import PrivateStep

    line = f"{TRAIN} --data {graph} --out {tmp_path / 'run'} --ledger {ledger}"
    handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)]
    with monkeypatch.context() as patched:
        patched.setattr(
            PrivateStep, "_draw", lambda self: signal.raise_signal(getattr(signal, name))
        )
        found, out, err = run(f"{line} --force")
    assert (found, out) == (code, "")
    assert "stays charged to the account 'people' with all that it reserved" in err
    command, _, rest = line.partition(" ")
    assert err.endswith(f"That is: graphveil {command} --resume {rest}\n")
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)] == handlers
    assert answer(f"{line} --resume")["epsilon"] <= 1


def test_the_command_that_goes_on_is_printed_to_the_letter():
    """With its blanks, and with its options where they are options."""
    from graphveil.cli import _explain_interruption

    error = KeyboardInterrupt()
    error.add_note("It goes on with --resume.")
    said = _explain_interruption(error, ["train", "--force", "--out", "a  b", "--", "dp-mlp"])
    assert said[1] == "graphveil train --resume --out 'a  b' -- dp-mlp"


def test_say_leaves_a_command_as_it_is(capsys):
    from graphveil.cli._output import say

    say("two\n lines", "rm 'a  b'")
    assert capsys.readouterr().err == "graphveil: two lines rm 'a  b'\n"


@pytest.mark.skipif(os.name != "posix", reason="needs pipes and links")
def test_what_is_no_file_is_no_ledger(refused, answer, tmp_path):
    opened = "--name people --epsilon 1 --delta 1e-5"
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", "/dev/null"):
        assert "is a pipe or a device" in refused(f"ledger open {place} {opened}")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert "leads nowhere" in refused(f"ledger open {tmp_path / 'link'} {opened}")
    (tmp_path / "touched").touch(mode=0o644)
    answer(f"ledger open {tmp_path / 'touched'} {opened}")
    assert (tmp_path / "touched").stat().st_mode & 0o777 == 0o600


def test_half_a_letter_is_not_imported(refused, ledger, tmp_path):
    from graphveil.privacy.ledger import Ledger

    content = json.loads(Ledger(ledger).export())
    for progress in ({"\ud800": {"x": 1}}, {"x": {"\udfff": 1}}):
        (tmp_path / "half.json").write_text(json.dumps({**content, "progress": progress}))
        said = refused(f"ledger import {tmp_path / 'new.ledger'} {tmp_path / 'half.json'}")
        assert "An import must be" in said


@pytest.mark.parametrize("found", [[5], {}])
def test_a_reservation_that_is_no_word_is_refused(refused, ledger, charged, found):
    place = charged / "events.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "reservation": found}))
    assert "'reservation' cannot be" in refused(f"ledger verify {ledger} --runs {charged}")


def test_an_interrupt_before_anything_is_released_leaves_nothing(
    run, ledger, graph, tmp_path, monkeypatch
):
    from graphveil.runs import Source

    monkeypatch.setattr(Source, "load", lambda self: signal.raise_signal(signal.SIGINT))
    code, _, err = run(f"{TRAIN} --data {graph} --out {tmp_path / 'run'} --ledger {ledger}")
    assert (code, err.strip()) == (
        130,
        "graphveil: interrupted. Nothing was released or charged.",
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(os.name != "posix", reason="needs locks")
def test_who_loses_a_race_for_a_directory_is_told_who_is_there(refused, graph, tmp_path):
    from graphveil.runs.files import locked

    line = f"{TRAIN} --data {graph} --out {tmp_path / 'run'}"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "settings.json").write_text("{}")  # what the winner has written so far
    with locked(tmp_path / "run"):
        for how in ("", " --resume", " --force"):
            said = refused(line + how)
            assert "another process, which trains" in said
            assert "--force" not in said
