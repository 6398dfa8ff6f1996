"""B-HFL against a plain loop of its algorithm, and what it must equal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from undergrowth.core import Context, InputError, NodePlace, Packet, pack, unpack
from undergrowth.methods import APFL, BHFL, FedAvg, FedProx, HierFAVG

from . import tiny_federation as tiny
from .tiny_trees import STAR, THREE_LEVELS, TWO_LEVELS, run_tree, simulation

REPLACING: dict[str, Any] = {"down": "average", "eta_down": 1.0}
BUFFERS = {name for name in tiny.initial() if "running" in name or "num_batches" in name}


def move(model: tiny.Weights, towards: tiny.Weights, rate: float, downward: bool = False) -> dict[str, torch.Tensor]:
    """model + rate·(towards − model); upward, statistics are those received. Counters are the larger one."""
    moved = {}
    for name, value in model.items():
        if name in BUFFERS and not downward:
            moved[name] = towards[name]
        elif value.is_floating_point():
            moved[name] = value + rate * (towards[name] - value)
        else:
            moved[name] = torch.maximum(value, towards[name])
    return moved


def mixed(main: tiny.Weights, second: tiny.Weights, share: float) -> dict[str, torch.Tensor]:
    """(1 − share)·main + share·second; residuals do not touch statistics."""
    return {k: v if k in BUFFERS else (1 - share) * v + share * second[k] for k, v in main.items()}


def norm_of_change(model: tiny.Weights, after: tiny.Weights) -> float:
    return float(sum(((after[k] - model[k]) ** 2).sum() for k in model if k not in BUFFERS) ** 0.5)


def test_bhfl() -> None:
    """Algorithm 1 with the corrected line 9: two levels, one residual up (largest change) and one down (to devices)."""
    up, down, share, rounds, edge_rounds = 0.8, 0.6, 0.3, 2, 2
    edges, public = {"left": ("a", "b"), "right": ("c",)}, tiny.TASK.public
    kept: dict[str, tiny.Weights] = {"root": tiny.initial()}  # W_q
    for number in range(rounds):
        root, at_edges, sizes, to_root = kept["root"], [], [], []
        for edge, devices in edges.items():
            model = move(kept[edge], root, down, True) if edge in kept else root  # line 9
            for local in range(edge_rounds):
                turn, trained, counts = edge_rounds * number + local, {}, {}
                for device in devices:
                    start: tiny.Weights = model
                    if device in kept:  # the device merges its parent and the root's model
                        target = mixed(model, root, share)
                        start = move(kept[device], {**target, **{k: model[k] for k in BUFFERS}}, down, True)
                    trained[device] = tiny.train(start, device, tiny.device_context(device, turn))
                    counts[device] = float(len(tiny.SHARDS[device]))
                kept |= trained
                largest = max(devices, key=lambda each: norm_of_change(model, trained[each]))
                model = move(model, tiny.mean(list(trained.values()), list(counts.values())), up)  # line 18
            kept[edge] = model
            at_edges.append(model)
            sizes.append(sum(counts.values()))
            to_root.append((trained[largest], counts[largest]))
        residual = tiny.mean([each for each, _ in to_root], [count for _, count in to_root])
        merged = move(root, mixed(tiny.mean(at_edges, sizes), residual, share), up)
        module = tiny.module_with(merged)  # line 19: the root trains on its proxy data, without momentum
        order = tiny.shuffles(Context(tiny.SEED, "root", number), len(public), 1)
        tiny.descend(
            module, order, tiny.cross_entropy(public), torch.optim.SGD(module.parameters(), tiny.LR), tiny.BATCH
        )
        kept["root"] = tiny.weights_of(module)
    method = BHFL(
        eta_up=up, eta_down=down, residual_weight=share, rounds_per_level=edge_rounds, residuals="norm:1",
        residuals_down="devices", proxy="before",
    )  # fmt: skip
    tree = run_tree(method, rounds)
    found = {name: node.state["model"] for name, node in tree.nodes.items()}
    found |= {device: tree.world.states.get(device)["model"] for device in tiny.SHARDS}
    for name, weights in kept.items():
        tiny.assert_same(found[name], weights)


@pytest.mark.parametrize(("tree", "rounds_per_level"), [(STAR, 1), (TWO_LEVELS, 1), (THREE_LEVELS, 2)])
def test_with_replacement_downward_it_is_hierfavg(tree: Any, rounds_per_level: int) -> None:
    expected = run_tree(HierFAVG(rounds_per_level), 2, tree).root.state["model"]
    found = run_tree(BHFL(rounds_per_level=rounds_per_level, **REPLACING), 2, tree)
    tiny.assert_same(found.root.state["model"], expected)


def test_in_a_star_with_replacement_it_is_the_leafs_method() -> None:
    for leaf, method in (("fedavg", FedAvg()), ({"name": "fedprox", "mu": 0.3}, FedProx(mu=0.3))):
        expected, _ = tiny.simulate(method, 2)
        tiny.assert_same(run_tree(BHFL(leaf=leaf, **REPLACING), 2, STAR).root.state["model"], expected["model"])


def test_a_device_of_apfl_uses_its_mixture() -> None:
    """In a star with replacement, it has the v_k and α_k of APFL; the other model is the one that it keeps."""
    method, alone = BHFL(leaf={"name": "apfl", "adaptive": True}, **REPLACING), APFL(adaptive=True)
    state, own = tiny.simulate(method, 2)
    _, expected = tiny.simulate(alone, 2)
    for device, kept in own.items():
        mixed = alone.personal(tiny.TASK, {"model": kept["model"]}, expected[device], device)
        tiny.assert_same(method.personal(tiny.TASK, state, kept, device), mixed)


def booked(method: BHFL) -> dict[tuple[str, str], tuple[int, int]]:
    tree = simulation(method, 2, THREE_LEVELS)
    entries: list[Any] = []
    for _ in tree.rounds():
        entries += tree.ledger.take()
    return {(each.parent, each.child): (each.bytes_down, each.bytes_up) for each in entries if each.round == 2}


def test_residuals_cost_bytes_on_every_link_that_they_cross_and_none_otherwise() -> None:
    plain, none = booked(BHFL()), booked(BHFL(residuals="norm:0"))
    assert plain == none
    model = Packet(tiny.initial()).nbytes
    assert set(plain.values()) == {(model, model + 8)}
    residual, marked = model + 16, model + 16  # with samples and hops; an answer of a node says that it is one
    both = booked(BHFL(residuals="norm:1", residuals_down="all"))
    assert both == {
        ("root", "top"): (model, marked + 2 * residual),  # of both edges
        ("top", "left"): (model + residual, marked + residual),
        ("top", "right"): (model + residual, marked + residual),
        ("left", "a"): (model + residual, model + 8),
        ("left", "b"): (model + residual, model + 8),
        ("right", "c"): (model + residual, model + 8),
    }
    only_nodes = booked(BHFL(residuals_down="nodes"))
    assert only_nodes["top", "left"][0] == model + residual and only_nodes["left", "a"] == plain["left", "a"]
    assert booked(BHFL(residuals="cosine:2:mean"))["left", "a"] == plain["left", "a"]
    assert booked(BHFL(residuals="cosine:2:mean"))["top", "left"][1] == marked + residual


OPTIMISERS = ["average", "momentum:0.5", "fedadam", "fedyogi", "fedadagrad", "moving-average:3", "distance:0.5"]


@pytest.mark.parametrize("kind", [*OPTIMISERS, "interpolation:0.1"])
def test_a_rate_of_zero_changes_nothing(kind: str) -> None:
    at_root = {"up": (kind, "average"), "down": "average" if kind.startswith("inter") else kind}
    still = run_tree(BHFL(eta_up=0.0, residuals="norm:1", **at_root), 2)
    for name in ("root", "left", "right"):
        tiny.assert_same(still.nodes[name].state["model"], tiny.initial())
    alone = run_tree(BHFL(eta_down=0.0, residuals_down="all", **{**at_root, "up": "average"}), 2)
    weights: tiny.Weights = tiny.initial()
    for number in range(2):  # the device goes on with its own model, as if it were alone
        weights = tiny.train(weights, "c", tiny.device_context("c", number))
    tiny.assert_same(alone.world.states.get("c")["model"], weights)


def test_the_root_takes_part_in_its_childrens_training_beside_them() -> None:
    public = tiny.TASK.public
    assert public is not None
    module, model = tiny.module_with(tiny.initial()), tiny.initial()
    order = tiny.shuffles(Context(tiny.SEED, "root", 0), len(public), 1)
    tiny.descend(module, order, tiny.cross_entropy(public), torch.optim.SGD(module.parameters(), tiny.LR), tiny.BATCH)
    trained = [tiny.train(model, device, tiny.device_context(device, 0)) for device in tiny.SHARDS]
    sizes = [float(len(shard)) for shard in tiny.SHARDS.values()]
    expected = tiny.mean([*trained, tiny.weights_of(module)], [*sizes, float(len(public))])
    tiny.assert_same(run_tree(BHFL(proxy="beside"), 1, STAR).root.state["model"], expected)


def test_asynchronous_children_are_the_same_after_a_restart_and_do_not_wait_for_each_other() -> None:
    method = BHFL(execution=("asynchronous", "synchronous"), eta_up=0.7, residuals="norm:1", residuals_down="devices")
    settings: dict[str, Any] = {"paces": {"a": 1.0, "b": 2.5, "c": 4.1}}
    whole = run_tree(method, 6, **settings)
    assert whole.nodes["left"].round > whole.nodes["right"].round  # the slow edge holds nobody up
    again = simulation(method, 6, **settings)
    while not again.root.done:
        next(again.rounds())
        state, states = unpack(*pack([again.snapshot(), again.world.states.snapshot()]))
        again = simulation(method, 6, **settings)
        again.restore(state)
        again.world.states.restore(states.items())
    for name, node in whole.nodes.items():
        torch.testing.assert_close(again.nodes[name].state["model"], node.state["model"], rtol=0, atol=0)


def test_an_asynchronous_node_weighs_by_age_and_steps_less_for_stale_models() -> None:
    """One answer a round: a (1 s) arrives at 1, 2, 3 s, b (2.5 s) at 2.5 s with an age of two versions."""
    method = BHFL(execution="asynchronous", eta_up=0.5, eta_down=1.0, staleness="polynomial:1")
    model, history = tiny.initial(), [tiny.initial()]
    for arrival, (device, version, turn) in enumerate([("a", 0, 0), ("a", 1, 1), ("b", 0, 0), ("a", 2, 2)]):
        trained = tiny.train(history[version], device, Context(tiny.SEED, device, version, turn))
        model = move(model, trained, 0.5 / (1 + arrival - version))
        history.append(model)
    found = run_tree(method, 4, {"root": ("a", "b")}, paces={"a": 1.0, "b": 2.5})
    tiny.assert_same(found.root.state["model"], model)


def test_both_answers_of_a_fast_child_count_in_one_round_of_an_asynchronous_node() -> None:
    """Two answers a round: a (1 s) arrives twice before b (2.5 s); the mean of both is the model."""
    method = BHFL(execution="asynchronous", buffer=2, eta_down=1.0, staleness="constant")
    first, second = (tiny.train(tiny.initial(), "a", tiny.device_context("a", 0, turn)) for turn in (0, 1))
    found = run_tree(method, 1, {"root": ("a", "b")}, paces={"a": 1.0, "b": 2.5})
    tiny.assert_same(found.root.state["model"], tiny.mean([first, second]))


def test_a_node_that_was_cut_off_is_missing_and_merges_its_parents_model_when_it_is_back() -> None:
    children = {"root": ("left", "right"), "left": ("a",), "right": ("c",)}
    tree = simulation(BHFL(eta_down=0.6), 3, children, cuts=[("left", 0.5, 1.5)])  # rounds take a second each
    models, arrived = [], []
    for ends in tree.rounds():
        models.append({name: dict(node.state["model"]) for name, node in tree.nodes.items()})
        models[-1]["a"] = tree.world.states.get("a")["model"]
        arrived += [end.arrived for end in ends]
    assert arrived == [("left", "right"), ("right",), ("left", "right")]
    before, root = models[0], models[1]["root"]
    tiny.assert_same(models[1]["left"], before["left"])
    edge = move(before["left"], root, 0.6, True)
    trained = tiny.train(move(before["a"], edge, 0.6, True), "a", tiny.device_context("a", 1))
    tiny.assert_same(models[2]["left"], trained)


def test_the_weight_of_an_interpolation_follows_the_slope_of_the_loss_on_proxy_data() -> None:
    public, rate, alpha = tiny.TASK.public, 0.4, torch.tensor(0.5, dtype=torch.float64)
    assert public is not None
    model = tiny.initial()
    for number in range(2):
        trained = [tiny.train(model, device, tiny.device_context(device, number)) for device in tiny.SHARDS]
        target = tiny.mean(trained, [float(len(shard)) for shard in tiny.SHARDS.values()])

        def loss(weight: torch.Tensor, model: tiny.Weights = model, target: tiny.Weights = target) -> torch.Tensor:
            mixture = {k: v if k in BUFFERS else v + weight * (target[k] - v) for k, v in model.items()}
            module = tiny.module_with(mixture).eval()
            return functional.cross_entropy(module(public.x), public.y)

        step = 1e-5
        slope = (loss(alpha + step) - loss(alpha - step)).item() / (2 * step)
        alpha = (alpha - rate * slope).clamp(0, 1)
        model = move(model, target, float(alpha))
    found = run_tree(BHFL(up=f"interpolation:{rate}", **REPLACING), 2, STAR)
    assert 0 < float(alpha) < 1 and float(alpha) != 0.5
    torch.testing.assert_close(found.root.state["up"]["mixture"], alpha, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(dict(found.root.state["model"]), model, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"up": "fedadm"}, r"method\.up 'fedadm' is not known; did you mean 'fedadam'"),
        ({"down": ("average", "distance:2")}, r"method\.down 'distance:2' must be distance\[:FACTOR\]"),
        ({"residuals": "norm"}, r"method\.residuals 'norm' must be norm:K\[:mean\] with K a whole number"),
        ({"execution": "async"}, r"method\.execution 'async' is not known"),
        ({"eta_up": ()}, r"method\.eta_up is empty"),
        ({"leaf": "scaffold"}, r"method\.leaf 'scaffold': its devices exchange something else than models"),
        ({"leaf": {"name": "fedprox", "nu": 1}}, r"method\.leaf\.nu is not an option of fedprox; did you mean 'mu'"),
        ({"leaf": {"name": "fedavg", "able": ["a"]}}, r"method\.leaf 'fedavg': .*without options about stragglers"),
        ({"leaf": {"name": "fedavg", "server_lr": 0.5}}, r"method\.leaf 'fedavg': .*or the server"),
        ({"leaf": "qfedavg"}, r"method\.leaf 'qfedavg': .*its server does something else"),
        ({"leaf": "term"}, r"method\.leaf 'term': .*its server does something else"),
        ({"leaf": "lora"}, r"method\.leaf 'lora': "),
        ({"leaf": "fedncm-ft"}, r"method\.leaf 'fedncm-ft': "),
        ({"leaf": "bhfl"}, r"method\.leaf 'bhfl': a leaf is a device; write what it does"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        BHFL(**options).check()


def test_proxy_data_must_be_where_it_is_used() -> None:
    with pytest.raises(InputError, match="a node at depth 1 has none"):
        BHFL(up="interpolation").server_at(1)
    BHFL(up="interpolation").server_for(NodePlace(1, proxy=True))
