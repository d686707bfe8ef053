"""Two ranks on accelerators that are not there; their nccl is gloo, and looks at its tensors."""

import os
import sys
from pathlib import Path

import fake_device
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))

import ranks_cases as cases

from graphveil import devices, processes
from graphveil.methods import METHODS
from graphveil.rng import secret

CASES = ("dp-gnn", "late-graph", "gap", "graph-dpsgd")
reduced = []


class Nccl:
    """Takes tensors of an accelerator alone."""

    class Options:
        _timeout = None

    def __init__(self, store, rank, world, options):
        self.gloo = torch.distributed.ProcessGroupGloo(store, rank, world, options._timeout)

    def reduce(self, tensors, options):
        assert all(map(fake_device.is_away, tensors))
        reduced.append([tensor.dtype for tensor in tensors])
        return self.gloo.reduce(tensors, options)

    def abort(self):
        self.gloo.abort()


def fit(name, device):
    method = METHODS[name](epsilon=8.0, steps=4)
    method.fit(cases.data_for(name), rng=secret(fixed_seed=7), device=device)
    weights = {key: value.clone() for key, value in method.network_.state_dict().items()}
    return {"weights": weights, "certificate": method.certificate_.to_json()}


def main(out, device):
    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    with pytest.MonkeyPatch.context() as patch, fake_device.away(patch, count=2):
        patch.setattr(torch.distributed, "is_nccl_available", lambda: True)
        patch.setattr(torch.distributed, "ProcessGroupNCCL", Nccl, raising=False)
        with processes.join(60.0) as ranks, devices.use(device):
            where = devices.current()
            answers = {name: fit(name, device) for name in CASES}
    told = {"answers": answers, "where": where, "reduced": reduced}
    torch.save(told, Path(out) / f"{ranks.rank}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
