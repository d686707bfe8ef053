"""A model of one's own: any module and loss, a private step, and a replay that tries it."""

# %% [markdown]
# # A model of your own
#
# Any torch module whose loss for one example depends on that example alone can be trained
# privately. The engine checks that, clips every example's gradient, and charges each step.

# %%
import torch

from graphveil import make_private
from graphveil.audit.replay import replay_steps

torch.manual_seed(0)
features = torch.randn(4000, 20)
labels = (features[:, :3].sum(1) + 0.3 * torch.randn(4000) > 0).long()


class Gated(torch.nn.Module):
    """Two linear layers, of which one opens and closes the other."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value = torch.nn.Linear(20, 16), torch.nn.Linear(20, 16)
        self.out = torch.nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.sigmoid(self.gate(x)) * torch.tanh(self.value(x)))


# %% [markdown]
# ## Train
# Noise is set so that all 150 steps together stay within the target.

# %%


def make(data, rng=None, steps=150):
    torch.manual_seed(1)
    module = Gated()
    return make_private(
        module,
        torch.optim.Adam(module.parameters(), lr=0.02),
        data,
        sample_rate=0.1,
        max_grad_norm=0.5,
        target_epsilon=4.0,
        target_delta=1e-5,
        steps=steps,
        rng=rng,
    )


step = make((features[:3000], labels[:3000]))
for _ in range(150):
    step()
print(step.certificate(unit="node", delta=1e-5))
with torch.no_grad():
    guesses = step.module(features[3000:]).argmax(1)
print(f"accuracy on 1,000 others: {(guesses == labels[3000:]).float().mean():.1%}")

# %% [markdown]
# ## Does the loss keep its promise?
# A replay trains with the same noise on the data and on its neighbours, and compares loss terms.


# %%
def without(row):
    x = features[:200].clone()
    x[row] = 0
    return f"without row {row}", (x, labels[:200]), [row]


def centred(data, rng):  # broken: every row is moved by the mean of all rows
    x, y = data
    return make((x - x.mean(0), y), rng, 20)


small, neighbours = (features[:200], labels[:200]), [without(0), without(7)]
finding = replay_steps(lambda data, rng: make(data, rng, 20), small, neighbours)
print(f"a replay holds: {finding.holds}")
finding = replay_steps(centred, small, neighbours)
print(f"with rows that were centred: {finding.holds}, because {finding.violations[0]}")
