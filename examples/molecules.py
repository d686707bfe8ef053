"""Molecules as records: a private classifier of whole graphs, and what it looks at."""

# %% [markdown]
# # Molecules
#
# 2,000 small molecules are generated: a ring or a chain of atoms, some with a side group. Each is
# a customer's secret. Predict whether the side group is there.

# %%
import numpy as np
import torch
from torch_geometric.data import Data

from graphveil import GraphBaseline, GraphDPSGD, split
from graphveil.graph.collate import collate

ATOMS = 4
dice = np.random.default_rng(0)


def molecule() -> Data:
    """A chain or ring of 6 to 12 atoms; with luck a side group of an atom of kind 3."""
    length = int(dice.integers(6, 13))
    bonds = [(i, i + 1) for i in range(length - 1)]
    if dice.random() < 0.5:
        bonds.append((0, length - 1))
    kinds = dice.integers(0, 3, length).tolist()
    active = dice.random() < 0.5
    if active:
        bonds.append((int(dice.integers(0, length)), length))
        kinds.append(3)
    ends = torch.tensor(bonds).T
    return Data(
        x=torch.eye(ATOMS)[kinds],
        edge_index=torch.cat([ends, ends.flip(0)], dim=1),
        y=torch.tensor([int(active != (dice.random() < 0.05))]),  # 5 in 100 are mislabelled
    )


# %% [markdown]
# ## Many graphs are one `Data`

# %%
data = collate([molecule() for _ in range(2000)])
data.num_classes, data.directed = 2, False
data = split(data)

# %% [markdown]
# ## Train
# One molecule is one loss term, so that withholding it removes one term and alters none.

# %%
for epsilon in (1.0, 4.0):
    method = GraphDPSGD(epsilon=epsilon).fit(data)
    print(f"{method.certificate_.guarantee}: {method.score(data):.1%}")
print(f"in the open: {GraphBaseline().fit(data).score(data):.1%}")

# %% [markdown]
# ## What a prediction reads
# A molecule's own graph and nothing else, so that its owner may see it.

# %%
print(method.predict_proba(data)[:3])
