"""Work for other processes, which must be importable there."""

import hashlib
import os
import time
import warnings
from pathlib import Path

from graphveil import _jobs
from graphveil._errors import BudgetError
from graphveil.rng import secret

LOCAL = {"changed": False}


class Counter:
    """Counts what it has done in this process."""

    def __init__(self):
        self.done = 0

    def __call__(self, item):
        self.done += 1
        return os.getpid(), self.done, item


def draw(item):
    return secret().bytes(16), LOCAL["changed"], os.getpid()


def fail_at(item):
    """Fail, warn, or be killed, by the item."""
    if item == "killed":
        time.sleep(1)  # so that others have ended
        os.kill(os.getpid(), 9)
    if item == "refused":
        raise BudgetError("The budget must last.")
    if item == "broken":
        raise UnportableError("no", "way")
    if item == "noticed":
        warnings.warn("look here", UserWarning, stacklevel=1)
    return item


class UnportableError(Exception):
    """An exception that another process cannot read."""

    def __init__(self, one, two):
        super().__init__(one)


def sleep_noted(folder):
    """Write down who sleeps, and sleep."""
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(120)


def fit_fixed(seed):
    """The weights of a private method under a fixed secret stream, to the last bit."""
    import torch

    from graphveil.data.synthetic import social_network
    from graphveil.graph.splits import split
    from graphveil.methods import METHODS

    data = split(social_network(num_nodes=60, num_classes=3, num_features=5, seed=1), seed=0)
    method = METHODS["dp-mlp"](epsilon=8.0, steps=3, seed=seed)
    method.fit(data, rng=secret(fixed_seed=5))
    answers = method.predict_proba(data).numpy().tobytes()
    return hashlib.sha256(answers).hexdigest(), torch.get_num_threads()


def main(folder):
    """Two processes that sleep until they are ended."""
    for _ in _jobs.do_all(sleep_noted, [folder, folder], jobs=2, name=str):
        pass
