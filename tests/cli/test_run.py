"""`undergrowth run`: experiment files, output, and the order of precedence of flags and settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import TINY, last_json
from undergrowth.cli.run import build_raw_experiment
from undergrowth.core import InputError
from undergrowth.runs import Store, config, experiment_file

KEYS = [
    "run", "method", "data", "model", "seed", "rounds", "clients", "engine", "accuracy", "loss", "bytes_down",
    "bytes_up", "flops", "simulated_seconds", "joules", "peak_device_bytes", "wall_seconds", "clients_per_second",
    "model_digest",
]  # fmt: skip


def test_tables_and_report(type_command) -> None:
    done = type_command("run", *TINY)
    assert done.exit_code == 0, done.output
    for words in ("accuracy", "loss", "sent down, all links", " kB", " MFLOP", " ms", " mJ", " /s"):
        assert words in done.stdout
    run = Store("runs").find("last")
    assert run in done.stdout
    assert (Path("runs") / run / "report.html").exists()
    assert "\x1b" not in done.output  # without a terminal, no colours and no progress bar


def test_json(type_command) -> None:
    done = type_command("run", *TINY, "--json")
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == 1
    found = last_json(done.stdout)
    assert list(found) == KEYS
    assert (found["method"], found["model"], found["rounds"], found["clients"]) == ("fedavg", "logistic", 2, 4)
    assert len(found["model_digest"]) == 64
    assert not (Path("runs") / found["run"] / "report.html").exists()


def test_nan_is_null_in_json(type_command) -> None:
    done = type_command("run", *TINY, "--json", "-s", "train.lr=1e30", "-s", "train.epochs=3")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1], parse_constant=lambda name: pytest.fail(name))
    assert list(found) == KEYS


def test_without_a_report(type_command) -> None:
    done = type_command("run", *TINY, "--no-report", "--out", "else where")
    assert done.exit_code == 0, done.output
    assert "--out 'else where'" in done.stdout  # in the command that writes a report
    assert not list(Path("else where").glob("*/report.html"))


def test_flags_override_settings_and_settings_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("method: fedprox\ntrain: {rounds: 1, lr: 0.3, batch: 8}\nrun: {seed: 1}\n")
    raw, dropped = build_raw_experiment(
        str(file), ["train.rounds=2", "train.lr=0.2", "run.seed=2", "method.mu=0.7"], {"seed": 3, "clients": None}
    )
    described = config.parse_experiment(raw)
    assert (described.train.rounds, described.train.lr, described.train.batch) == (2, 0.2, 8)
    assert described.run.seed == 3
    assert described.method.options == {"mu": 0.7}
    assert dropped == []


def test_options_of_another_method_are_dropped(type_command) -> None:
    experiment = {
        "method": {"name": "fedprox", "mu": 0.1},
        "data": {"name": "npz", "path": "nowhere.npz", "clients": 4},
        "model": {"name": "cnn", "hidden": 16},
        "train": {"rounds": 1},
    }
    Path("my.yaml").write_text(yaml.safe_dump(experiment))
    done = type_command("run", "my.yaml", "--method", "fedavg", "--data", "digits", "--model", "logistic", "--json")
    assert done.exit_code == 0, done.output
    assert last_json(done.stdout)["clients"] == 4
    assert "method.mu, data.path, model.hidden" in done.stderr
    raw, dropped = build_raw_experiment("my.yaml", [], {"method": "fedprox"})
    assert raw["method"] == {"name": "fedprox", "mu": 0.1}
    assert dropped == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("# nothing but a comment\n", "is empty"),
        ("method: [fedavg", "is not YAML"),
        pytest.param("train: {rounds: " + 5001 * "9" + "}", "a number has 5001 digits; write at most", id="digits"),
        pytest.param("train: " + 2000 * "[" + 2000 * "]", "are nested too deeply", id="nested"),
        ("train: {lr: &a [1, *a]}", "a list or a mapping in it contains itself"),
        (
            "a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]\n"
            + "".join(
                f"{new}: &{new} [{','.join(10 * ['*' + old])}]\n" for old, new in zip("abcdefg", "bcdefgh", strict=True)
            ),
            "by its aliases it has more than 2,000,000 values",
        ),
        ("trian:", "trian is not a known key; did you mean 'train'?"),
        ("- a\n- list\n", "not a list"),
        ("just a text", "not a text"),
        ("trian: {rounds: 3}", "trian is not a known key; did you mean 'train'?"),
        ("train: {round: 3}", "train.round is not a known key; did you mean 'rounds'?"),
        ("train: {rounds: many}", "train.rounds 'many'"),
        ("train: {rounds: 0}", "train.rounds 0"),
        ("train: 5", "train 5 should be a section with keys such as rounds"),
        ("train: abc", "train 'abc' should be a section with keys such as rounds"),
        ("method: 5", "method 5 should be a name, or a section with keys such as name"),
        ("model: {ladder: [5]}", "model.ladder.0 5 should be"),
        ("model: {ladder: [{hidden: 5}]}", "model.ladder.0.name is missing in {'hidden': 5}"),
        ("model: {ladder: {cnn: 0}}", "model.ladder.0.count 0 should be greater than or equal to 1"),
        ("model: {ladder: {cnn: }}", "model.ladder {'cnn': None} has a model without a count; write the number of dev"),
        (
            "model: {ladder: [mlp, {name: cnn, count: 3}]}",
            "has counts, but 'mlp' has none; give a count to every model",
        ),
        ("model: {ladder: {cnn: 3, mlp: 4}}", "the counts 3 + 4 add up to 7, and there are 20 devices; make both"),
        ("model: {ladder: {cmn: 20}}", "model.ladder: model: unknown name 'cmn'; did you mean 'cnn'?"),
        ("model: {ladder: [{name: cnn, init: he}]}", "model.ladder: model cnn: init 'he' is not known; did you"),
        ("model: {name: cnn, init: kaiming}", "model cnn: init 'kaiming' is not known; choose one of: by-size, he-in"),
        ("1: 2", "the key 1 must be a word, such as method"),
        ("train: {1: 2}", "train: the key 1 must be a word, such as rounds"),
        ("on: {a: 2}", "the key True must be a word"),
        ("method: {name: fedprox, mo: 1}", "did you mean 'mu'?"),
        ("method: {name: fedprox, mu: -1}", "method.mu -1"),
        ("train: {rounds: yes}", "train.rounds True should be a number, not true or false"),
        ("train:\n  rounds: 2\n  lr: 1\n  rounds: 3\n", "'my.yaml' has 'rounds' twice (lines 2 and 4); keep one"),
        ("train: {rounds: 2, rounds: 3}", "has 'rounds' twice (line 1)"),
        ("method: fedavg\nmethod: fedprox\n", "has 'method' twice (lines 1 and 2)"),
        ("model: cmn", "did you mean 'cnn'?"),
        ("lr: 0.1", "lr is not a known key; did you mean 'train.lr'?"),
        ("train: {learning_rate: 0.1}", "train.learning_rate is not a known key; did you mean 'lr'?"),
        ("train: {deadline: 3}", "train.deadline is not a known key; did you mean 'fleet.deadline'?"),
        ("train: {lr: 0,1, rounds: 2}", "train.lr '0,1' has a decimal comma; write 0.1"),
        ("train:\n  lr: 0,05\n", "train.lr '0,05' has a decimal comma; write 0.05"),
        ("method:\n  name: fedprox\n  mu: 0,1\n", "method.mu '0,1' has a decimal comma; write 0.1"),
    ],
)
def test_an_invalid_file(type_command, text: str, message: str) -> None:
    Path("my.yaml").write_text(text)
    done = type_command("run", "my.yaml", "--out", "kept")
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1 and done.stdout == ""
    assert not Path("kept").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "nowhere.yaml"), "there is no experiment file 'nowhere.yaml'"),
        (("run", ""), "the name of the experiment file is empty"),
        (("plan", ""), "the name of the experiment file is empty"),
        (("run", "~nouser/my.yaml"), "experiment file '~nouser/my.yaml' cannot be read"),
        (("run", "--out", "~nouser/x"), "out '~nouser/x' cannot be a folder"),
        (("list", "--out", "~nouser/x"), "out '~nouser/x' cannot be a folder"),
        (("run", "--out", ""), "run.out '' should have at least 1 character"),
        (("run", "--device", "mps"), "run.device 'mps' is not a device that runs can be on; write cpu, cuda or cuda:0"),
        (("run", "fedprox"), "for the method of that name write --method fedprox"),
        (("run", "--rounds", "many"), "--rounds"),
        (("run", "--clients", "0"), "data.clients 0"),
        (("run", "--seed", "-1"), "run.seed -1"),
        (("run", "--method", "fedprx"), "did you mean 'fedprox'?"),
        (("run", "--learning-rate", "1"), "--learning-rate; did you mean --lr?"),
        (("run", "-s", "learning_rate=1"), "learning_rate is not a known key; did you mean 'train.lr'?"),
        (("run", "--data", "MNISt"), "did you mean 'mnist'?"),
        (("run", "--partition", "non-iid"), "did you mean 'dirichlet:0.1'?"),
        (("run", "--model", "resnet50"), "choose one of: cnn, efficientnet-b0, efficientnet-lite0, "),
        (("plan", "--topology", "ring"), "topology 'ring'"),
        (("run", "--data", "digit"), "did you mean 'digits'?"),
        (("run", "--engine", "cereal"), "did you mean 'serial'?"),
        (("run", "--device", "abacus"), "abacus"),
        (("run", "-s", "rounds"), "must be path=value"),
        (("run", "-s", "train.lr=[1"), "is not YAML"),
        (("run", "-s", "train={rounds: 1, rounds: 2}"), "has 'rounds' twice (line 1); keep one of them"),
        (("run", "-s", "train=abc", "--rounds", "1"), "train.rounds: 'train' is 'abc', which has no keys to set"),
        (("run", "-s", "train.lr=0.1", "-s", "train.lr.more=1"), "train.lr.more"),
        pytest.param(("run", "-s", f"train.rounds={5001 * '9'}"), "a number has 5001 digits", id="digits"),
        pytest.param(("run", "-s", f"train.lr={2000 * '['}{2000 * ']'}"), "are nested too deeply", id="nested"),
        (("run", "--model", "wrn-1000000-1"), "model wrn-1000000-1: the depth of a Wide ResNet must be at most 1000"),
        (("reproduce", "4.7", "--device", "nope"), "run.device 'nope' is not a device that runs can be on; write cpu"),
        (("reproduce", "4.7", "--estimate", "--device", "nope"), "run.device 'nope' is not a device that runs can be"),
        (("topology", "star", "--clients", "0"), "data.clients 0 should be greater than or equal to 1"),
        (("topology", "star", "--clients", "-1"), "data.clients -1 should be greater than or equal to 1"),
        (("topology", "star", "--clients", "1000001"), "data.clients 1000001 is too many for a topology"),
        (("topology", "star", "--seed", "-1"), "run.seed -1 should be greater than or equal to 0"),
        (("topology", "tree:99999x99999"), "topology 'tree:99999x99999' has more than 1000000 devices"),
        (("topology", "tree:2x2", "-o", "."), "'.' is a folder; name a file, such as 'topology.svg'"),
        (("topology", "tree:2x2", "-o", "/"), "'/' is a folder; name a file, such as '/topology.svg'"),
        (("topology", "tree:2x2", "-o", "/dev/null"), "'/dev/null' cannot be written (it is not a regular file); name"),
        (("topology", "tree:2x2", "-o", "/dev/null/a.svg"), "('/dev/null' is not a folder); name another file"),
        (("topology", "tree:2x2", "-o", "~nouser/a.svg"), "'~nouser/a.svg' cannot be written"),
        (("datasets", "digits", "--plot", "."), "'.' is a folder; name a file, such as 'partition.html'"),
        (("datasets", "digits", "--plot", "/dev/null/a.html"), "('/dev/null' is not a folder); name another file"),
        (("run", "--wrong"), "--wrong"),
        (("rum",), "rum"),
        (("resume",), "RUN"),
        (("resume", "last", "--out", "nowhere"), "nowhere"),
        (("list", "--out", "nowhere"), "holds no runs"),
        (("report", "last", "-o"), "-o"),
    ],
)
def test_wrong_arguments(type_command, words: tuple[str, ...], message: str) -> None:
    done = type_command(*words)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1 and done.stdout == ""
    assert [path for path in Path().iterdir() if not path.name.startswith(".coverage")] == []


def test_a_file_instead_of_the_folder(type_command) -> None:
    Path("kept").write_text("not a folder")
    done = type_command("run", *TINY, "--out", "kept")
    assert done.exit_code == 2
    assert "kept" in done.stderr and "cannot be written" in done.stderr
    done = type_command("list", "--out", "kept")
    assert done.exit_code == 2


def test_a_file_instead_of_the_store(type_command) -> None:
    Path("kept").mkdir()
    Path("kept/undergrowth.sqlite").write_text("not a store, but long enough to be taken for one" * 100)
    for words in (("run", *TINY), ("list",), ("show", "last"), ("resume", "last")):
        done = type_command(*words, "--out", "kept")
        assert done.exit_code == 2, done.output
        assert "kept" in done.stderr


def test_an_empty_section_has_its_defaults(type_command) -> None:
    Path("my.yaml").write_text("method:\ndata:\nmodel:\npublic:\nfleet:\nlinks:\ntopology:\ntrain:\nrun:\n")
    assert config.parse_experiment(experiment_file.read("my.yaml")) == config.Experiment()


def test_a_key_overrides_a_merged_one(type_command) -> None:
    Path("my.yaml").write_text("a: &a {rounds: 2, lr: 1}\nb: {c: &b {<<: *a, lr: 2}}\nd: {<<: *b, rounds: 3}\n")
    assert experiment_file.read("my.yaml")["d"] == {"rounds": 3, "lr": 2}


def test_assign_rejects_a_value_without_keys() -> None:
    with pytest.raises(InputError, match="'train' is 5"):
        experiment_file.assign({"train": 5}, "train.lr", 1)
