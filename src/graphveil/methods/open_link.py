"""Link prediction without privacy: the same scorer and terms, trained in the open.

No guarantee: its certificate says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, final

from graphveil.methods import link_models
from graphveil.methods.base import Method
from graphveil.methods.baselines import plan_openly
from graphveil.methods.inference import NOTHING_PROMISED, Disjoint, Visible
from graphveil.methods.link_models import LinkSettings
from graphveil.methods.plan import Facts, Plan
from graphveil.methods.settings import Optimizer, setting, settings

if TYPE_CHECKING:
    from torch import nn
    from torch_geometric.data import Data

    from graphveil.graph.link_terms import LinkTerms
    from graphveil.methods.execution import Execution
    from graphveil.nn.link_descriptions import LinkNetwork


# A batch is small, and sources of a batch share their negatives.
@final
@settings(negatives=256)
class OpenLink(Method, LinkSettings):
    """Link prediction without privacy, for comparison with ``dp-link``.

    ``unit`` says which of its terms are trained on: those of people, or of links.
    """

    name: ClassVar[str] = "open-link"
    record: ClassVar[str] = "link"
    private: ClassVar[bool] = False
    tasks: ClassVar[tuple[str, ...]] = ("link",)
    compared: ClassVar[bool] = True
    inferences = (Visible(NOTHING_PROMISED), Disjoint())

    steps: int = setting("Steps.", 300, "[1, 1e9]")
    batch_size: int = setting("Loss terms that a step reads.", 1024, "[1, 1e9]")
    optimizer: Optimizer = setting("What steps with the gradients.", "adam")
    momentum: float = setting("Of 'sgd': what is kept of the last step.", 0.9, "[0, 1)")
    learning_rate: float = setting("The length of steps; it falls to 0.", 0.05, "(0, inf)")
    weight_decay: float = setting("Shrinks weights at every step.", 0.0, "[0, inf)")

    def network(self, facts: Facts) -> LinkNetwork:
        return link_models.describe_network(self, facts)

    def _train(self, execution: Execution, data: Data) -> nn.Module:
        from graphveil.graph.link_terms import count_targets
        from graphveil.graph.links import num_targets, own_lists

        facts, network = execution.plan.facts, self.build(execution.plan.facts)
        if self.popularity:
            counts = count_targets(own_lists(data), num_targets(data), balanced=False)
            link_models.set_popularity(network, counts, least=0.5)
        link_models.fit_content(self, facts, network, data)
        rate = min(1.0, self.batch_size / facts.num_train)
        terms = link_models.make_terms(self, facts, network, data, rate=rate, divisor=1.0)
        part = execution.plan.part("weights")
        execution.train_openly(part, lambda: _descend(self, execution, network, terms))
        return network

    outputs, link_scores, recommend = (
        link_models.outputs,
        link_models.link_scores,
        link_models.recommend,
    )

    def _plan(self, facts: Facts) -> Plan:
        link_models.check_unit(self, facts)
        return plan_openly(self, facts)


def _descend(method: OpenLink, execution: Execution, network: Any, terms: LinkTerms) -> None:
    """Steps on batches of loss terms in a random order."""
    import torch

    from graphveil.methods.open_training import make_optimizer
    from graphveil.nn.link_scorers import link_losses
    from graphveil.rng import seeded

    optimizer = make_optimizer(
        method.optimizer,
        network.parameters(),
        method.learning_rate,
        method.weight_decay,
        method.momentum,
    )
    rng, queue = seeded(method.seed, "order of terms").torch_generator(), torch.empty(0).long()
    planned = range(method.steps)
    if execution.on_step is not None:
        execution.on_step(network, 0)
    for step in planned if execution.progress is None else execution.progress(planned):
        if not len(queue):
            queue = torch.randperm(len(terms), generator=rng)
        drawn, queue = queue[: method.batch_size], queue[method.batch_size :]
        for group in optimizer.param_groups:  # falls to zero, so that the last steps settle
            group["lr"] = method.learning_rate * (1 - step / method.steps)
        terms.begin(step)
        optimizer.zero_grad()
        total = 0.0
        for batch in terms.batches(drawn):
            loss = link_losses(network, batch).sum() / len(drawn)
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        if execution.on_loss is not None:
            execution.on_loss(total)
        if execution.on_step is not None:
            execution.on_step(network, step + 1)
