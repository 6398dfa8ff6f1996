"""Every method has a reference loop: a test that compares it with plain code of its paper's formulas."""

from __future__ import annotations

from importlib import import_module

import pytest

from undergrowth.methods import METHODS

AVERAGING, FEW_SHOT = "test_reference_averaging", "test_reference_few_shot"
FINE_TUNING, DISTILLATION = "test_reference_fine_tuning", "test_reference_distillation"
ASYNCHRONOUS, CORRECTIONS = "test_reference_asynchronous", "test_reference_corrections"
FAIRNESS, PERSONAL = "test_reference_fairness", "test_reference_personalisation"
PRUNING = "test_reference_pruning"
HEAD_TUNING = "test_head_tuning"
WIDTH = "test_reference_width::test_a_run_is_what_the_formulas_say"

# Method → file in this folder and test. A new method adds its line.
REFERENCE_LOOPS = {
    "local": f"{AVERAGING}::test_local",
    "central": f"{AVERAGING}::test_central",
    "adapt": "test_reference_adaptation::test_adapt",
    "fedavg": f"{AVERAGING}::test_fedavg",
    "fedprox": f"{AVERAGING}::test_fedprox",
    "fedsgd": f"{CORRECTIONS}::test_fedsgd",
    "scaffold": f"{CORRECTIONS}::test_scaffold",
    "fednova": f"{CORRECTIONS}::test_fednova",
    "feddyn": f"{CORRECTIONS}::test_feddyn",
    "fedbn": f"{CORRECTIONS}::test_fedbn",
    "fedavgm": f"{AVERAGING}::test_fedavgm",
    "fedadam": f"{AVERAGING}::test_fedadam",
    "fedyogi": f"{AVERAGING}::test_fedyogi",
    "fedadagrad": f"{AVERAGING}::test_fedadagrad",
    "fedasync": f"{ASYNCHRONOUS}::test_fedasync",
    "fedbuff": f"{ASYNCHRONOUS}::test_fedbuff",
    "hierfavg": "test_hierfavg::test_hierfavg",
    "bhfl": "test_bhfl::test_bhfl",
    "moon": f"{AVERAGING}::test_moon",
    "fedfsc": f"{FEW_SHOT}::test_fedfsc",
    "fedfsc-plus": f"{FEW_SHOT}::test_fedfsc_plus",
    "fscprox": f"{FEW_SHOT}::test_fscprox",
    "fedft": f"{FINE_TUNING}::test_fedft",
    "fedft-rds": f"{FINE_TUNING}::test_fedft_rds",
    "fedft-eds": f"{FINE_TUNING}::test_fedft_eds",
    "fedncm": f"{HEAD_TUNING}::test_fedncm",
    "lp": f"{HEAD_TUNING}::test_lp",
    "ft": f"{HEAD_TUNING}::test_ft",
    "fedncm-ft": f"{HEAD_TUNING}::test_ft",
    "fedsplit": f"{FINE_TUNING}::test_fedsplit",
    "heterofl": WIDTH,
    "fjord": WIDTH,
    "fedrolex": WIDTH,
    "fedmd": f"{DISTILLATION}::test_fedmd",
    "fedat": "test_fedat::test_fedat",
    "fedkad": f"{DISTILLATION}::test_fedkad",
    "qfedavg": f"{FAIRNESS}::test_qfedavg",
    "term": f"{FAIRNESS}::test_term",
    "pafl": "test_pafl::test_pafl",
    "interleaved": "test_interleaved::test_interleaved",
    "ditto": f"{PERSONAL}::test_ditto",
    "fedper": f"{PERSONAL}::test_fedper",
    "apfl": f"{PERSONAL}::test_apfl",
    "l2gd": f"{PERSONAL}::test_l2gd",
    "fedmezo": "test_fedmezo::test_fedmezo",
    "distmezo": "test_fedmezo::test_distmezo",
    "lora": "test_lora::test_lora",
    "slora": "test_lora::test_slora",
    "reft": f"{PRUNING}::test_reft",
    "fedkd": f"{PRUNING}::test_fedkd",
    "fl-pqsu": f"{PRUNING}::test_fl_pqsu",
    "prunefl": f"{PRUNING}::test_prunefl",
    "kmeans-clusters": "test_clusters::test_kmeans_clusters",
    "ifca": "test_clusters::test_ifca",
    "auxo": "test_auxo::test_auxo",
    "mutual-groups": "test_mutual_groups::test_mutual_groups",
}


def test_every_method_has_a_reference_loop() -> None:
    assert REFERENCE_LOOPS.keys() == METHODS.keys()


@pytest.mark.parametrize("name", REFERENCE_LOOPS)
def test_the_reference_loop_exists_and_runs_the_method(name: str) -> None:
    file, test = REFERENCE_LOOPS[name].split("::")
    module = import_module(f"tests.methods.{file}")
    assert callable(getattr(module, test, None)), f"{REFERENCE_LOOPS[name]} is not a test"
    assert getattr(module, METHODS[name].__name__, None) is METHODS[name], f"{file} does not import the method"
