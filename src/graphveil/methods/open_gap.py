"""GAP without noise: exact sums over the neighbours, trained in the open.

What the papers call GAP-inf or GAPNoDP. No guarantee: its certificate says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from graphveil.methods.base import Method
from graphveil.methods.features import Features
from graphveil.methods.hop_rules import HopSettings
from graphveil.methods.inference import NOTHING_PROMISED, Disjoint, Visible
from graphveil.methods.parts import Open
from graphveil.methods.plan import Facts, Plan
from graphveil.methods.settings import setting, settings
from graphveil.nn.descriptions import HopNetwork
from graphveil.privacy.guarantee import default_delta

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch_geometric.data import Data

    from graphveil.methods.execution import Execution
    from graphveil.nn.gap import GAPNetwork


@final
@settings(project_above=1_000_000)
class OpenGAP(Method, HopSettings):
    """Encodings, their exact sums over the neighbours, and a head, all trained in the open.

    *Guarantee*: none.
    """

    name: ClassVar[str] = "open-gap"
    private: ClassVar[bool] = False
    inferences = (Visible(NOTHING_PROMISED), Disjoint())
    reads_stores: ClassVar[bool] = True

    weighting: Literal["none", "similarity"] = setting(
        "What weighs messages: nothing, or the cosine of their ends.", "none"
    )
    hops: int = setting("How often rows are sent on.", 2, "[1, 100]")

    # What nodes send, in the words of :class:`graphveil.methods.sending.Sender`.
    paper: ClassVar[bool] = True  # steps of one length, as published
    messages_in_use: ClassVar[str] = "encoding"
    capping_in_use: ClassVar[str] = "hard"
    message_cap: ClassVar[int | None] = None
    reads_lists: ClassVar[bool] = False
    encodes: ClassVar[bool] = True
    trains_openly: ClassVar[bool] = True
    cache_unit: ClassVar[float] = 1.0

    @property
    def hops_in_use(self) -> int:
        """How often rows are sent on."""
        return self.hops

    def network(self, facts: Facts) -> HopNetwork:
        return HopNetwork(
            in_channels=Features.of(self).columns(facts.num_features),
            hidden_channels=self.hidden_channels,
            out_channels=self.task(facts).outputs,
            halved=self.halved,
            hops=self.hops,
            encoder_layers=self.encoder_layers,
            combine=self.combine,
            public_features=True,
            activation="relu" if self.activation == "auto" else self.activation,
            dropout=self.dropout,
        )

    def prepare(self, data: Data) -> Any:
        """The rows that the network reads."""
        return Features.of(self).read(data)

    def _plan(self, facts: Facts) -> Plan:
        _ = self.network(facts)  # settings that make no network are refused here
        return Plan(
            method=self.name,
            facts=facts,
            unit=self.units[0],
            delta=default_delta(facts.num_nodes),
            parts=(Open(),),
            inference=(NOTHING_PROMISED,),
        )

    def _train(self, execution: Execution, data: Data) -> nn.Module:
        network: GAPNetwork = self.build(execution.plan.facts)
        part = execution.plan.part("weights")
        execution.train_openly(part, lambda: self._train_parts(network, execution, data))
        return network

    def _train_parts(self, network: GAPNetwork, execution: Execution, data: Data) -> None:
        import torch

        from graphveil.methods import hop_training as hops
        from graphveil.methods.sending import prepare_to_send

        x = hops.read_rows(self, data)
        hops.encode_openly(self, network, x, data, execution)
        with torch.no_grad():
            sending = prepare_to_send(self, network, x, data, None)
            cache = hops.sum_hops(self, network, sending, lambda sent: sent.sums())
            own = hops.own_inputs(self, network, x, None)
        hops.classify(self, network, own, cache, data, execution)

    def outputs(self, data: Data, mode: str) -> Tensor:
        """From exact sums over the neighbours."""
        from graphveil.methods.hop_training import outputs_from, sum_anew

        return outputs_from(self, data, sum_anew(self, data, lambda sent: sent.sums()))
