"""The contracts that methods, engines and topologies share."""

from undergrowth.core.asks import Answer, Ask, AskId, Lost, Partial, Receipt, Refused
from undergrowth.core.augmentation import Augmentation
from undergrowth.core.client import Batch, Carry, Client, LoopClient, Steps, Updates, join_updates, split_limit
from undergrowth.core.commands import Command, Deadline, Drop, RoundEnd
from undergrowth.core.compound_reducers import Collect, Grouped, Named
from undergrowth.core.context import Context
from undergrowth.core.errors import InputError, RunError, RunWarning, describe_error, find_meant, suggest
from undergrowth.core.method import Method, ModelWeights, NodePlace, check_parts, check_state, personal_model
from undergrowth.core.model import Model, Output
from undergrowth.core.node import Node
from undergrowth.core.options import MAX_NUMBER, MAX_WHOLE_NUMBER, check_options, option
from undergrowth.core.packet import Packet, Weights
from undergrowth.core.pytree import LazyMapping, State, map_leaves, map_tensors, move_to, pack, tensors_in, unpack
from undergrowth.core.reducers import (
    PerCoordinateMean,
    Reducer,
    Sum,
    TiltedMean,
    WeightedMean,
    add_upload,
    describe_misfit,
)
from undergrowth.core.samplers import DeviceKnowledge, Sampler, UniformSampler, View, sample_children
from undergrowth.core.selector import AllSelector, Selector
from undergrowth.core.server import InnerServer, Plan, Progress, Server, are_finite, find_non_finite, model_in
from undergrowth.core.shard import Shard
from undergrowth.core.task import Task, Train

__all__ = [
    "MAX_NUMBER", "MAX_WHOLE_NUMBER", "AllSelector", "Answer", "Ask", "AskId", "Augmentation", "Batch", "Carry",
    "Client",
    "Collect", "Command", "Context", "Deadline", "DeviceKnowledge", "Drop", "Grouped", "InnerServer", "InputError",
    "LazyMapping", "LoopClient", "Lost", "Method", "Model", "ModelWeights", "Named", "Node", "NodePlace", "Output",
    "Packet",
    "Partial", "PerCoordinateMean", "Plan", "Progress", "Receipt", "Reducer", "Refused", "RoundEnd", "RunError",
    "RunWarning", "Sampler", "Selector", "Server", "Shard", "State", "Steps", "Sum", "Task", "TiltedMean", "Train",
    "UniformSampler", "Updates", "View", "WeightedMean", "Weights", "add_upload", "are_finite", "check_options",
    "check_parts", "check_state", "describe_error", "describe_misfit", "find_meant", "find_non_finite",
    "join_updates", "map_leaves", "map_tensors", "model_in", "move_to", "option", "pack", "personal_model",
    "sample_children", "split_limit", "suggest", "tensors_in", "unpack",
]  # fmt: skip
