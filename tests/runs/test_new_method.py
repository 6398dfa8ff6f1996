"""A method in a file of its own, under forty lines, runs like those of the package."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import undergrowth as ug
from undergrowth.core import InputError

from . import signs
from .objects import digest
from .signs import SignVote


def test_the_file_is_short():
    assert len(Path(signs.__file__).read_text().splitlines()) < 40


def test_a_new_method_learns_and_its_price_is_counted(run):
    result = run(method=SignVote(size=0.05), partition="iid", rounds=10)
    parameters = 64 * 10 + 10
    assert result.accuracy > 0.6
    assert result.ledger.bytes_down == 10 * 4 * 4 * parameters
    assert result.ledger.bytes_up == 10 * 4 * parameters  # one byte for a sign
    assert result.method == "signvote"


def test_a_new_method_runs_in_a_tree(run):
    star = run(method=SignVote(), partition="iid")
    deep = run(method=SignVote(), partition="iid", topology="tree:2x2")
    state, other = star.model.state_dict(), deep.model.state_dict()
    assert all(torch.equal(state[name], other[name]) for name in state)  # whole numbers add up exactly


def test_a_new_method_can_be_resumed(run, interrupted, out):
    whole = run(method=SignVote(), rounds=4)
    tree = {"model": "logistic", "data": {"name": "digits", "clients": 4}, "train": {"rounds": 4}}
    interrupted(tree, 2, method=SignVote())
    assert digest(ug.resume("last", out, method=SignVote())) == digest(whole)


def test_the_options_of_a_new_method_are_checked(run):
    with pytest.raises(InputError, match=r"method\.size 0 must be a finite number above 0"):
        run(method=SignVote(size=0))
