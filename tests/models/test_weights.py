"""Weights from files: every format, other heads, and files that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from undergrowth.core.errors import InputError
from undergrowth.models import builder, check_weights, load_weights

SHAPE = (1, 8, 8)


def fresh(classes: int = 4, seed: int = 0, **settings: object) -> nn.Module:
    torch.manual_seed(seed)
    return builder("wrn-10-1", SHAPE, classes, **settings)()


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture
def trained() -> nn.Module:
    return fresh(seed=9)


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "w.pth", "w.th", "w.bin"])
@pytest.mark.parametrize("form", ["plain", "checkpoint", "parallel"])
def test_every_format_and_form_loads(trained: nn.Module, tmp_path: Path, name: str, form: str) -> None:
    state: dict[str, Tensor] = trained.state_dict()
    if form != "plain":
        state = {f"module.{key}": value for key, value in state.items()}
    path = tmp_path / name
    if name.endswith(".safetensors"):
        save_file(state, path)
    else:
        torch.save({"state_dict": state, "epoch": 3} if form == "checkpoint" else state, path)
    module = fresh(seed=1)
    load_weights(module, path)
    assert same(module.state_dict(), trained.state_dict())
    assert same(fresh(weights=path).state_dict(), trained.state_dict())
    assert same(fresh(weights=str(path)).state_dict(), trained.state_dict())


def test_another_head_is_refused_without_skip_head(trained: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    torch.save(trained.state_dict(), path)
    expected = "head.weight is 4×64 in the file and 7×64 in the model; .*only the head differs: skip_head=True"
    with pytest.raises(InputError, match=expected):
        fresh(classes=7, weights=path)
    module, untouched = fresh(classes=7, weights=path, skip_head=True), fresh(classes=7)
    for name, tensor in module.state_dict().items():
        source = untouched if name.startswith("head.") else trained
        assert torch.equal(tensor, source.state_dict()[name]), name


def test_a_file_without_a_head_needs_skip_head(trained: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({name: value for name, value in trained.state_dict().items() if name[:4] != "head"}, path)
    with pytest.raises(InputError, match=r"head.weight \(4×64\) is not in the file.*skip_head=True"):
        fresh(weights=path)
    fresh(weights=path, skip_head=True)


def test_a_file_of_which_only_another_head_fits_is_refused(tmp_path: Path) -> None:
    torch.save(builder("logistic", SHAPE, 7)().state_dict(), tmp_path / "w.pt")
    with pytest.raises(InputError, match="has nothing but another head for this model, which keeps its own"):
        check_weights(builder("logistic", SHAPE, 4)(), tmp_path / "w.pt", skip_head=None)


def test_skip_head_needs_a_model_that_names_its_head(trained: nn.Module, tmp_path: Path) -> None:
    torch.save(trained.state_dict(), tmp_path / "w.pt")
    with pytest.raises(InputError, match="has no level 'head'"):
        load_weights(nn.Linear(2, 2), tmp_path / "w.pt", skip_head=True)


def test_an_error_names_the_first_tensors_and_leaves_the_model_unchanged(trained: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    torch.save(builder("wrn-10-2", SHAPE, 4)().state_dict(), path)
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    expected = r"group1.0.convolution1.weight is 32×16×3×3 in the file and 16×16×3×3 in the model; .*and \d+ more"
    with pytest.raises(InputError, match=expected) as caught:
        load_weights(trained, path)
    assert "skip_head" not in str(caught.value)
    assert same(before, trained.state_dict())
    with pytest.raises(InputError, match=r"group1.0.convolution1.weight is 32×16×3×3"):
        fresh(weights=path, skip_head=True)


def test_an_extra_tensor_is_named(trained: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    torch.save({**trained.state_dict(), "extra": torch.zeros(2, 3)}, path)
    with pytest.raises(InputError, match=r"extra \(2×3\) is not in the model"):
        load_weights(trained, path)


class Anything:
    """Not a tensor; loading it would run code from the file."""


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".bin"])
def test_a_damaged_file_is_refused(trained: nn.Module, tmp_path: Path, suffix: str) -> None:
    whole = tmp_path / f"whole{suffix}"
    if suffix == ".safetensors":
        save_file(trained.state_dict(), whole)
    else:
        torch.save(trained.state_dict(), whole)
    content = whole.read_bytes()
    broken = tmp_path / f"broken{suffix}"
    for damage in (b"", b"not weights at all", content[: len(content) // 2], content[:10], b"\x80" * 100):
        broken.write_bytes(damage)
        with pytest.raises(InputError, match="cannot be read as a file of tensors"):
            load_weights(trained, broken)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(trained: nn.Module, tmp_path: Path, value: float) -> None:
    tensors = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    name = next(iter(tensors))
    tensors[name].view(-1)[0] = value
    save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(InputError, match=f"holds NaN or an infinite number in {name}; name a file without"):
        load_weights(trained, tmp_path / "w.safetensors")


def test_a_file_without_permission_is_not_called_damaged(
    trained: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    save_file(trained.state_dict(), tmp_path / "w.safetensors")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match=r"w.safetensors' cannot be read: Permission denied$"):
        load_weights(trained, tmp_path / "w.safetensors")


def test_code_in_a_file_is_not_run(trained: nn.Module, tmp_path: Path) -> None:
    torch.save({"thing": Anything()}, tmp_path / "w.pt")
    with pytest.raises(InputError, match="more than the state_dict"):
        load_weights(trained, tmp_path / "w.pt")


@pytest.mark.parametrize("content", [[1, 2], {}, {"state_dict": {}}, torch.zeros(2)])
def test_a_file_without_a_state_dict_is_refused(trained: nn.Module, tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(InputError, match="contains no state dict"):
        load_weights(trained, tmp_path / "w.pt")


def test_a_state_dict_with_numbers_is_refused(trained: nn.Module, tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "w.pt")
    with pytest.raises(InputError, match="contains 'epoch' of type int, but a state dict has only tensors"):
        load_weights(trained, tmp_path / "w.pt")


def test_unknown_endings_and_missing_files_are_refused(trained: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"must end in .safetensors, .pt, .pth, .th, .bin"):
        load_weights(trained, tmp_path / "w.onnx")
    with pytest.raises(InputError, match="there is no file"):
        load_weights(trained, tmp_path / "w.pt")
    (tmp_path / "folder.pt").mkdir()
    with pytest.raises(InputError, match="there is no file"):
        load_weights(trained, tmp_path / "folder.pt")


def test_half_precision_weights_are_widened(trained: nn.Module, tmp_path: Path) -> None:
    torch.save({name: value.half() for name, value in trained.state_dict().items()}, tmp_path / "w.pt")
    module = fresh(weights=tmp_path / "w.pt")
    assert module.state_dict()["head.weight"].dtype == torch.float32


# The first names of the published files, and their last, which is the head.
PUBLISHED = {
    "efficientnet-lite0": ("_conv_stem.weight", (3, 33, 33)),
    "squeezenet": ("features.0.weight", (3, 32, 32)),
    "resnet-18": ("conv1.weight", (3, 96, 96)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_has_the_same_tensors_in_the_same_order(name: str, tmp_path: Path) -> None:
    first, shape = PUBLISHED[name]
    options = {"width": 4} if name == "resnet-18" else {}
    torch.manual_seed(3)
    source = builder(name, shape, 7, **options)()
    state = {key: value for key, value in source.state_dict().items() if not key.endswith("num_batches_tracked")}
    published = {f"layer{number}": value for number, value in enumerate(state.values())}
    published = {first: published.pop("layer0"), **published}
    if name == "squeezenet":  # its head is a convolution
        published[f"layer{len(state) - 2}"] = state["head.weight"][:, :, None, None]
    torch.save(published, tmp_path / "published.pth")
    loaded = builder(name, shape, 7, weights=tmp_path / "published.pth", **options)()
    assert same({**loaded.state_dict(), **state}, loaded.state_dict())
    other = builder(name, shape, 2, weights=tmp_path / "published.pth", skip_head=True, **options)()
    assert torch.equal(next(iter(other.state_dict().values())), next(iter(state.values())))
    with pytest.raises(InputError, match="only the head differs"):
        builder(name, shape, 2, weights=tmp_path / "published.pth", **options)
    if name == "squeezenet":  # a projection is new like the head
        projected = builder(name, shape, 7, weights=tmp_path / "published.pth", skip_head=True, projection=5)()
        below = [key for key in state if not key.startswith("head.")]
        assert all(torch.equal(projected.state_dict()[key], state[key]) for key in below)
