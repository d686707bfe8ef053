"""Kill a rank of real runs, charged to a ledger, at random moments; count what was counted.

    python benchmarks/kill_ranks.py --kills 30 --ranks 2

Every trial starts ``torchrun -m graphveil train``, with ``--resume`` where a run is unfinished, and
kills one rank (each in turn) by SIGKILL: half of the trials at any moment from its start on, half
once steps are being taken. Afterwards these must hold:

* every process that was started is gone within the bound, by itself;
* the ledger counts every step that the journal has, and the reservation is not given back if any;
* the journal and the ledger never count fewer steps than before;
* at most one line is said.

At the end the run is finished by another number of ranks, and its certificate counts every step.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path

from graphveil.privacy.ledger import Ledger
from graphveil.runs import Run

MARK = "KILL_RANKS"
BOUND = 60.0  # seconds until nothing may be left


def marked(word: str) -> dict[int, dict[str, str]]:
    """Processes that a trial started, with their environment."""
    of = {}
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
            state = (path.parent / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        variables = dict(one.partition("=")[::2] for one in words)
        if variables.get(MARK) == word and state != "Z":
            of[int(path.parent.name)] = variables
    return of


def worker(word: str, rank: int) -> int | None:
    """The process of a rank, once there is one."""
    for pid, variables in marked(word).items():
        if variables.get("RANK") == str(rank):
            return pid
    return None


def port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def start(folder: Path, run: Path, arguments: argparse.Namespace, word: str, ranks: int):
    command = [
        sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}",
        "--master_addr=127.0.0.1", f"--master_port={port()}", "-m", "graphveil", "train", "dp-mlp",
        "--data", "social", "--epsilon", "1", "--delta", "1e-6", "--out", str(run),
        "--set", f"steps={arguments.steps}", "--set", "sample_rate=0.2",
        "--ledger", str(folder / "ledger"), "--account", "people",
    ]  # fmt: skip
    if Run(run).state == "unfinished":
        command.append("--resume")
    return subprocess.Popen(
        command,
        env=os.environ | {MARK: word, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def counted(folder: Path, run: Path) -> tuple[int, int]:
    """Steps in the journal, and steps that the ledger knows of."""
    note = Run(run).charged_to()
    if note is None:
        return 0, 0
    journal = Run(run).checkpoint.steps_begun()
    progress = Ledger(folder / "ledger").read().progress.get(note["reservation"], {})
    return journal, sum(progress.values())


def wait_for(what, seconds: float, process: subprocess.Popen):
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        if (value := what()) is not None:
            return value
        time.sleep(0.02)
    return None


def trial(number: int, folder: Path, run: Path, arguments: argparse.Namespace) -> str:
    """What one kill left, in a word; raises where something was not counted."""
    word, rank = uuid.uuid4().hex, number % arguments.ranks
    before = counted(folder, run)
    process = start(folder, run, arguments, word, arguments.ranks)
    try:
        pid = wait_for(lambda: worker(word, rank), 120, process)
        if number // arguments.ranks % 2:  # once steps are taken
            wait_for(lambda: True if counted(folder, run)[0] > before[0] else None, 300, process)
            time.sleep(random.uniform(0, 2))
        else:
            time.sleep(random.uniform(0, arguments.start_up))
        if pid is None or process.poll() is not None:
            return "ended before the kill"
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        _, said = process.communicate(timeout=BOUND)
        while marked(word):
            assert time.monotonic() - killed < BOUND, f"left: {marked(word).keys()}"
            time.sleep(0.05)
        seconds = time.monotonic() - killed
    finally:
        for pid in marked(word):  # what is left is this trial's own
            os.kill(pid, signal.SIGKILL)
    lines = [line for line in said.splitlines() if line.startswith("graphveil:")]
    journal, known = counted(folder, run)
    assert journal <= known or journal == 0, f"the ledger counts {known} of {journal} steps"
    assert journal >= before[0], f"the journal fell from {before[0]} to {journal}"
    assert known >= before[1], f"the ledger fell from {before[1]} to {known}"
    assert len(lines) <= 1, lines
    if journal:
        note = Run(run).charged_to()
        reserved = Ledger(folder / "ledger").read().reservation(note["reservation"])
        assert reserved.begun, "the ledger does not know that it began"
        assert reserved.settled is None, "what had begun was given back"
    print(
        f"kill {number + 1}: rank {rank}, {journal} steps in the journal, {known} in the ledger, "
        f"all gone after {seconds:.1f} s; {lines[0][:110] if lines else 'nothing said'}",
        flush=True,
    )
    return f"{len(lines)} line(s)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--start-up", type=float, default=15.0, help="seconds until steps begin")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder, run, left = Path(place), Path(place) / "run", Counter()
        opened = [
            sys.executable, "-m", "graphveil", "ledger", "open", str(folder / "ledger"), "--name",
            "people", "--epsilon", "1000", "--delta", "1e-6",
        ]  # fmt: skip
        subprocess.run(opened, check=True, stdout=subprocess.DEVNULL)
        kills = number = 0
        while kills < arguments.kills:
            if Run(run).state == "finished":
                run = run.with_name(f"run{number}")
            outcome = trial(number, folder, run, arguments)
            left[outcome] += 1
            kills += outcome != "ended before the kill"
            number += 1
        journal, known = counted(folder, run)
        last = start(folder, run, arguments, uuid.uuid4().hex, arguments.ranks + 1)
        _, said = last.communicate(timeout=1200)
        assert last.returncode == 0, said
        steps = sum(charge.event.count for charge in Run(run).read().charges_
                    if hasattr(charge.event, "count"))  # fmt: skip
        assert steps >= max(journal, known), (steps, journal, known)
        ledger = Ledger(folder / "ledger").read()
        assert ledger.reservation(Run(run).charged_to()["reservation"]).settled
        print(
            f"{kills} kills: {dict(left)}; finished by {arguments.ranks + 1} ranks, {steps} steps"
        )


if __name__ == "__main__":
    main()
