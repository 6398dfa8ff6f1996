"""Local adaptation (Yu et al. 2020): every device trains a model of its own from the final federated one.

Down: w, once. A device: `train.rounds` rounds of `train.epochs` epochs from w on its own samples, minimising

fine-tune:     L(v)
freeze:        L(v), only above the split `head` (FreezeBase: only the last layer); the rest stays as in w
ditto[:λ]:     L(v) + (λ/2)·‖v − w‖², λ = 0.1
ewc[:λ]:       L(v) + Σ_i (λ/2)·F_i·(v_i − w_i)², λ = 5000; F is the diagonal empirical Fisher information of w,
               limited as in `pafl`
kd[:T[:α]]:    (1 − α)·L(v) + α·T²·KL(softmax(w(x)/T) ‖ softmax(v(x)/T)), T = 6, α = 0.95
alone:         L(v), from the run's initial weights instead of w: what a device can do without a federation

Up: the number of samples, and whether the device has stopped. Server: nothing; w never changes. With `validation` a
device holds out that fraction of its training samples, keeps the model with the lowest loss on them, w included, and
stops after `patience` rounds without a lower one.

The run's accuracy is that of w. The devices' accuracies, in `result.clients`, are those of their own models. The start
is usually a finished run: `start: {weights: runs/RUN/model.safetensors}`; `undergrowth run --personal` does that by
itself. Iacob (Cambridge PhD proposal, appendix A) prints α·T²·L + (1 − α)·KL for KD; `form: printed` is that.
`form: averaged` divides KL by the number of classes, as the program of the work that he cites does.

    >>> import undergrowth as ug
    >>> result = ug.run(method="adapt", options={"how": "ditto:0.5"}, rounds=2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from undergrowth.core import Method, State, Task, Weights, option
from undergrowth.core.names import MODEL
from undergrowth.core.notation import Form, parse
from undergrowth.learning.adaptation import ALONE, HOW, build_adaptation
from undergrowth.learning.reference import CITED, FORMS
from undergrowth.methods.adapt.rules import AdaptationClient, AdaptationServer, adapted_model


@dataclass(frozen=True)
class Adapt(Method):
    how: str = option("fine-tune", "fine-tune, freeze, ditto[:LAMBDA], ewc[:LAMBDA], kd[:T[:ALPHA]] or alone")
    validation: float = option(0.0, "fraction of a device's training samples to validate with", at_least=0, below=1)
    patience: int = option(0, "rounds without a lower validation loss after which a device stops; 0: never", at_least=0)
    form: str = option(CITED, "the loss of kd: cited, printed, or averaged over classes", choices=FORMS)

    def check(self) -> None:
        parse("method.how", self.how, {**HOW, ALONE: Form()})

    @property
    def client(self) -> AdaptationClient:
        adaptation = build_adaptation("fine-tune" if self.how == ALONE else self.how, self.form)
        return AdaptationClient(
            adaptation.objective,
            adaptation.split,
            held_out=self.validation,
            options=self,
            keeps_federated=adaptation.compares,
        )

    @property
    def server(self) -> AdaptationServer:
        return AdaptationServer(alone=self.how == ALONE)

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights]:
        return {"global": state[MODEL]}

    def personal(self, task: Task, state: State, own: State, device: str) -> Weights:
        adapted: Weights = adapted_model(own) or state[MODEL]
        return adapted
