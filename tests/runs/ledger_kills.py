"""Kill charged runs at random moments, and look at what is left; a program of its own.

    python ledger_kills.py FOLDER KILLS SEED [URL]

Children are forked from one process that has loaded everything. Each trains, goes on or starts anew
and is killed after a random time, or inside a statement of the ledger. After each kill: the chain
holds, no entry is lost, and the ledger charges at least the steps that were begun. Prints counts.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import torch

import prices
from graphveil._errors import GraphveilError
from graphveil.data.synthetic import social_network
from graphveil.methods import DPMLP, budget
from graphveil.privacy import ledger_file
from graphveil.privacy.composing import together
from graphveil.privacy.ledger import Ledger
from graphveil.privacy.ledger_entries import is_url
from graphveil.runs import Run, Source

STEPS = 8
BUDGET = 25.0
DATA = social_network(num_nodes=60, num_classes=3, num_features=5, seed=1)


class Given(Source):
    """A source whose data is here already."""

    def load(self):
        return DATA.clone()


def train(directory, ledger, account, how):
    method = DPMLP(epsilon=4.0, steps=STEPS, sample_rate=1.0, centred=False)
    source = Given(data="memory")
    Run(directory).train(method, source, ledger=ledger, account=account, **how)


def die_between_messages(after):
    """Be killed at so many messages to a server from now, before or after its answer."""
    import psycopg

    left, wait = [after], psycopg.Connection.wait

    def watched(connection, *given, **how):
        left[0] -= 1
        if left[0] == 0 and after % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = wait(connection, *given, **how)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    psycopg.Connection.wait = watched


def die_inside_a_statement(after):
    """Have SQLite itself call for the kill, so many of its instructions from now."""
    left, connect = [after], ledger_file._connect

    def count():
        left[0] -= 1
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def watched(place):
        connection = connect(place)
        connection.set_progress_handler(count, 1)
        return connection

    ledger_file._connect = watched


def forked(directory, ledger, account, how, after):
    """Train in a child, which dies at a random moment unless it is done first; its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if after is not None and after[0] == "statement":
                die = die_between_messages if is_url(ledger) else die_inside_a_statement
                die(after[1])
            train(directory, ledger, account, how)
            code = 0
        except GraphveilError as error:
            code = error.exit_code
            if code != 3:
                print(error, file=sys.stderr)
        finally:
            os._exit(code)
    if after is not None and after[0] == "time":
        time.sleep(after[1])
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def steps_noted(directory):
    journal = directory / "checkpoint" / "weights" / "steps"
    return journal.stat().st_size if journal.exists() else 0


def steps_charged(reservation):
    return sum(charge.event.count for charge in reservation.charges)


def main(folder, kills, seed, place=None):
    torch.set_num_threads(1)
    random.seed(seed)
    budget.calibrate = prices.calibrate  # plans are made at every start, here the same
    ledger, counts = Ledger(place or folder / "study.ledger"), Counter()
    ledger.open("first", BUDGET, 1e-3)
    began = time.monotonic()
    assert forked(folder / "warm", ledger.place, "first", {}, None) == 0
    whole, entries = time.monotonic() - began, ledger.read().entries
    accounts, number, begun_by = ["first"], 0, {}
    while counts["kills"] < kills:
        directory, account = folder / f"run{number}", accounts[-1]
        how = {}
        if Run(directory).state != "new":
            how = {"force" if random.random() < 0.1 else "resume": True}
            counts["gone on" if "resume" in how else "started anew"] += 1
        after = ("time", random.uniform(0.1, 1.0) * whole)
        if random.random() < 0.4:  # a run reads the ledger a dozen times
            statements = 90 if place else 50 * (len(entries) + 12)
            after = ("statement", random.randint(1, statements))
        code = forked(directory, ledger.place, account, how, after)
        if code == -signal.SIGKILL:
            counts["kills"] += 1
            counts[f"kills: {after[0]}"] += 1
        elif code == 3:  # the account is spent: another one
            counts["refused"] += 1
            if counts["refused"] == 1:  # rightly: another one would be more than is left
                spent = ledger.read().account(account)
                assert spent.left() < 1.05 * together(spent.events()[:1], spent.delta).epsilon
            accounts.append(f"account {len(accounts)}")
            ledger.open(accounts[-1], BUDGET, 1e-3, unit=None)
            shutil.rmtree(directory, ignore_errors=True)
            DATA.x[0, 0] += 1  # other data, or the account before it would be named
            number += 1
            entries = ledger.read().entries
            continue
        else:
            assert code == 0, code
        entries = check(ledger, directory, entries, begun_by, counts)
        if Run(directory).state == "finished":
            counts["finished"] += 1
            settled = ledger.read().reservation(Run(directory).charged_to()["reservation"])
            assert settled.settled == tuple(Run(directory).read().charges_)
            number += 1
    state = ledger.verify()
    for account in state.accounts.values():
        assert account.spent() <= account.epsilon
    counts["entries"], counts["accounts"] = len(state.entries), len(state.accounts)
    print(json.dumps(counts))


def check(ledger, directory, before, begun_by, counts):
    """What must hold whenever anything was killed."""
    state = ledger.read()  # the chain holds, and every entry fits those before it
    assert state.entries[: len(before)] == before  # none was lost
    noted = Run(directory).charged_to() if directory.exists() else None
    if noted is not None:
        id, steps = noted["reservation"], steps_noted(directory)
        if steps:
            begun_by[id] = max(steps, begun_by.get(id, 0))
            counts["killed in training"] += 1
        elif state.reservation(id) is None:
            counts["killed before the reservation"] += 1
    for id, steps in begun_by.items():  # also those that were forced away
        assert steps_charged(state.reservation(id)) >= steps, (id, steps)
    for account in state.accounts.values():
        for each in account.charged:
            assert steps_charged(each) <= STEPS, "a run cannot take more than it planned"
    return state.entries


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
