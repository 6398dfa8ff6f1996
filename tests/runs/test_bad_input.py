"""Wrong input is refused in one sentence, before anything starts and without leaving a run behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import undergrowth as ug
from undergrowth.core import InputError, Shard
from undergrowth.runs import store as stores

from .objects import Own, dataset, linear


def refused(run: Any, out: str, **settings: Any) -> str:
    with pytest.raises(InputError) as caught:
        run(**settings)
    sentence = str(caught.value)
    assert sentence
    assert "\n" not in sentence
    assert not Path(out).exists()  # refused before anything was written
    return sentence


NAMES = {
    "method": ({"method": "fedavgg"}, "method 'fedavgg'", "did you mean 'fedavg'?"),
    "method far off": ({"method": "zzzz"}, "method 'zzzz'", "choose one of: "),
    "engine": ({"engine": "seriel"}, "run.engine 'seriel'", "did you mean 'serial'?"),
    "partition": ({"partition": "dirichle:0.1"}, "partition 'dirichle:0.1'", "did you mean 'dirichlet'?"),
    "model": ({"model": "logistik"}, "model: unknown name 'logistik'", "did you mean 'logistic'?"),
    "data": ({"data": "digit"}, "'digit'", "did you mean 'digits'?"),
    "fleet": ({"fleet": "unifrm"}, "'unifrm'", "did you mean 'uniform'?"),
    "fleet of nobody": ({"fleet": "~nouser/f.yaml"}, "there is no file '~nouser/f.yaml'", "the name of a fleet"),
    "trace of nobody": ({"availability": "trace:~nouser/t.csv"}, "~nouser/t.csv", ""),
    "option": ({"method": "fedprox", "options": {"nu": 1}}, "method.nu", "did you mean 'mu'?"),
    "option of none": ({"method": "local", "options": {"mu": 1}}, "method.mu", "local has no options"),
    "data key": ({"data_options": {"client": 3}}, "'digits' has no option 'client'", "did you mean 'clients'?"),
    "public key": ({"public": {"name": "digits", "sampels": 3}}, "no option 'sampels'", "did you mean 'samples'?"),
    "public data": ({"public": "digit"}, "public: data set 'digit' is not known", "did you mean 'digits'?"),
    "lora": ({"model_options": {"lora": "abc"}}, "model.lora 'abc' should be a section", "keys such as rank"),
    "lora key": ({"model_options": {"lora": {"rnk": 4}}}, "model.lora.rnk is not a known key", "did you mean 'rank'?"),
    "lora rank": (
        {"model": "mlp", "model_options": {"lora": {"rank": 10**8}}},
        "model.lora: rank 100000000 is above the inputs and outputs of every layer",
        "write at most 200",
    ),
    "rank": ({"model": "mlp", "method": "lora", "options": {"rank": 2**31 - 1}}, "rank 2147483647", "at most 200"),
    "start data": ({"start": {"data": 5}}, "start.data 5 should be a name, or a section", "keys such as name"),
    "topology key": ({"topology": {1: 2}}, "topology {1: 2} should be star, tree:4x5, a file", "{servers: [4]}"),
    "model key of the section": (
        {"model_options": {"statistcs": "frozen"}},
        "unknown option 'statistcs'",
        "did you mean 'statistics'?",
    ),
    "model key": ({"model_options": {"nrom": "batch"}}, "unknown option 'nrom'", "did you mean 'norm'?"),
    "down": ({"links": {"down": "zip"}}, "links.down 'zip' is not known", "choose one of: bf16, fp16, int4, int8,"),
    "up": ({"links": {"up": "zip"}}, "links.up 'zip' is not known", "choose one of: bf16, fp16, int4, int8, topk"),
    "data option": ({"data_options": {"foo": 1}}, "'foo'", "train_samples"),
    "model option": ({"model": "mlp", "model_options": {"hiden": [4]}}, "'hiden'", "hidden"),
    **{
        f"weights {odd!r}": ({"model_options": {"weights": odd}}, "weights must be the path of a file, not", repr(odd))
        for odd in (3, True, [], {}, float("nan"), "")
    },
    **{
        f"skip_head {odd!r}": ({"model_options": {"skip_head": odd}}, "skip_head must be true or false, not", repr(odd))
        for odd in ("abc", -1, [1, 2], float("nan"))
    },
    "no such user": ({"model_options": {"weights": "~nouser/w.pt"}}, "weights '~nouser/w.pt'", "home directory"),
    "norm": ({"model_options": {"norm": ["batch"]}}, "norm ['batch'] is not supported", "choose one of"),
    "schedule": ({"schedule": "cosin"}, "train.schedule 'cosin'", "did you mean 'cosine'"),
    "optimiser": ({"optimiser": "sgdd"}, "train.optimiser 'sgdd'", "'sgd', 'adam' or 'adamw'"),
    "device": ({"device": "gpu0"}, "run.device 'gpu0'", "write cpu"),
    **{name: ({"device": name}, f"run.device '{name}'", "write cpu, cuda or") for name in ("mps", "xla", "meta")},
    "augment": ({"data_options": {"augment": "crop+flop"}}, "data.augment 'flop'", "did you mean 'flip'?"),
    "normalise": ({"data_options": {"normalise": "all"}}, "normalise is 'all'", "true, false or {mean"),
    "drop_last": ({"drop_last": 3}, "train.drop_last 3", "boolean"),
    "cached features": (
        {"method": "fedft", "options": {"cache_features": True}, "data_options": {"augment": "flip"}},
        "method.cache_features true",
        "data.augment: none",
    ),
    "topology": ({"topology": "ring"}, "topology 'ring'", "write star, or tree:4x5"),
}


@pytest.mark.parametrize(("settings", "what", "remedy"), NAMES.values(), ids=NAMES.keys())
def test_an_unknown_name_is_refused_with_the_nearest_right_one(run, out, settings, what, remedy):
    sentence = refused(run, out, **settings)
    assert what in sentence
    assert remedy in sentence


def test_an_option_of_a_method_as_an_argument_gets_the_way_to_give_it():
    with pytest.raises(
        InputError, match=r"mu is not an argument; .*an option of the method .* options=\{'mu': \.\.\.\}"
    ):
        ug.run("fedprox", mu=0.1)


def test_a_section_that_is_no_argument_is_refused():
    with pytest.raises(InputError, match="train is not an argument; its settings are, such as rounds"):
        ug.run(train={"lr": 0.5})


VALUES = [
    ("lr", 0, "train.lr 0 should be greater than 0"),
    ("lr", -0.1, "train.lr -0.1 should be greater than 0"),
    ("lr", float("nan"), "train.lr nan should be a finite number"),
    ("lr", float("inf"), "train.lr inf should be a finite number"),
    ("lr", "fast", "train.lr 'fast' should be a valid number"),
    ("sample", 0, "train.sample 0 should be greater than 0"),
    ("sample", 2, "train.sample 2 should be less than or equal to 1"),
    ("sample", float("nan"), "train.sample nan"),
    ("rounds", 0, "train.rounds 0 should be greater than or equal to 1"),
    ("rounds", 1.5, "train.rounds 1.5 should be a valid integer"),
    ("rounds", [3], "train.rounds [3] should be a valid integer"),
    ("epochs", 0, "train.epochs 0 should be"),
    ("batch", 0, "train.batch 0 should be"),
    ("momentum", 1, "train.momentum 1 should be less than 1"),
    ("weight_decay", -1, "train.weight_decay -1 should be"),
    ("deadline", 0, "fleet.deadline 0 should be greater than 0"),
    ("seed", -1, "run.seed -1 should be greater than or equal to 0"),
    ("seed", "x", "run.seed 'x' should be a valid integer"),
    ("clients", 0, "data.clients 0 should be greater than or equal to 1"),
    ("evaluate_every", 0, "run.evaluate_every 0 should be"),
    ("checkpoint_every", 0, "run.checkpoint_every 0 should be"),
    ("schedule", "step:0:2", "train.schedule 'step:0:2'"),
    ("partition", "dirichlet:0", "partition 'dirichlet:0' must be dirichlet:ALPHA"),
    ("partition", "dirichlet", "partition 'dirichlet' must be dirichlet:ALPHA"),
    ("partition", "classes:11", "K must be from 1 to 10"),
    ("partition", "natural", "has no field to group by"),
    ("topology", "tree:2x3", "topology 'tree:2x3' has room for 6 devices and there are 4; the numbers must multiply"),
    ("topology", "tree:4", "topology 'tree:4' is not known; write star, or tree:4x5"),
    ("topology", "tree:0x4", "topology 'tree:0x4' is not known; write star, or tree:4x5"),
    ("topology", 7, "topology 7 should be star, tree:4x5, a file, or the keys"),
    ("rounds", True, "train.rounds True should be a number, not true or false"),
    ("lr", True, "train.lr True should be a number, not true or false"),
    ("batch", False, "train.batch False should be a number, not true or false"),
    ("clients", True, "data.clients True should be"),
    ("deadline", True, "fleet.deadline True should be"),
    ("dropout", True, "fleet.dropout True should be"),
    ("seed", True, "run.seed True should be"),
    ("threads", True, "run.threads True should be"),
    ("public", {"samples": True}, "public.samples True should be"),
    ("batch", 2**63 - 1, "train.batch 9223372036854775807 should be less than or equal to 2147483647"),
    ("batch", 10**23, "train.batch 100000000000000000000000 should be less than or equal to 2147483647"),
    ("lr", 1e300, "train.lr 1e+300 should be less than or equal to 1e+30"),
    ("lr", 10**400, "train.lr 1000"),
    ("weight_decay", 1e300, "train.weight_decay 1e+300 should be less than or equal to 1e+30"),
    ("over_select", 1e308, "train.over_select 1e+308 should be less than or equal to 1000"),
    ("threads", 100000, "run.threads 100000 should be less than or equal to 1024"),
    ("options", {1: 2}, "method: the key 1 must be a word, such as name"),
    ("public", [1], "public [1] should be a name, or a section with keys such as name"),
    ("method", 7, "method: a int is neither a name nor a Method"),
    ("data", [1], "data: a list is neither a name nor a Dataset nor a Population"),
    ("model", 3, "model: a int is neither a name nor callable"),
]


@pytest.mark.parametrize(("name", "value", "words"), VALUES, ids=[f"{name}={value!r}" for name, value, _ in VALUES])
def test_an_impossible_value_is_refused_by_name(run, out, name, value, words):
    assert words in refused(run, out, **{name: value})


OPTIONS = [
    ("fedprox", {"mu": -1}, "method.mu -1.0 must be a finite number at least 0"),
    ("fedprox", {"mu": "x"}, "method.mu 'x' should be a valid number"),
    ("fedprox", {"mu": float("nan")}, "method.mu nan must be"),
    ("fedavg", {"server_lr": float("inf")}, "method.server_lr inf must be"),
    ("fedavgm", {"momentum": 1.0}, "method.momentum 1.0 must be a finite number at least 0 and below 1"),
    ("fedadam", {"tau": 0}, "method.tau 0.0 must be a finite number above 0"),
    ("fedadam", {"tau": 1e300}, "method.tau 1e+300 must be a finite number above 0 and at most 1e+15"),
    ("fedavg", {"server_lr": 1e300}, "method.server_lr 1e+300 must be at most 1e+30"),
    ("fedsplit", {"meta_lr": 1e300}, "method.meta_lr 1e+300 must be at most 1e+30"),
    ("fedfsc", {"few_shot_batch": 2**63 - 1}, "method.few_shot_batch 9223372036854775807 must be at most 2147483647"),
    ("fedfsc", {"few_shot_batch": 10**23}, "must be at most 2147483647"),
    ("fedprox", {"mu": True}, "method.mu True should be a number, not true or false"),
    ("fedsplit", {"meta_batch": True}, "method.meta_batch True should be a number, not true or false"),
    ("heterofl", {"ratios": [True, 0.5]}, "method.ratios [True, 0.5] should be a number, not true or false"),
]


def test_a_quorum_of_next_to_nothing_still_needs_one_device(run):
    assert [row["arrived"] for row in run(quorum=1e-12, fleet="mixed-edge").history] == [1, 1, 1]


@pytest.mark.parametrize(("method", "options", "words"), OPTIONS)
def test_an_impossible_option_of_a_method_is_refused(run, out, method, options, words):
    assert words in refused(run, out, method=method, options=options)


def test_a_method_object_with_an_impossible_option_is_refused_too(run, out):
    assert "method.mu -1" in refused(run, out, method=ug.methods.FedProx(mu=-1))
    assert "method.mu 'x'" in refused(run, out, method=ug.methods.FedProx(mu="x"))
    assert "method.mu True" in refused(run, out, method=ug.methods.FedProx(mu=True))
    assert "must be at most 2147483647" in refused(run, out, method=ug.methods.FedProx(mu=10**400))


def test_options_next_to_an_object_are_refused_instead_of_being_ignored(run, out):
    assert "options" in refused(run, out, method=ug.methods.FedProx(), options={"mu": 1})
    assert "data" in refused(run, out, data=dataset(), data_options={"a": 1})
    assert "model" in refused(run, out, data=dataset(), model=linear, model_options={"a": 1})


def test_more_clients_than_samples_are_refused(run, out):
    sentence = refused(run, out, data=dataset(10), clients=11, model=linear)
    assert "clients is 11, but data set 'clouds' has 10 training samples; there can be at most one device" in sentence


def test_another_number_of_clients_than_the_population_has_is_refused(run, out):
    assert "clients 5: the data object has 4 devices" in refused(run, out, data=Own(), clients=5, model=linear)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": torch.full((60, 6), float("nan"))}, "x[0] holds NaN"),
        ({"test_x": np.full((30, 6), np.inf, np.float32)}, "test_x[0] holds NaN or an infinite number"),
        ({"y": torch.full((60,), 3)}, "y[0] is 3; labels must be integers from 0 to 2"),
        ({"test_y": torch.full((30,), -1)}, "test_y[0] is -1; labels must be integers from 0 to 2"),
        ({"y": torch.zeros(59, dtype=torch.int64)}, "x has 60 samples and y has 59"),
        ({"test_x": torch.zeros(30, 5)}, "one test input has shape (5,), one training input (6,)"),
        ({"classes": 0}, "classes is 0"),
        ({"test_x": torch.zeros(30, 6, dtype=torch.uint8)}, "x holds features (torch.float32) and test_x pixels"),
        ({"x": np.zeros((60, 6), np.int32)}, "x holds tokens (int32) and test_x features (torch.float32)"),
    ],
)
def test_data_that_no_run_could_use_are_refused(run, out, changes, words):
    sentence = refused(run, out, data=dataset(**changes), model=linear)
    assert "data set 'clouds'" in sentence
    assert words in sentence


def test_a_population_with_nothing_to_train_or_to_test_on_is_refused(run, out):
    class Untested(Own):
        def central_test(self) -> Shard:
            return Shard(torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64))

    assert "no device has a sample" in refused(run, out, data=Own(sizes=(0, 0)), model=linear)
    assert "the central test set is empty" in refused(run, out, data=Untested(), model=linear)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_refused(run, out):
    assert "run.device 'cuda': torch finds no GPU on this machine; write cpu" in refused(run, out, device="cuda")


def test_an_output_folder_that_is_a_file_is_refused(run, tmp_path):
    place = tmp_path / "taken"
    place.write_text("a file")
    for out in (place, place / "below"):
        with pytest.raises(InputError, match=r"out '.*' cannot be written to .*; name a folder that can"):
            run(out=str(out))
    assert place.read_text() == "a file"


def test_a_read_only_output_folder_is_refused(run, tmp_path, monkeypatch):
    def refuse(*arguments: Any, **settings: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(stores.Path, "mkdir", refuse)
    with pytest.raises(InputError, match=r"cannot be written to .*Permission denied.*; name a folder that can"):
        run(out=str(tmp_path / "locked"))


def test_a_folder_with_runs_that_became_read_only_is_refused(run, tmp_path, monkeypatch):
    stores.Store(tmp_path, create=True).close()
    monkeypatch.setattr(stores.os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match=r"cannot be written to \(it is read-only\); name a folder that can"):
        run(out=str(tmp_path))


def test_a_store_that_cannot_be_written_is_refused(run, tmp_path):
    (tmp_path / stores.FILE).write_bytes(b"this is not a database, but long enough to be taken for one" * 20)
    with pytest.raises(InputError, match=r"cannot be written to .*not a database"):
        run(out=str(tmp_path))


def test_devices_with_names_that_cannot_be_told_apart_are_refused(run, out):
    class Twins(Own):
        devices = ("phone-0", "phone-0")

    class Server(Own):
        devices = ("server",)

        def size(self, device: str) -> int:
            return 8

        def train(self, device: str) -> Shard:
            return Own().train("phone-0")

        test = train

    assert "two devices have the same name" in refused(run, out, data=Twins(), model=linear)
    assert "'server' is the name of a server" in refused(run, out, data=Server(), model=linear)
