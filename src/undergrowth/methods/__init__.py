"""The methods, one file each, and the table of them."""

from __future__ import annotations

from undergrowth.core import Method
from undergrowth.methods.adapt import Adapt
from undergrowth.methods.apfl import APFL
from undergrowth.methods.auxo import Auxo
from undergrowth.methods.bhfl import BHFL
from undergrowth.methods.bounds import Central, Local
from undergrowth.methods.distmezo import DistMeZO
from undergrowth.methods.ditto import Ditto
from undergrowth.methods.fedasync import FedAsync
from undergrowth.methods.fedat import FedAT
from undergrowth.methods.fedavg import FedAvg
from undergrowth.methods.fedavgm import FedAvgM
from undergrowth.methods.fedbn import FedBN
from undergrowth.methods.fedbuff import FedBuff
from undergrowth.methods.feddyn import FedDyn
from undergrowth.methods.fedfsc import FedFSC, FedFSCPlus, FSCProx
from undergrowth.methods.fedft import LP, FedFT, FedFTEDS, FedFTRDS
from undergrowth.methods.fedkad import FedKAD
from undergrowth.methods.fedmd import FedMD
from undergrowth.methods.fedmezo import FedMeZO
from undergrowth.methods.fedncm import FedNCM
from undergrowth.methods.fednova import FedNova
from undergrowth.methods.fedopt import FedAdagrad, FedAdam, FedYogi
from undergrowth.methods.fedper import FedPer
from undergrowth.methods.fedprox import FedProx
from undergrowth.methods.fedrolex import FedRolex
from undergrowth.methods.fedsgd import FedSGD
from undergrowth.methods.fedsplit import FedSplit
from undergrowth.methods.fjord import FjORD
from undergrowth.methods.fl_pqsu import FLPQSU
from undergrowth.methods.ft import FT, FedNCMFT
from undergrowth.methods.heterofl import HeteroFL
from undergrowth.methods.hierfavg import HierFAVG
from undergrowth.methods.ifca import IFCA
from undergrowth.methods.kmeans_clusters import KMeansClusters
from undergrowth.methods.l2gd import L2GD
from undergrowth.methods.lora import LoRA
from undergrowth.methods.moon import Moon
from undergrowth.methods.mutual_groups import MutualGroups
from undergrowth.methods.pafl import PaFL
from undergrowth.methods.prunefl import PruneFL
from undergrowth.methods.qfedavg import QFedAvg
from undergrowth.methods.reft import REFT, FedKD
from undergrowth.methods.scaffold import Scaffold
from undergrowth.methods.slora import SLoRA
from undergrowth.methods.term import Term

METHODS: dict[str, type[Method]] = {
    "local": Local,
    "central": Central,
    "adapt": Adapt,
    "fedavg": FedAvg,
    "fedsgd": FedSGD,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "fednova": FedNova,
    "feddyn": FedDyn,
    "fedbn": FedBN,
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fedadagrad": FedAdagrad,
    "fedasync": FedAsync,
    "fedbuff": FedBuff,
    "hierfavg": HierFAVG,
    "bhfl": BHFL,
    "moon": Moon,
    "fedfsc": FedFSC,
    "fedfsc-plus": FedFSCPlus,
    "fscprox": FSCProx,
    "fedft": FedFT,
    "fedft-rds": FedFTRDS,
    "fedft-eds": FedFTEDS,
    "fedncm": FedNCM,
    "lp": LP,
    "ft": FT,
    "fedncm-ft": FedNCMFT,
    "fedsplit": FedSplit,
    "heterofl": HeteroFL,
    "fjord": FjORD,
    "fedrolex": FedRolex,
    "fedmd": FedMD,
    "fedat": FedAT,
    "fedkad": FedKAD,
    "qfedavg": QFedAvg,
    "term": Term,
    "ditto": Ditto,
    "fedper": FedPer,
    "apfl": APFL,
    "l2gd": L2GD,
    "pafl": PaFL,
    "fedmezo": FedMeZO,
    "distmezo": DistMeZO,
    "lora": LoRA,
    "slora": SLoRA,
    "reft": REFT,
    "fedkd": FedKD,
    "fl-pqsu": FLPQSU,
    "prunefl": PruneFL,
    "kmeans-clusters": KMeansClusters,
    "ifca": IFCA,
    "auxo": Auxo,
    "mutual-groups": MutualGroups,
}

__all__ = [
    "APFL", "BHFL", "FLPQSU", "FT", "IFCA", "L2GD", "LP", "METHODS", "REFT", "Adapt", "Auxo", "Central", "DistMeZO",
    "Ditto", "FSCProx", "FedAT", "FedAdagrad", "FedAdam", "FedAsync", "FedAvg", "FedAvgM", "FedBN", "FedBuff", "FedDyn",
    "FedFSC", "FedFSCPlus", "FedFT", "FedFTEDS", "FedFTRDS", "FedKAD", "FedKD", "FedMD", "FedMeZO", "FedNCM",
    "FedNCMFT", "FedNova", "FedPer", "FedProx", "FedRolex", "FedSGD", "FedSplit", "FedYogi", "FjORD", "HeteroFL",
    "HierFAVG", "KMeansClusters", "LoRA", "Local", "Moon", "MutualGroups", "PaFL", "PruneFL", "QFedAvg", "SLoRA",
    "Scaffold", "Term",
]  # fmt: skip
