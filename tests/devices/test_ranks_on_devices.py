"""Ranks that each have a device: sums go over nccl, which takes what is there alone."""

from pathlib import Path

import pytest
import ranks_away
import torch

cases = ranks_away.cases

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not torch.distributed.is_available(), reason="this build of torch has no torch.distributed"
    ),
]


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_ranks_on_devices_train_as_one_process_does(device, tmp_path):
    script = Path(ranks_away.__file__)
    both = cases.start([script, tmp_path, device])
    told = [process.communicate(timeout=300)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in (0, 1))
    own = device == "cuda"  # each has its own; else both have one, which nccl would refuse
    assert [first["where"], second["where"]] == (["cuda:0", "cuda:1"] if own else ["cuda:0"] * 2)
    assert bool(first["reduced"]) == bool(second["reduced"]) == own
    assert {kind for kinds in first["reduced"] for kind in kinds} <= {torch.float64}
    for name in ranks_away.CASES:
        alone = ranks_away.fit(name, "cpu")
        one, other = first["answers"][name], second["answers"][name]
        assert one["certificate"] == other["certificate"]
        for key, weight in alone["weights"].items():
            assert torch.equal(one["weights"][key], other["weights"][key])
            torch.testing.assert_close(one["weights"][key], weight, rtol=0, atol=1e-6)
