"""Arguments of `run`, `plan`, `load` and `resume`: which are accepted, and which are refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import undergrowth as ug
from undergrowth.core import InputError

from .objects import Own, dataset, linear

WRONG = [
    ({"links": "int8"}, """links 'int8' must be a dictionary, such as links={"up": "int8"}"""),
    ({"method": "fedprox", "options": "mu"}, """options 'mu' must be a dictionary, such as options={"mu": 0.1}"""),
    ({"data_options": [1]}, "data_options [1] must be a dictionary"),
    ({"model_options": 3}, "model_options 3 must be a dictionary"),
    ({"method": None}, "method: None is neither a name nor a Method; `undergrowth methods` lists the names"),
    ({"data": None}, "data: None is neither a name nor a Dataset nor a Population; `undergrowth datasets` lists"),
    ({"model": None}, "model: None is neither a name nor callable; `undergrowth models` lists the names"),
    ({"fleet": ""}, "fleet.name '' should have at least 1 character"),
    ({"topology": ""}, "topology '' should be star, tree:4x5, a file, or the keys"),
    ({"out": ""}, "run.out '' should have at least 1 character"),
    ({"out": "~nouser/x"}, "out '~nouser/x' cannot be a folder"),
    ({"out": "a\0b"}, "cannot be written to"),
]


@pytest.mark.parametrize(("settings", "words"), WRONG, ids=[str(settings) for settings, _ in WRONG])
def test_an_argument_of_the_wrong_kind_is_refused(run, out, settings, words):
    with pytest.raises(InputError) as caught:
        run(**settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not Path(out).exists()


def test_plan_refuses_objects_that_are_not_methods():
    for odd in (3, [3], [None]):
        with pytest.raises(InputError, match=r"method: .* is neither a name nor a Method"):
            ug.plan(odd, model="logistic", clients=4)


@pytest.mark.parametrize("odd", [None, 3, ""])
def test_a_run_id_that_is_not_text_is_refused(run, out, odd):
    run(rounds=1)
    for look in (ug.load, ug.resume):
        with pytest.raises(InputError, match=rf"run {odd!r} must be the id of a run, the beginning of one, or 'last'"):
            look(odd, out=out)


def test_paths_may_be_path_objects(run, out, tmp_path):
    x, y = np.random.default_rng(0).random((40, 6), dtype=np.float32), np.arange(40) % 3
    np.savez(tmp_path / "own.npz", x=x, y=y)
    result = run(data="npz", path=tmp_path / "own.npz", out=Path(out), rounds=1)
    assert ug.load(result.run, out=Path(out)).summary == result.summary
    assert ug.resume(result.run, out=Path(out)).summary == result.summary


def test_a_dataset_object_takes_holdout_and_nothing_else(run, out):
    given = {"data": dataset(80), "model": linear, "rounds": 1, "partition": "iid"}
    assert sum(client["samples"] for client in run(**given, data_options={"holdout": 0.0}).clients) == 80
    assert sum(client["samples"] for client in run(**given, data_options={"holdout": 0.5}).clients) == 40
    with pytest.raises(InputError, match=r"data.holdout 1 should be less than 1"):
        run(**given, data_options={"holdout": 1})
    with pytest.raises(InputError, match="data: options go with a name"):
        run(**given, data_options={"holdout": 0.5, "classes": 3})
    with pytest.raises(InputError, match="data: options go with a name"):
        run(data=Own(), model=linear, data_options={"holdout": 0.5})
