"""Many writers of one ledger, forked from one process; a program of its own.

    python ledger_writers.py PLACE FOLDER WRITERS EACH [reserve]

Each writer reserves, begins, notes and settles, or reserves only; after every call that returned it
says so in a file of its own, which a kill leaves. Whoever starts it may kill writers, whose ids are
on stdout.
"""

import os
import sys
from pathlib import Path

import dp_accounting as dpa

from graphveil._errors import BudgetError, InvalidInputError
from graphveil.privacy import ledger_server
from graphveil.privacy.events import repeated
from graphveil.privacy.guarantee import Charge
from graphveil.privacy.ledger import Ledger
from graphveil.privacy.ledger_state import Promise

STEPS, NOISE = 4, 27.0


def charges(count):
    return [Charge(paid_for="a race", event=repeated(dpa.GaussianDpEvent(NOISE), count))]


def write(ledger, writer, number, only_reserve, say):
    id = f"{writer}-{number}"
    try:
        ledger.reserve(id, "people", charges(STEPS), Promise(unit="node"), purpose="a race")
    except BudgetError:
        say("refused", id)
        return
    say("reserved", id)
    if only_reserve or number % 3 == 0:
        return  # it stays as it is
    ledger.begin(id, f"turn {id}")
    say("begun", id)
    for step in range(1, STEPS):
        ledger.note(id, f"turn {id}", "weights", step)
        say("noted", id)
    if number % 3 == 1:
        ledger.settle(id, charges(STEPS - 1), f"turn {id}")
        say("settled", id)


def main(place, folder, writers, each, only_reserve):
    ledger_server._PAUSE = 0.01
    children = []
    for writer in range(writers):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                log = os.open(folder / str(writer), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                for number in range(each):
                    write(
                        Ledger(place),
                        writer,
                        number,
                        only_reserve,
                        lambda what, id: os.write(log, f"{what} {id}\n".encode()),  # noqa: B023
                    )
                code = 0
            except InvalidInputError as error:
                print(error, file=sys.stderr, flush=True)
            finally:
                os._exit(code)
        children.append(child)
    print(*children, flush=True)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(*codes, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), len(sys.argv) > 5)
