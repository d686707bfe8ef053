"""Charged runs on data in memory, and a crash."""

from graphveil import runs
from graphveil.data.synthetic import social_network
from graphveil.methods import DPMLP

DATA = social_network(num_nodes=60, num_classes=3, num_features=5, seed=1)
DELTA = 1e-4


class Given(runs.Source):
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
    return kind(epsilon=epsilon, **{"steps": 3, "sample_rate": 1.0, "delta": DELTA, **settings})


def train(directory, source, ledger, made=None, **how):
    made = made or method()
    runs.train(made, None, directory, source, ledger=ledger.path, **how)
    return made


def people(ledger):
    return ledger.read().account("people")
