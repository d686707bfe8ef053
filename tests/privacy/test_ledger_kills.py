"""Killed before, inside and after every single write of SQLite's: an entry is there or is not."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler"
)

# Between SQLite and the disk: the process is killed at its n-th call, before it or halfway through.
_BETWEEN = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>
static int left = 0, torn = 0;
void kill_at(int number, int halfway) { left = number; torn = halfway; }
static int now(void) { return left > 0 && --left == 0; }
static void die(void) { kill(getpid(), SIGKILL); for (;;) pause(); }
#define REAL(name) static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name)
ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t at) {
    REAL(pwrite64);
    if (now()) { if (torn) real(fd, bytes, size / 2, at); die(); }
    return real(fd, bytes, size, at);
}
int fsync(int fd) { REAL(fsync); if (now()) die(); return real(fd); }
int fdatasync(int fd) { REAL(fdatasync); if (now()) die(); return real(fd); }
int unlink(const char *path) { REAL(unlink); if (now()) die(); return real(path); }
int ftruncate64(int fd, off64_t to) { REAL(ftruncate64); if (now()) die(); return real(fd, to); }
"""


@pytest.fixture
def folder():
    """In memory, where there is such a place: thousands of writes would each wait for a disk."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


def run(folder, action):
    """Run this file as a program, with the library between; what it prints as JSON."""
    library = folder / "between.so"
    (folder / "between.c").write_text(_BETWEEN)
    compiler = ["cc", "-shared", "-fPIC", "-o", str(library), str(folder / "between.c"), "-ldl"]
    subprocess.run(compiler, check=True)
    done = subprocess.run(
        [sys.executable, __file__, str(library), str(folder), action],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("action", ["reserve", "large", "note", "open"])
def test_a_kill_at_any_write_loses_no_entry_and_leaves_none_halfway(folder, action):
    counts = run(folder, action)
    assert counts["kills"] >= 16
    assert action == "open" or counts["rolled back"] >= 3
    assert counts["finished"] == 2  # once for kills before a call, once for those inside


def test_a_journal_that_was_damaged_after_a_kill_loses_no_entry(folder):
    counts = run(folder, "damage")
    assert counts["refused"] > 100
    assert counts["held"] > 100  # most kills come before the file is touched


# --- the program ----------------------------------------------------------------------------------


def main(library, folder, action):
    import ctypes
    import signal
    from collections import Counter

    import dp_accounting as dpa

    from graphveil._errors import InvalidInputError
    from graphveil.privacy.events import repeated
    from graphveil.privacy.guarantee import Charge
    from graphveil.privacy.ledger import Ledger
    from graphveil.privacy.ledger_state import Promise

    kill_at, path, counts = ctypes.CDLL(library).kill_at, folder / "study.ledger", Counter()
    charges = [Charge(paid_for="a test", event=repeated(dpa.GaussianDpEvent(90.0), 30))]

    def reserve(ledger, id, padding=0):
        facts = {"padding": "x" * padding}
        ledger.reserve(id, "people", charges, Promise(unit="node"), purpose="a test", facts=facts)

    actions = {
        "reserve": lambda ledger: reserve(ledger, "new"),
        "large": lambda ledger: reserve(ledger, "new", padding=20_000),
        "note": lambda ledger: ledger.note("old 1", "turn", "checkpoint", 3),
        "open": lambda ledger: ledger.open("people", 3.0, 1e-5),
    }

    def killed(act, number, halfway):
        child = os.fork()
        if child == 0:
            kill_at(number, halfway)
            act(Ledger(path))
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL), code
        return code != 0

    base = Ledger(folder / "base.ledger")
    base.open("people", 3.0, 1e-5)
    for number in range(12):
        reserve(base, f"old {number}")
    base.begin("old 1", "turn")
    base.note("old 1", "turn", "checkpoint", 2)
    content, before = base.path.read_bytes(), base.verify()

    def fresh():
        for left in folder.glob("*study.ledger*"):
            left.unlink()
        if action != "open":
            path.write_bytes(content)

    def check(state):
        assert state.entries[: len(before.entries)] == before.entries
        assert len(state.entries) <= len(before.entries) + 1
        assert state.progress["old 1"]["checkpoint"] >= 2

    def kill_everywhere(act, look):
        for halfway in (0, 1):
            for number in range(1, 1000):
                fresh()
                if not killed(act, number, halfway):
                    counts["finished"] += 1
                    break
                counts["kills"] += 1
                look()

    def look():
        if action == "open":
            Ledger(path).open("people" if not path.exists() else "more", 3.0, 1e-5)
            assert sorted(p.name for p in folder.glob("*study.ledger")) == ["study.ledger"]
            return
        half_written = path.read_bytes() != content
        state = Ledger(path).verify()
        check(state)
        kept = len(state.entries)
        counts["rolled back"] += half_written and kept == len(before.entries)
        reserve(Ledger(path), "later")
        assert len(Ledger(path).verify().entries) == kept + 1

    def damage():
        """Have the next reader meet the journal with a bit flipped, or cut short."""
        journal = Path(f"{path}-journal")
        if not journal.exists():
            return
        file, kept = path.read_bytes(), journal.read_bytes()
        pages = range(512, len(kept) - 4, 4 + 4096 + 4)  # each with its number and a checksum
        bits = [(start + 8, bit) for start in pages for bit in range(8)]  # how many rows it has
        bits += [(place, place % 8) for place in range(0, len(kept), 997)]
        bits += [(place, place % 8) for place in range(min(24, len(kept)))]
        damaged = [kept[:size] for size in range(0, len(kept), 2039)]
        for place, bit in bits:
            flipped = bytes([kept[place] ^ 1 << bit])
            damaged.append(kept[:place] + flipped + kept[place + 1 :])
        for content in damaged:
            path.write_bytes(file)
            journal.write_bytes(content)
            try:
                check(Ledger(path).read())
                counts["held"] += 1
            except InvalidInputError:
                counts["refused"] += 1

    if action == "damage":
        kill_everywhere(actions["large"], damage)
        kill_everywhere(actions["reserve"], damage)
    else:
        kill_everywhere(actions[action], look)
    print(json.dumps(counts))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
