"""Runs on data in memory, charged or not; a crash, and what a directory holds."""

import hashlib
import json
import shutil
import stat

from graphveil.data.synthetic import social_network
from graphveil.grads.step import PrivateStep
from graphveil.methods import DPMLP
from graphveil.runs import Run, Source

DATA = social_network(num_nodes=60, num_classes=3, num_features=5, seed=1)
DELTA = 1e-4
SOURCE = Source(data="memory", split="transductive")
STEPS = 12  # of a long run


class Given(Source):
    """A source whose data is here already, and which tells that it was read."""

    data_now = DATA
    read = 0

    def load(self):
        type(self).read += 1
        if isinstance(self.data_now, Exception):
            raise self.data_now
        return self.data_now.clone()


class Crash(BaseException):
    """Not an Exception: what a kill looks like from inside."""


def crash(*_, **__):
    raise Crash


def method(epsilon=4.0, kind=DPMLP, **settings):
    quick = {"steps": 3, "sample_rate": 1.0, "delta": DELTA}
    if kind is DPMLP:  # steps are all that it releases here
        quick["centred"] = False
    return kind(epsilon=epsilon, **(quick | settings))


def long():
    return method(2.0, steps=STEPS)


def die_at(number):
    """A step that dies, as by a kill, once so many were taken."""
    real, left = PrivateStep.__call__, iter(range(1, 1000))

    def step(self):
        real(self)
        if next(left) == number:
            raise Crash

    return step


def train(directory, source, ledger, made=None, **how):
    made = made or method()
    Run(directory).train(made, source, ledger=ledger.place, **how)
    return made


def people(ledger):
    return ledger.read().account("people")


def held(directory):
    """Everything in a directory: contents, modes and dates."""
    return {
        str(path.relative_to(directory)): (
            path.read_bytes() if path.is_file() else None,
            stat.S_IMODE(path.stat().st_mode),
            path.stat().st_mtime_ns,
        )
        for path in (directory, *directory.rglob("*"))
    }


def remove(directory, *names):
    for name in names:
        path = directory / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def name_plan(directory):
    """Have settings.json name the plan.json that is there, as somebody can who writes both."""
    place, plan = directory / "settings.json", (directory / "plan.json").read_bytes()
    named = {"plan_sha256": hashlib.sha256(plan).hexdigest()}
    place.write_text(json.dumps({**json.loads(place.read_text()), **named}))
