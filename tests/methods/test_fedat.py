"""FedAT: its server beside plain loops that are written from the formulas of the source, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.double_precision import ATOL, RTOL
from tests.methods import tiny_federation as tiny
from tests.methods.test_fedft import digits
from undergrowth.core import Context, Model, Packet, Shard, Task, Train
from undergrowth.engines.vector.stacked_loops import StackedLoops
from undergrowth.engines.vector.stacked_steps import StackedSteps
from undergrowth.learning import build_augmentation
from undergrowth.methods import FedAT, FedKAD
from undergrowth.models import builder
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.federation_builder import federate

LEVELS = ("low", "mid", "up")
SIZES = {"a": 12, "b": 20}  # samples of the devices: p_k = 3/8 and 5/8
RUNGS = {"a": 0, "b": 1}
CONTEXT = Context(3, "root", 2)
FAST = {"beta": 16.0, "server_batch": 8, "transfer_lr": 0.1, "metadata_lr": 0.05}


def double(name: str, **options: Any) -> Model:
    build = builder(name, (1, 8, 8), 10, **options)
    return Model(lambda: build().double())


def double_digits(count: int, start: int) -> Shard:
    shard = digits(count, start)
    return Shard(shard.x.double(), shard.y)


CASES = {
    "cnn": (double("cnn", hidden=8), {"small": double("cnn", hidden=4), "large": double("cnn", hidden=16)}),
    "wrn": (double("wrn-16-1"), {"small": double("wrn-10-1"), "large": double("wrn-16-1")}),  # with BatchNorm
}


def task_of(case: str, augmented: bool = False, missing: Sequence[int] = ()) -> Task:
    model, ladder = CASES[case]
    augmentation = build_augmentation("flip", (1, 8, 8), None) if augmented else None
    train, public = Train(batch=8, lr=0.05), double_digits(20, 900)
    public = public.take(torch.tensor([place for place, y in enumerate(public.y.tolist()) if y not in missing]))
    return Task(model, 10, train, public=public, ladder=ladder, augmentation=augmentation)


def module_of(model: Model, weights: Mapping[str, Tensor]) -> Any:
    module = model.build()
    module.load_state_dict(weights)
    return module


# The formulas ---------------------------------------------------------------------------------------------------


def forward(net: Any, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The logits, and Q / ‖Q‖ at each level with Q = Σ over channels of f²."""
    seen = {}
    for place, stage in enumerate(net):
        for level in LEVELS:
            if net.position(level) == place:
                q = (x**2).sum(1).flatten(1)
                seen[level] = q / (q**2).sum(1, keepdim=True).sqrt()
        x = stage(x)
    return x, seen


def attention_of(net: Any, x: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        return forward(deepcopy(net).eval(), x)[1]


def distance(mine: Tensor, other: Tensor, form: str) -> Tensor:
    squares = (mine - other) ** 2
    return squares.mean() if form == "mean-square" else squares.sum(1).sqrt().mean()


def descend(
    parameters: Sequence[nn.Parameter], loss: Callable[[Tensor], Tensor], samples: int, context: Context, lr: float
) -> None:
    """Two epochs of SGD in batches of 8; `loss` gets the indices of a batch."""
    generator = context.generator("order")
    for _ in range(2):
        for rows in torch.randperm(samples, generator=generator).split(8):
            for parameter, slope in zip(parameters, torch.autograd.grad(loss(rows), parameters), strict=True):
                parameter.data -= lr * slope


def transfer(
    net: Any, teacher: Mapping[str, Tensor], context: Context, task: Task, options: FedAT, below: str = ""
) -> None:
    """CE + beta·AT on the generic data: eq. 5.13 and 5.19; of the part below the level `below` alone: eq. 5.16."""
    net.train()
    trained, levels = list(net.parameters()), LEVELS if teacher else ()
    if below:
        place = net.position(below)
        net[place:].train(options.upper_statistics == "updated")
        trained, levels = list(net[:place].parameters()), tuple(name for name in levels if net.position(name) <= place)

    def loss(rows: Tensor) -> Tensor:
        logits, seen = forward(net, task.public.x[rows])
        attention = sum(distance(seen[level], teacher[level][rows], options.form) for level in levels)
        return entropy(logits, task.public.y[rows]) + FAST["beta"] * attention

    def entropy(logits: Tensor, labels: Tensor) -> Tensor:
        if options.public_classes == "all":
            return F.cross_entropy(logits, labels)
        present = sorted(set(task.public.y.tolist()))
        right = logits.gather(1, labels[:, None])[:, 0]
        return (logits[:, present].exp().sum(1).log() - right).mean()

    descend(trained, loss, len(task.public), context, FAST["transfer_lr"])


def learn_metadata(net: Any, pairs: Sequence[tuple[Tensor, Tensor]], options: FedAT, context: Context) -> None:
    """CE of the part above the level on the pairs of map and label: eq. 5.15."""
    upper = net[net.position(options.level) :]
    maps, labels = torch.cat([maps for maps, _ in pairs]), torch.cat([labels for _, labels in pairs])
    net.train()

    def loss(rows: Tensor) -> Tensor:
        return F.cross_entropy(upper(maps[rows]), labels[rows])

    descend(list(upper.parameters()), loss, len(labels), context, FAST["metadata_lr"])


def mean_of(copies: Mapping[str, Any]) -> dict[str, Tensor]:
    """Eq. 5.18: the mean of the copies, weighted by the samples of the devices."""
    states = {device: copy.state_dict() for device, copy in copies.items()}
    weights = {device: SIZES[device] / sum(SIZES.values()) for device in copies}
    return {name: sum(weights[device] * states[device][name] for device in copies) for name in states["a"]}


def a_round_at_the_server(
    start: Mapping[str, Tensor], own: Mapping[str, Any], sent: Mapping[str, Any], task: Task, options: FedAT,
    context: Context,
) -> dict[str, Tensor]:  # fmt: skip
    """The next global model, from which the modules `own` learn. `sent`: each device's maps and labels."""
    first, second, third, last = (context._replace(turn=turn) for turn in range(4))
    if options.augment_public:
        mirrored = torch.randint(2, (len(task.public),), generator=context.generator("augment"))
        pairs = zip(task.public.x, mirrored, strict=True)
        x = torch.stack([image.flip(2) if left_is_right else image for image, left_is_right in pairs])
        task = replace(task, public=Shard(x, task.public.y))
    teachers = {device: attention_of(net, task.public.x) for device, net in own.items()}
    copies = {device: module_of(task.model, start) for device in own}
    for device, copy in copies.items():
        transfer(copy, teachers[device], first, task, options)  # eq. 5.13
    if options.metadata_share and options.metadata_of == "all":
        one = module_of(task.model, mean_of(copies))
        learn_metadata(one, list(sent.values()), options, second)
        copies = {device: deepcopy(one) for device in own}
    for device, copy in copies.items():
        if options.metadata_share and options.metadata_of == "device":
            learn_metadata(copy, [sent[device]], options, second)
        if options.metadata_share and options.alignment != "none":
            attention = teachers[device] if options.alignment == "attention" else {}
            transfer(copy, attention, third, task, options, options.level)  # eq. 5.16
    expected = mean_of(copies)
    teacher = attention_of(module_of(task.model, expected), task.public.x)
    for net in own.values():
        transfer(net, teacher, last, task, options)  # eq. 5.19
    return expected


# The tests ------------------------------------------------------------------------------------------------------


def uploads_of(task: Task, options: FedAT) -> dict[str, Packet]:
    """What devices with different models and different numbers of samples send."""
    uploads = {}
    for number, (device, samples) in enumerate(SIZES.items()):
        model, shard = list(task.ladder.values())[RUNGS[device]], double_digits(samples, 100 * number)
        tensors = dict(model.initial(number))
        if options.metadata_share:
            with torch.no_grad():
                net = module_of(model, tensors).eval()
                maps = net[: net.position(options.level)](shard.x)
            tensors |= {"metadata/maps": maps, "metadata/labels": shard.y}
        uploads[device] = Packet(tensors, {"samples": float(samples), "rung": float(RUNGS[device])})
    return uploads


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "cnn": ("cnn", {}),
    "printed": ("cnn", {"form": "printed"}),
    "level mid": ("cnn", {"level": "mid"}),
    "third step without attention": ("cnn", {"alignment": "plain"}),
    "no third step": ("cnn", {"alignment": "none"}),
    "no metadata": ("cnn", {"metadata_share": 0.0}),
    "metadata of all devices": ("cnn", {"metadata_of": "all"}),
    "metadata of all devices, no third step": ("cnn", {"metadata_of": "all", "alignment": "none"}),
    "wrn": ("wrn", {}),
    "metadata of all devices, wrn": ("wrn", {"metadata_of": "all", "upper_statistics": "updated"}),
    "public classes": ("cnn", {"public_classes": "present"}),
    "public classes, metadata of all devices, wrn": (
        "wrn",
        {"public_classes": "present", "metadata_of": "all", "upper_statistics": "updated"},
    ),
    "augmented public images": ("cnn", {"augment_public": True}),
    "statistics of the frozen part": ("wrn", {"upper_statistics": "updated"}),
}


@pytest.mark.parametrize(("case", "changes"), VARIANTS.values(), ids=VARIANTS)
def test_a_round_at_the_server_is_what_the_formulas_say(case: str, changes: dict[str, Any]) -> None:
    options = FedAT(**{**FAST, **changes})
    task = task_of(case, options.augment_public, (0, 5, 8) if options.public_classes == "present" else ())
    uploads, start = uploads_of(task, options), task.model.initial(7)
    model, devices = options.server.teach(task, start, uploads, CONTEXT)

    own, sent = {}, {}
    for device, up in uploads.items():
        weights = {name: value for name, value in up.tensors.items() if "/" not in name}
        own[device] = module_of(list(task.ladder.values())[RUNGS[device]], weights)
        sent[device] = [up.tensors.get(f"metadata/{what}") for what in ("maps", "labels")]
    assert_close(model, a_round_at_the_server(start, own, sent, task, options, CONTEXT))
    for device, net in own.items():
        assert_close(devices[device], net.state_dict())


@pytest.mark.parametrize("case", CASES)
def test_fedat(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of two rounds: devices train their own models, first from a common seed, then as the server sent them."""
    task, options = task_of(case), FedAT(**FAST)
    shards = {device: double_digits(size, 100 * number) for number, (device, size) in enumerate(SIZES.items())}
    monkeypatch.setattr(tiny, "SHARDS", shards)
    seed = tiny.seed_from(tiny.server_context(0), "device models")
    rungs = {device: list(task.ladder.values())[rung] for device, rung in RUNGS.items()}
    own: dict[str, Any] = {device: module_of(rung, rung.initial(seed)) for device, rung in rungs.items()}
    model = tiny.initial(task.model)
    for number in range(2):
        sent = {}
        for device, net in own.items():
            shard, orders = shards[device], tiny.shuffles(tiny.device_context(device, number), SIZES[device], epochs=2)
            optimiser = torch.optim.SGD(net.parameters(), 0.05)
            tiny.descend(net.train(), orders, tiny.cross_entropy(shard), optimiser, batch=8)
            with torch.no_grad():
                sent[device] = [net.eval()[: net.position("low")](shard.x), shard.y]
        model = a_round_at_the_server(model, own, sent, task, options, tiny.server_context(number))
    state, _ = tiny.simulate(options, 2, replace(task, train=replace(task.train, rounds=2, epochs=2)))
    assert_close(state["model"], model)
    for device, net in own.items():
        assert_close(state["devices"][device]["weights"], net.state_dict())


@pytest.mark.parametrize(
    ("case", "method", "stacks"),
    [
        ("wrn", FedAT(**FAST), [3, 3, 3, 2]),  # three steps of three copies, then the two devices with the same model
        ("wrn", FedAT(**FAST, public_classes="present"), [3, 3, 3, 2]),
        ("wrn", FedKAD(samples=12, server_batch=5, beta=0.7), [2]),
        ("cnn", FedKAD(samples=12, server_batch=5, prototype_reduction="sum"), [2]),
    ],
)
def test_the_models_of_a_server_can_be_trained_at_once(
    case: str, method: FedAT | FedKAD, stacks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of the global model, and models of devices with one architecture, in stacks: the same up to rounding."""
    task, start = task_of(case, missing=[3]), CASES[case][0].initial(7)
    uploads = uploads_of(task, FedAT(**FAST))
    twin = dict(uploads["a"].tensors)
    twin |= {name: twin[name][:9] for name in ("metadata/maps", "metadata/labels")}  # fewer samples than the others
    uploads["c"] = Packet(twin, {"samples": 9.0, "rung": 0.0})
    if isinstance(method, FedKAD):
        generator = torch.Generator().manual_seed(0)
        shape = task.model.run(start, task.public.x[:1], stop="up").logits.shape[1:]
        maps = [torch.randn(10, *shape, generator=generator, dtype=torch.float64) for _ in uploads]
        parts = [{"prototypes/maps": each, "prototypes/counts": torch.ones(10)} for each in maps]
        uploads = {
            name: replace(up, tensors={**up.tensors, **part})
            for (name, up), part in zip(uploads.items(), parts, strict=True)
        }
    found: list[int] = []
    compute = StackedSteps.compute

    def count(self: StackedSteps, kind: int, group: Any) -> Any:
        found.append(len(group))
        return compute(self, kind, group)

    monkeypatch.setattr(StackedSteps, "compute", count)
    model, devices = method.server.teach(replace(task, run_loops=StackedLoops(None)), start, uploads, CONTEXT)
    assert found == stacks
    expected, own = method.server.teach(task, start, uploads, CONTEXT)
    assert_close(model, expected)
    for device, weights in own.items():
        assert_close(devices[device], weights)


@pytest.mark.parametrize(("engine", "at_once"), [("vector", True), ("serial", False)])
def test_the_engine_vector_trains_the_models_of_a_server_at_once(engine: str, at_once: bool) -> None:
    raw = {"method": "fedat", "data": {"name": "digits", "clients": 2}, "public": 0.1, "run": {"engine": engine}}
    federation = federate(parse_experiment(raw))
    assert all(isinstance(node.task.run_loops, StackedLoops) == at_once for node in federation.nodes.values())


def assert_close(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        if value.is_floating_point():
            torch.testing.assert_close(
                value, expected[name], rtol=RTOL, atol=ATOL, msg=lambda text, n=name: f"{n} {text}"
            )
