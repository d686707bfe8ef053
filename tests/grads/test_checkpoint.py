"""Runs survive crashes: nothing is repeated, nothing released goes uncharged."""

import signal
import subprocess
import sys
import time

import dp_accounting as dpa
import pytest
import torch
from step_cases import CLASSES, FEATURES, network, parameters, private, silent
from torch import nn

from graphveil._errors import BudgetError, InvalidInputError, RefusedError
from graphveil.grads import make_private
from graphveil.privacy import accounting
from graphveil.privacy.events import repeated
from graphveil.rng import secret


def adam(module):
    return torch.optim.Adam(module.parameters(), lr=0.05)


def test_a_resumed_run_goes_on_where_it_was_and_counts_every_step(tmp_path):
    module = network()
    step = private(module, adam(module), directory=tmp_path)
    for _ in range(4):
        step()
    step.save(tmp_path)
    saved = parameters(step)
    for _ in range(3):
        step()  # lost in the crash that follows, but released

    other = network(seed=9)
    again = private(other, adam(other))
    again.resume(tmp_path)
    torch.testing.assert_close(parameters(again), saved)
    assert again.optimizer.state_dict()["state"][0]["step"] == 4
    assert again.taken == 7
    again()
    assert again.event == repeated(step.one_step, 8)

    third = private(network(seed=3))
    third.optimizer = adam(third.module)
    third.resume(tmp_path)
    assert third.taken == 8


def test_other_settings_after_a_resume_are_charged_as_what_they_are(tmp_path):
    step = private(directory=tmp_path)
    step()
    step()
    again = private(noise_multiplier=4.0)
    again.resume(tmp_path)
    again()
    wanted = dpa.ComposedDpEvent([repeated(step.one_step, 2), again.one_step])
    assert again.event == wanted
    third = private(noise_multiplier=4.0)
    third.resume(tmp_path)  # without a new checkpoint in between
    assert accounting.epsilon_of(third.event, 1e-4) >= accounting.epsilon_of(wanted, 1e-4) - 1e-9


def test_a_target_holds_across_a_resume_with_other_settings(tmp_path):
    first = private(
        noise_multiplier=None, target_epsilon=2.0, target_delta=1e-3, steps=6, directory=tmp_path
    )
    for _ in range(3):
        first()
    again = private(
        noise_multiplier=None, target_epsilon=2.0, target_delta=1e-3, steps=6, sample_rate=0.4
    )
    again.resume(tmp_path)
    assert 0 < again.max_steps < 6
    for _ in range(again.max_steps):
        again()
    assert again.certificate(unit="node", delta=1e-3).guarantee.epsilon <= 2.0
    with pytest.raises(BudgetError):
        again()


def test_a_target_holds_across_a_second_resume(tmp_path):
    target = {"noise_multiplier": None, "target_epsilon": 2.0, "target_delta": 1e-3, "steps": 6}
    first = private(**target, directory=tmp_path)
    for _ in range(3):
        first()
    planned = []
    for _ in range(2):  # the second time, with the settings of the first
        again = private(**target, sample_rate=0.4)
        again.resume(tmp_path)
        planned.append(again.max_steps)
    assert planned[0] == planned[1] < 6


@pytest.mark.parametrize("left", [b"", b"...."])
def test_a_journal_cut_short_is_refused(tmp_path, left):
    """Steps after the last checkpoint stand nowhere else: fewer of them would be charged."""
    step = private(directory=tmp_path)
    for _ in range(5):
        step()
    step.save(tmp_path)
    (tmp_path / "steps").write_bytes(left)
    with pytest.raises(InvalidInputError, match=f"journal has {len(left)} steps, and 5 were taken"):
        private().resume(tmp_path)


def test_noise_and_batches_are_not_repeated_after_a_resume(tmp_path):
    step = private(losses=silent, directory=tmp_path)
    moves = []
    for _ in range(3):
        again = private(losses=silent)
        again.resume(tmp_path)
        before = parameters(again)
        again()
        moves.append(parameters(again) - before)
    step()
    assert not torch.equal(moves[0], moves[1])
    assert not torch.equal(moves[1], moves[2])


def test_a_fixed_stream_cannot_be_resumed(tmp_path):
    private(directory=tmp_path)
    with pytest.raises(RefusedError, match="noise would repeat"):
        private(rng=secret(fixed_seed=0)).resume(tmp_path)


def test_another_run_s_directory_is_not_written_over(tmp_path):
    step = private(directory=tmp_path)
    step()
    with pytest.raises(RefusedError, match="another run"):
        private(directory=tmp_path)
    again = private()
    again.resume(tmp_path)
    assert again.taken == 1


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "other module"])
def test_a_bad_checkpoint_is_one_clear_line(tmp_path, damage):
    step = private(directory=tmp_path)
    path = tmp_path / "checkpoint.pt"
    if damage == "missing":
        path.unlink()
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:200])
    else:
        step = private(nn.Linear(FEATURES, CLASSES))
    with pytest.raises(InvalidInputError, match="checkpoint") as caught:
        step.resume(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "entry, value",
    [("taken", -5), ("taken", "x"), ("module", None), ("optimizer", []), ("torch_rng", None),
     ("one_step", {}), ("max_grad_norm", "x")],
)  # fmt: skip
def test_an_edited_checkpoint_is_one_clear_line(tmp_path, entry, value):
    private(directory=tmp_path)
    state = torch.load(tmp_path / "checkpoint.pt")
    torch.save(state | {entry: value}, tmp_path / "checkpoint.pt")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        private().resume(tmp_path)


def test_a_failed_resume_changes_nothing(tmp_path):
    private(directory=tmp_path)
    wider = nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES + 1))
    step = private(wider)
    before = parameters(step)
    with pytest.raises(InvalidInputError, match="cannot be read"):
        step.resume(tmp_path)
    assert torch.equal(parameters(step), before)
    assert step.taken == 0


def test_another_kind_of_optimiser_cannot_resume(tmp_path):
    module = network()
    private(module, adam(module), directory=tmp_path)
    with pytest.raises(InvalidInputError, match="another kind of optimizer"):
        private().resume(tmp_path)


def test_a_directory_is_the_same_by_any_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    step = private(directory="run")
    step()
    step.save(tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    step()
    assert (tmp_path / "run" / "steps").stat().st_size == 2


def test_a_file_is_not_a_directory(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(InvalidInputError, match="is a file"):
        private(directory=tmp_path / "run")


def test_a_killed_run_is_charged_for_every_step_it_began(tmp_path):
    script = f"""
import sys, torch
from torch import nn
from graphveil.grads import make_private
module = nn.Linear(3, 2)
x, y = torch.randn(50, 3), torch.randint(0, 2, (50,))
step = make_private(module, torch.optim.SGD(module.parameters(), lr=0.1), (x, y), sample_rate=0.3,
                    noise_multiplier=1.0, directory={str(tmp_path)!r})
for i in range(100000):
    step()
    print(i + 1, flush=True)
    if i % 7 == 0:
        step.save({str(tmp_path)!r})
"""
    run = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    seen = 0
    deadline = time.monotonic() + 60
    while seen < 40 and time.monotonic() < deadline:
        seen = int(run.stdout.readline() or 0)
    run.send_signal(signal.SIGKILL)
    rest = run.communicate()[0].split()
    seen = max([seen, *map(int, rest)])
    assert seen >= 40
    module = nn.Linear(3, 2)
    x, y = torch.randn(50, 3), torch.randint(0, 2, (50,))
    again = make_private(
        module, torch.optim.SGD(module.parameters(), lr=0.1), (x, y),
        sample_rate=0.3, noise_multiplier=1.0,
    )  # fmt: skip
    again.resume(tmp_path)
    assert seen <= again.taken <= seen + 1
