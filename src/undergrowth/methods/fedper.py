"""FedPer (Arivazhagan et al. 2019): the layers above a split are personal, those below it are averaged.

w = {φ, θ}: θ are the weights and buffers above `split`, φ the rest. Down: φ. A device: E epochs of SGD from {φ, θ_k},
where θ_k is its own. Up: φ_k and n_k; it keeps θ_k. Server: φ ← Σ p_k·φ_k, p_k = n_k / Σ n. θ never crosses a link. A
device that is asked for the first time starts from the θ of the run's initial model, which it makes from a seed that is
sent with φ. By default θ is the last layer.

What is evaluated: a device uses {φ, θ_k}. Its accuracy on its own test samples is in `result.clients`. The server has
no θ, so the run's accuracy is that of {φ, mean of θ_k}, weighted by samples, over the devices that have taken part: a
model for a device from outside.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedper", options={"split": "head"}, rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass

from undergrowth.core import Context, InputError, Model, State, Task, option
from undergrowth.learning.personal_layers import PersonalLayersClient, PersonalLayersMethod, PersonalLayersServer


@dataclass(frozen=True)
class LayersAbove:
    """The names of the weights and buffers above a level."""

    split: str

    def __call__(self, model: Model) -> set[str]:
        return {*model.trainable(self.split), *model.upper_buffers(self.split)}


@dataclass(frozen=True, kw_only=True)
class FedPerServer(PersonalLayersServer):
    kept: LayersAbove

    def init(self, task: Task, context: Context) -> State:
        kept = self.kept(task.model)
        if not any(name not in kept for name in task.model.parameters):
            raise InputError(
                f"method.split '{self.kept.split}': no parameter of the model is below this level, so nothing would be "
                "shared; use a model with more layers, such as mlp, or the method local"
            )
        return super().init(task, context)


@dataclass(frozen=True)
class FedPer(PersonalLayersMethod):
    split: str = option("head", "level of the model above which the layers are personal")

    @property
    def client(self) -> PersonalLayersClient:
        return PersonalLayersClient(kept=LayersAbove(self.split))

    @property
    def server(self) -> FedPerServer:
        return FedPerServer(kept=LayersAbove(self.split))
