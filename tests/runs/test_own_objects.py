"""Models, methods and data of the user by `module:object`: named in files, recorded, resumed, refused in a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import undergrowth as ug
from undergrowth.cli.app import app
from undergrowth.core import InputError
from undergrowth.runs import Store
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.engine_builder import engine_settings
from undergrowth.runs.federation_builder import federate
from undergrowth.runs.planning import default_methods

from .objects import digest

SOURCE = """
from dataclasses import dataclass
import numpy as np
from torch import nn
from undergrowth.core import Method, option
from undergrowth.data import Dataset
from undergrowth.learning import AveragingServer, GradientClient


class Net(nn.Module):
    def __init__(self, hidden=4):
        super().__init__()
        self.hidden, self.out = nn.Linear(3, hidden), nn.Linear(hidden, 2)

    def forward(self, x):
        return self.out(self.hidden(x).relu())


@dataclass(frozen=True)
class Plain(Method):
    size: float = option(0.5, "a number", above=0)
    client = GradientClient()
    server = AveragingServer()


def load(samples=120, path=None):
    x = np.random.default_rng(0).normal(size=(samples, 3)).astype("float32")
    y = (x.sum(1) > 0).astype("int64")
    return Dataset("mine", x[20:], y[20:], x[:20], y[:20], 2)


class Inner:
    net = Net


def broken(**options):
    raise RuntimeError("no such thing")


def ends(**options):
    raise SystemExit(4)


plain, number, module = Plain(), 3, Net()
"""
NUMBERS = count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module in the current folder, a new one for each test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"own_parts_{next(NUMBERS)}"
    Path(f"{name}.py").write_text(SOURCE)
    yield name
    sys.modules.pop(name, None)


def experiment(module: str, rounds: int = 3) -> dict[str, Any]:
    return {
        "method": {"name": f"{module}:Plain", "size": 0.25},
        "data": {"name": f"{module}:load", "samples": 100, "clients": 4, "partition": "iid"},
        "model": {"name": f"{module}:Net", "hidden": 8},
        "train": {"rounds": rounds},
        "run": {"engine": "serial"},
    }


def arguments(module: str) -> dict[str, Any]:
    raw = experiment(module)
    return {
        "method": raw["method"]["name"], "options": {"size": 0.25}, "data": raw["data"]["name"], "clients": 4,
        "partition": "iid", "data_options": {"samples": 100}, "model": raw["model"]["name"],
        "model_options": {"hidden": 8},
    }  # fmt: skip


def test_names_give_what_objects_give(run, module):
    named = run(**arguments(module))
    own = sys.modules[module]
    given = run(method=own.Plain(0.25), data=own.load(100), partition="iid", model=lambda: own.Net(8))
    assert digest(named) == digest(given)
    assert named.method == f"{module}:Plain" and named.data == "mine"
    assert named.model.hidden.out_features == 8 and type(ug.load(named.run, named.folder.parent).model) is own.Net
    assert ":" not in named.run  # a folder has this name


def test_the_run_records_module_name_and_hash(run, out, module):
    run(**arguments(module))
    sources = Store(out).run(Store(out).find("last"))["experiment"]["sources"]
    assert [(each["section"], each["module"], each["name"]) for each in sources] == [
        ("method", module, "Plain"), ("data", module, "load"), ("model", module, "Net"),
    ]  # fmt: skip
    assert {each["sha256"] for each in sources} == {sha256(SOURCE.encode()).hexdigest()}


def test_a_run_is_resumed_by_name_with_the_same_bits(run, interrupted, out, module):
    whole = run(**arguments(module), rounds=4)
    interrupted(experiment(module, rounds=4), 2)
    assert digest(ug.resume("last", out)) == digest(whole)


def test_a_changed_source_is_refused_unless_allowed(interrupted, out, module):
    interrupted(experiment(module), 1)
    Path(f"{module}.py").write_text(SOURCE + "# changed\n")
    with pytest.raises(InputError, match=f"source of {module}:Plain and {module}:load and {module}:Net has changed"):
        ug.resume("last", out)
    result = ug.resume("last", out, allow_changed_source=True)
    assert any("resumed with another source" in note for note in result.notes)


def test_a_missing_module_is_told_on_resume(interrupted, out, module):
    interrupted(experiment(module), 1)
    Path(f"{module}.py").unlink()
    del sys.modules[module]
    with pytest.raises(InputError, match=f"method '{module}:Plain': there is no module '{module}' in"):
        ug.resume("last", out)


@pytest.mark.parametrize("engine", ["processes", "vector"])
def test_every_engine_knows_the_module(run, module, engine):
    one, other = (run(**arguments(module), engine=each, rounds=2).model.state_dict() for each in ("serial", engine))
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-5)


def test_the_plan_prices_the_own_method_first(module):
    raw = experiment(module)
    rows = ug.plan(**arguments(module))
    assert {row["method"] for row in rows} == {raw["method"]["name"]}
    assert default_methods(parse_experiment(raw))[0] == raw["method"]["name"]


def test_instances_nested_names_and_rungs(module):
    raw = experiment(module)
    raw["method"] = f"{module}:plain"
    raw["model"] = {"name": f"{module}:Inner.net", "ladder": [{"name": f"{module}:Net", "hidden": 2}]}
    federation = federate(parse_experiment(raw))
    assert federation.method is sys.modules[module].plain
    assert list(federation.task.ladder) == [f"{module}:Net (hidden=2)"]


REFUSED: dict[str, tuple[str, Any, str]] = {
    "no module": ("model", "own_prts:Net", "there is no module 'own_prts' in '.*', and none is installed"),
    "no object": ("model", "M:Nett", "module 'M' has no 'Nett'; did you mean 'Net'?"),
    "no attribute of an object": ("model", "M:Inner.nett", "'Inner' has no 'nett'; did you mean 'net'?"),
    "a file": ("model", "./M.py:Net", "must be module:object with dotted Python names, such as M:Net"),
    "two words": ("model", "my module:Net", "with dotted Python names, such as mymodule:Net"),
    "nothing": ("model", "M:", "must be module:object with dotted Python names, such as M:Net"),
    "a number": ("model", "M:number", "is of type int; it must be or return an nn.Module"),
    "a module": ("model", "M:module", "is an nn.Module; name a class or function that returns a new one"),
    "not a model": ("model", "M:load", "returned a Dataset; it must return an nn.Module"),
    "not a method": ("method", "M:Net", "made a Net; it must be or return a Method"),
    "not data": ("data", "M:Net", "made a Net; it must be or return a Dataset or a Population"),
    "unknown argument": ("model", {"name": "M:Net", "hiden": 3}, "has no argument 'hiden'; did you mean 'hidden'?"),
    "failed": ("model", {"name": "M:broken", "a": 1}, r"M:broken\(a=1\) failed: RuntimeError: no such thing"),
    "failed data": ("data", "M:broken", r"data: M:broken\(\) failed: RuntimeError: no such thing"),
    "ended": ("model", "M:ends", r"model: M:ends\(\) failed: SystemExit: 4"),
    "ended data": ("data", "M:ends", r"data: M:ends\(\) failed: SystemExit: 4"),
    "ended method": ("method", "M:ends", r"method: M:ends\(\) failed: SystemExit: 4"),
    "unknown option": ("method", {"name": "M:Plain", "sise": 3}, "method.sise is not a known key; did you mean 'size'"),
    "option out of limits": ("method", {"name": "M:Plain", "size": 0}, "method.size 0.0 must be a finite number above"),
    "option of an instance": ("method", {"name": "M:plain", "size": 1}, "is an object and takes no arguments"),
}


@pytest.mark.parametrize(("section", "value", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_wrong_is_told_in_one_sentence(module, section, value, sentence):
    text = (
        json.dumps({**experiment(module), section: value}).replace("M:", f"{module}:").replace("M.py", f"{module}.py")
    )
    with pytest.raises(InputError, match=sentence.replace("M:", f"{module}:").replace("'M'", f"'{module}'")) as caught:
        federate(parse_experiment(json.loads(text)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("import nothing_of_this_name", "failed: No module named 'nothing_of_this_name'"),
        ("def net(:", "failed: SyntaxError"),
        ("import sys; sys.exit(1)", "failed: SystemExit: 1"),
    ],
)
def test_a_module_that_cannot_be_imported(module, source, sentence):
    Path(f"{module}.py").write_text(source)
    with pytest.raises(InputError, match=f"importing '{module}' {sentence}"):
        federate(parse_experiment(experiment(module)))


def test_another_module_of_the_same_name_is_not_taken_for_it(module):
    Path("json.py").write_text(SOURCE)
    with pytest.raises(InputError, match="already imported another module 'json'"):
        federate(parse_experiment({"model": "json:Net"}))


def test_resume_works_from_the_shell(interrupted, run, module):
    whole = run(**arguments(module))
    interrupted(experiment(module), 1)
    # With this variable Python itself does not look for modules in the current folder.
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "undergrowth", "resume", "last", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["model_digest"] == digest(whole)


def test_the_command_refuses_a_changed_source_unless_it_is_allowed(interrupted, module):
    interrupted(experiment(module), 1)
    Path(f"{module}.py").write_text(SOURCE + "# changed\n")
    done = CliRunner().invoke(app, ["resume", "last"])
    assert done.exit_code == 2 and "--allow-changed-source" in done.output and len(done.output.splitlines()) == 1
    done = CliRunner().invoke(app, ["resume", "last", "--allow-changed-source", "--no-report"])
    assert done.exit_code == 0 and "resumed with another source" in " ".join(done.output.split())


def test_analyses_and_the_command_of_a_run_need_no_objects(run, out, module):
    result = run(**arguments(module))
    numbers = ug.report.analyse(["last"], ["entropy"], out)["entropy"][result.run]
    assert "problem" not in numbers
    page = ug.report.write_report(["last"], out, "page.html").read_text()
    assert f"--method {module}:Plain --data {module}:load" in page and "-s model.hidden=8" in page


def test_ray_sends_the_code_of_the_module(module):
    """A worker on another machine cannot import the module."""
    pytest.importorskip("ray")
    from undergrowth.engines.ray_cluster.serialization import deserialize, send_source, serialize

    named = parse_experiment(experiment(module))
    federation = federate(named)
    assert engine_settings(named).modules == (module,)
    send_source((module,))
    sent = serialize((federation.task, federation.method))
    del sys.modules[module]
    Path(f"{module}.py").unlink()
    task, method = deserialize(sent)
    assert method.size == 0.25 and task.model.build().hidden.out_features == 8
