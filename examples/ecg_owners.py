"""Several recordings of one patient are one unit: whole graphs with owners."""

# %% [markdown]
# # Recordings of patients
#
# 900 (synthetic) patients have one to four recordings each, and a recording is a graph of twelve
# leads. A certificate for one recording would say little to who has four: the unit is the patient.

# %%
import numpy as np
import torch
from torch_geometric.data import Data

from graphveil import GraphDPSGD, set_owners, split
from graphveil.graph.collate import collate

LEADS = 12
dice = np.random.default_rng(0)
ring = torch.tensor([[i, (i + 1) % LEADS] for i in range(LEADS)]).T
ends = torch.cat([ring, ring.flip(0)], dim=1)


def recording(ill: bool) -> Data:
    """Twelve leads with eight numbers each; one of ill patients is flatter on some leads."""
    x = dice.normal(size=(LEADS, 8)).astype("float32")
    x[:, 0] += 1.0
    if ill:
        x[3:8, 0] -= 1.2
    return Data(x=torch.from_numpy(x), edge_index=ends, y=torch.tensor([int(ill)]))


recordings, patients = [], []
for patient in range(900):
    ill = dice.random() < 0.4
    for _ in range(dice.integers(1, 5)):
        recordings.append(recording(ill))
        patients.append(patient)

# %% [markdown]
# ## Say whose they are
# Splits then draw patients: nobody is trained on and tested on.

# %%
data = collate(recordings)
data.num_classes, data.directed, data.unit_name = 2, False, "recording"
data = split(set_owners(data, torch.tensor(patients), name="patient"))
print(f"{data.num_graphs:,} recordings of {len(set(patients))} patients")

# %% [markdown]
# ## Train
# The losses of one patient are averaged and clipped as one term, so that four recordings cost no
# more than one.

# %%
for epsilon in (1.0, 4.0):
    method = GraphDPSGD(epsilon=epsilon).fit(data)
    print(f"{method.certificate_.guarantee}: {method.score(data):.1%}")
