"""The command line: the documented call shapes, exit codes, one line for every mistake."""

import json
import math
import os
import re
import subprocess
import sys

import click
import pytest

from graphveil import METHODS, cli

ACCOUNT = (
    "account --rate 0.109961 --removed 1 --altered 7 --noise-multiplier 16 --steps 1000 "
    "--delta 1e-6"
)
CALIBRATE = "calibrate --epsilon 8 --rate 0.3 --removed 1 --altered 0 --steps 150 --delta 1e-5"
DAIGAVANE = (
    "claims daigavane --nodes 90941 --batch 10000 --max-degree 7 --noise-ratio 1.0 --steps 1000 "
    "--delta 1e-6"
)
IGAMBERDIEV = "claims igamberdiev --noise-multiplier 112 --steps 2000 --splits 1 --delta 1e-5"
DPAR = "claims dpar --epsilon 8 --graph-rate 0.09"
ROWS = "claims dpar-rows --mechanism gm --noise-multiplier 6.4 --rows 70 --delta 5e-4"


@pytest.fixture
def run(capsys):
    """Run a command in this process: exit code, stdout, stderr."""

    def call(line):
        with pytest.raises(SystemExit) as left:
            cli.main(line.split())
        captured = capsys.readouterr()
        return left.value.code, captured.out, captured.err

    return call


def answer(run, line):
    code, out, err = run(line + " --json")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    return json.loads(out)


def test_account_gives_both_bounds_and_the_smaller_one(run):
    result = answer(run, ACCOUNT)
    assert result["epsilon"] == pytest.approx(20.168, rel=5e-3)
    assert result["pld"] == result["epsilon"]
    assert result["rdp"] == pytest.approx(21.35, rel=5e-3)
    assert result["delta"] == 1e-6


def test_calibrate_finds_noise_that_fits_and_hardly_more(run):
    result = answer(run, CALIBRATE)
    assert 7.99 < result["epsilon"] <= 8
    noise = result["noise_multiplier"]
    again = answer(run, f"account --rate 0.3 --noise-multiplier {noise} --steps 150 --delta 1e-5")
    assert again["epsilon"] == pytest.approx(result["epsilon"], rel=1e-9)


@pytest.mark.parametrize(
    ("given", "sought"),
    [("--noise-multiplier 4 --rate 0.3", "steps"), ("--noise-multiplier 4 --steps 100", "rate")],
)
def test_calibrate_answers_for_steps_and_rate_too(run, given, sought):
    result = answer(run, f"calibrate --epsilon 2 --delta 1e-5 {given}")
    assert result[sought] > 0
    assert result["epsilon"] <= 2


@pytest.mark.parametrize(
    ("line", "claimed", "proven"),
    [(DAIGAVANE, 38.92, 20.168), (IGAMBERDIEV, 2.00, 3.381), (ROWS, 44.7, 7.1)],
)
def test_claims_stand_beside_what_is_proven(run, line, claimed, proven):
    result = answer(run, line)
    assert result["claimed_epsilon"] == pytest.approx(claimed, rel=5e-3)
    assert result["proven_epsilon"] == pytest.approx(proven, rel=2e-2)


def test_a_claim_that_nobody_proves_has_no_proven_epsilon(run):
    result = answer(run, DPAR)
    assert result["claimed_epsilon"] == 8
    assert result["proven_epsilon"] is None
    assert result["claim_with_sampling_corrected"] == pytest.approx(86.48, rel=1e-3)
    _, out, _ = run(DPAR)
    lines = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in out.splitlines() if "  " in line)
    assert lines["proven epsilon"].strip() == "none"
    assert lines["claim with sampling corrected"].strip() == "86.48"


def test_claims_say_what_papers_and_released_code_did_otherwise(run):
    assert answer(run, DAIGAVANE)["as_run"] is None
    assert "clipping has no effect" in answer(run, IGAMBERDIEV)["as_run"]
    _, out, _ = run(IGAMBERDIEV)
    assert "as run" in out


@pytest.mark.parametrize("line", [ACCOUNT, CALIBRATE, DAIGAVANE, IGAMBERDIEV, DPAR, ROWS])
def test_without_json_a_person_can_read_it(run, line):
    code, out, err = run(line)
    assert (code, err) == (0, "")
    assert "epsilon" in out
    assert "{" not in out


def test_an_event_from_a_file_costs_what_the_options_say(run, tmp_path):
    direct = answer(run, ACCOUNT)
    path = tmp_path / "event.json"
    path.write_text(json.dumps(direct["event"]))
    assert answer(run, f"account --event {path} --delta 1e-6")["epsilon"] == direct["epsilon"]


def test_an_event_and_a_step_together_are_refused(run, tmp_path):
    path = tmp_path / "event.json"
    path.write_text('{"type": "NoOpDpEvent"}')
    code, _, err = run(f"account --event {path} --rate 0.5 --delta 1e-5")
    assert code == 2
    assert "--event" in err


@pytest.mark.parametrize("line", ["", "claims"])
def test_without_a_command_the_help_is_shown(run, line):
    code, out, err = run(line)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: graphveil")
    assert err.count("\n") > 5


def test_fixed_size_batches_get_the_revealed_count_bound(run):
    fixed = answer(
        run,
        "account --population 90941 --batch 10000 --removed 1 --altered 7 --noise-multiplier 16 "
        "--steps 100 --delta 1e-6",
    )
    assert fixed["epsilon"] == pytest.approx(8.32, rel=5e-3)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("account --rate 1.5 --noise-multiplier 1 --delta 1e-5", ["'rate'", "1.5", "[0, 1]"]),
        ("account --rate 0.5 --noise-multiplier 1 --delta 0", ["'delta'", "0.0", "(0, 1)"]),
        ("account --rate 0.5 --noise-multiplier 1 --delta 1", ["'delta'", "1.0", "(0, 1)"]),
        ("account --rate 0.5 --noise-multiplier 1 --delta 1e-5 --steps -3", ["'steps'", "-3"]),
        ("account --rate 0.5 --noise-multiplier 1 --delta 1e-5 --steps 2.5", ["--steps", "2.5"]),
        ("account --rate abc --noise-multiplier 1 --delta 1e-5", ["--rate", "abc"]),
        ("account --rate nan --noise-multiplier 1 --delta 1e-5", ["'rate'", "nan"]),
        ("account --rate 0.5 --noise-multiplier -1 --delta 1e-5", ["'noise_multiplier'", "-1.0"]),
        ("account --rate 0.5 --noise-multiplier 0 --delta 1e-5", ["'noise_multiplier'", "0.0"]),
        ("account --rate 0.5 --altered -1 --noise-multiplier 1 --delta 1e-5", ["'altered'", "-1"]),
        ("account --noise-multiplier 1 --delta 1e-5", ["--rate", "--population"]),
        ("account --rate 0.5 --delta 1e-5", ["--noise-multiplier"]),
        ("account --rate 0.5 --noise-multiplier 1", ["--delta"]),
        ("account --event no-such-file --delta 1e-5", ["no-such-file"]),
        ("calibrate --epsilon -1 --rate 0.3 --steps 9 --delta 1e-5", ["'epsilon'", "-1.0"]),
        ("calibrate --epsilon 8 --rate 0.3 --delta 1e-5", ["exactly two"]),
        ("claims dpar --epsilon 8 --graph-rate 0", ["rate", "0.0"]),
        ("claims nobody", ["nobody"]),
        ("no-such-command", ["no-such-command"]),
    ],
)
def test_a_mistake_is_one_line_that_names_value_and_rule(run, line, words):
    code, out, err = run(line)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert all(word in err for word in words), err


def test_a_budget_that_cannot_be_met_is_refused(run):
    code, out, err = run("calibrate --epsilon 1e-9 --noise-multiplier 1 --rate 1 --delta 1e-5")
    assert (code, out) == (3, "")
    assert "Even 1 spends" in err


def test_an_event_nobody_can_price_is_refused_by_name(run, tmp_path):
    path = tmp_path / "event.json"
    path.write_text('{"type": "UnsupportedDpEvent"}')
    code, _, err = run(f"account --event {path} --delta 1e-5")
    assert code == 3
    assert "UnsupportedDpEvent" in err


@pytest.mark.parametrize("content", ["", "{", '{"type": "Nonsense"}', "[1]", "\x00"])
def test_a_broken_event_file_is_one_clear_line(run, tmp_path, content):
    path = tmp_path / "event.json"
    path.write_text(content)
    code, out, err = run(f"account --event {path} --delta 1e-5")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1


def test_no_finite_epsilon_is_said_in_words_json_can_hold(run, tmp_path):
    path = tmp_path / "event.json"
    path.write_text('{"type": "NonPrivateDpEvent"}')
    assert answer(run, f"account --event {path} --delta 1e-5")["epsilon"] == "inf"


def test_an_unexpected_error_is_one_line_and_exit_1(run, monkeypatch):
    monkeypatch.setattr("graphveil.privacy.accounting.price", lambda *_: math.sqrt("x"))
    monkeypatch.delenv("GRAPHVEIL_DEBUG", raising=False)
    code, out, err = run(ACCOUNT)
    assert (code, out) == (1, "")
    assert err.startswith("graphveil: unexpected TypeError")


@pytest.mark.parametrize(
    "command", ["--help", "account --help", "calibrate --help", "claims --help"]
)
def test_help_teaches_and_loads_nothing_heavy(command):
    code = (
        "import sys\nfrom graphveil.cli import main\n"
        f"try:\n    main({command.split()!r})\n"
        "finally:\n    print(sorted({'torch', 'dp_accounting', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("[]")
    assert "Usage: graphveil" in done.stdout


def every_command(command, context):
    """A command and all below it, with their paths."""
    yield context.command_path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            yield from every_command(below, click.Context(below, context, name))


def test_no_two_parameters_of_a_command_share_a_name():
    """An option would overwrite an argument of its name, and nobody would notice."""
    paths = dict(every_command(cli.cli, click.Context(cli.cli, None, "graphveil")))
    assert len(paths) > 40
    for path, command in paths.items():
        names = [parameter.name for parameter in command.params]
        assert len(names) == len(set(names)), path


def test_account_does_not_load_torch():
    code = (
        "import sys\nfrom graphveil.cli import main\n"
        f"try:\n    main({ACCOUNT.split()!r})\n"
        "finally:\n    print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("False")


def test_interruption_is_exit_130():
    code = (
        "import os, signal\nimport graphveil.privacy.accounting as accounting\n"
        "accounting.price = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
        f"from graphveil.cli import main\nmain({ACCOUNT.split()!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stderr.strip() == "graphveil: interrupted"


@pytest.mark.skipif(os.name != "posix", reason="needs a pipe that can be closed")
def test_a_closed_pipe_is_not_an_error():
    command = f"{sys.executable} -m graphveil {ACCOUNT} --json | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_public_names_all_exist():
    import graphveil

    assert set(graphveil.__all__) - {"__version__"} == set(
        " ".join(graphveil._NAMES_OF.values()).split()
    )
    for name in graphveil.__all__:
        assert getattr(graphveil, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        graphveil.no_such_name  # noqa: B018


def test_a_shell_completes_commands_methods_and_data(capsys, monkeypatch):
    def complete(line):
        monkeypatch.setenv("_GRAPHVEIL_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        with pytest.raises(SystemExit):
            cli.main([])
        return [answer.partition(",")[2] for answer in capsys.readouterr().out.splitlines()]

    assert complete("graphveil calib") == ["calibrate"]
    assert complete("graphveil train late") == ["late-graph"]
    assert complete("graphveil sweep dp-") == [name for name in METHODS if name.startswith("dp-")]
    assert complete("graphveil train gap --data soc") == ["social", "soc"]
