"""The contracts that methods, engines and topologies share."""

from undergrowth.core.asks import Answer, Ask, AskId, Lost, Partial, Receipt, Refused
from undergrowth.core.client import Batch, Carry, Client, LoopClient, Steps, Updates, joined, shares
from undergrowth.core.compound_reducers import Collect, Grouped, Named
from undergrowth.core.context import Context
from undergrowth.core.errors import InputError, RunError, nearest
from undergrowth.core.method import Fitted, Method
from undergrowth.core.model import Model, Output
from undergrowth.core.node import Command, Deadline, Drop, Node, RoundEnd
from undergrowth.core.options import MOST, MOST_WHOLE, check_options, option
from undergrowth.core.packet import Packet, Weights
from undergrowth.core.pytree import Each, State, map_leaves, map_tensors, moved, pack, tensors_in, unpack
from undergrowth.core.reducers import (
    PerCoordinateMean,
    Reducer,
    Sum,
    TiltedMean,
    WeightedMean,
    describe_misfit,
    fold,
)
from undergrowth.core.selection import Knowledge, Selection, Uniform, View, sampled
from undergrowth.core.selector import All, Selector
from undergrowth.core.server import Inner, Plan, Progress, Server, finite, not_finite
from undergrowth.core.shard import Shard
from undergrowth.core.task import Task, Train

__all__ = [
    "MOST",
    "MOST_WHOLE",
    "All",
    "Answer",
    "Ask",
    "AskId",
    "Batch",
    "Carry",
    "Client",
    "Collect",
    "Command",
    "Context",
    "Deadline",
    "Drop",
    "Each",
    "Fitted",
    "Grouped",
    "Inner",
    "InputError",
    "Knowledge",
    "LoopClient",
    "Lost",
    "Method",
    "Model",
    "Named",
    "Node",
    "Output",
    "Packet",
    "Partial",
    "PerCoordinateMean",
    "Plan",
    "Progress",
    "Receipt",
    "Reducer",
    "Refused",
    "RoundEnd",
    "RunError",
    "Selection",
    "Selector",
    "Server",
    "Shard",
    "State",
    "Steps",
    "Sum",
    "Task",
    "TiltedMean",
    "Train",
    "Uniform",
    "Updates",
    "View",
    "WeightedMean",
    "Weights",
    "check_options",
    "describe_misfit",
    "finite",
    "fold",
    "joined",
    "map_leaves",
    "map_tensors",
    "moved",
    "nearest",
    "not_finite",
    "option",
    "pack",
    "sampled",
    "shares",
    "tensors_in",
    "unpack",
]  # fmt: skip
