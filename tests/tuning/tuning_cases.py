"""Small graphs and quick settings."""

import torch
from torch_geometric.data import Data

QUICK = {"steps": 4, "sample_rate": 1.0, "hidden_channels": 4}
VARY = {"learning_rate": "0.01..0.1", "max_grad_norm": "0.1..1"}


def drawn_graph(seed=0, nodes=120, edges=240):
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(nodes) % 3
    x = torch.randn(nodes, 5, generator=rng) + y.unsqueeze(1)
    ends = torch.randint(nodes, (2, edges), generator=rng)
    ends = ends[:, ends[0] != ends[1]]
    data = Data(x=x, edge_index=torch.cat([ends, ends.flip(0)], 1).unique(dim=1), y=y)
    data.num_classes, data.directed = 3, False
    return data
