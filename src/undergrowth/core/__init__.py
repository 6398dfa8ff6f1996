"""The contracts that methods, engines and topologies share."""

from undergrowth.core.asks import Answer, Ask, AskId, Lost, Partial, Receipt, Refused
from undergrowth.core.augmentation import Augmentation
from undergrowth.core.client import Batch, Carry, Client, LoopClient, Steps, Updates, join_updates, split_limit
from undergrowth.core.commands import Command, Deadline, Drop, RoundEnd
from undergrowth.core.compound_reducers import Collect, Grouped, Named
from undergrowth.core.context import Context
from undergrowth.core.dropout import KeyedDropout
from undergrowth.core.errors import CODE_ERRORS, InputError, RunError, RunWarning, describe_error, find_meant, suggest
from undergrowth.core.method import (
    Method,
    ModelWeights,
    NodePlace,
    check_parts,
    check_state,
    check_task,
    personal_model,
)
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
from undergrowth.core.samplers import DeviceKnowledge, Sampler, UniformSampler, View
from undergrowth.core.selector import AllSelector, Selector
from undergrowth.core.server import (
    InnerServer,
    Plan,
    Progress,
    Server,
    ServerTraining,
    are_finite,
    find_non_finite,
    model_in,
)
from undergrowth.core.shard import Shard, are_hidden, hidden_like
from undergrowth.core.task import Task, Train
from undergrowth.core.task_kind import TASKS, Classification, Metric, MultiLabel, NextToken, Regression, TaskKind

__all__ = [
    "CODE_ERRORS",
    "MAX_NUMBER", "MAX_WHOLE_NUMBER", "TASKS", "AllSelector", "Answer", "Ask", "AskId", "Augmentation", "Batch",
    "Carry", "Classification", "Client", "Collect", "Command", "Context", "Deadline", "DeviceKnowledge", "Drop",
    "Grouped", "InnerServer", "InputError", "KeyedDropout", "LazyMapping", "LoopClient", "Lost", "Method", "Metric",
    "Model", "ModelWeights", "MultiLabel", "Named", "NextToken", "Node", "NodePlace", "Output", "Packet", "Partial",
    "PerCoordinateMean",
    "Plan", "Progress", "Receipt", "Reducer", "Refused", "Regression", "RoundEnd", "RunError", "RunWarning", "Sampler",
    "Selector", "Server", "ServerTraining",
    "Shard", "State", "Steps", "Sum", "Task", "TaskKind", "TiltedMean", "Train", "UniformSampler",
    "Updates", "View", "WeightedMean", "Weights", "add_upload", "are_finite", "are_hidden", "check_options",
    "check_parts", "check_state", "check_task", "describe_error", "describe_misfit", "find_meant", "find_non_finite",
    "hidden_like", "join_updates", "map_leaves", "map_tensors", "model_in", "move_to", "option", "pack",
    "personal_model", "split_limit", "suggest", "tensors_in", "unpack",
]  # fmt: skip
