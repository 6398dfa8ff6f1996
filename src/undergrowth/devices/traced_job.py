"""The arguments of a job for tracing: meta tensors, with any number of samples."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from undergrowth.core import (
    CODE_ERRORS,
    Classification,
    Client,
    Context,
    InputError,
    LoopClient,
    Packet,
    RunError,
    Shard,
    State,
    Task,
    map_tensors,
    move_to,
    tensors_in,
)
from undergrowth.devices.meter import Meter

if TYPE_CHECKING:
    from undergrowth.devices.work import Tracer

Result = TypeVar("Result")
ClassCounts = tuple[int, ...]  # number of samples of each class

# What a trace needs to be real, because the client reads its values to decide which samples to train on: only shapes,
# the labels, or all tensors. The builder takes the first that works; each is slower than the one before.
SHAPES, LABELS, VALUES = "shapes", "labels", "values"


@dataclass
class TracedJob:
    """The arguments of a job on tensors without values, and the meter that counts its work."""

    client: Any
    task: Task
    down: Packet
    shard: Shard
    own: State
    context: Context
    meter: Meter


def _without_values(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")  # empty_like of one on meta would load sympy


class TracedJobBuilder:
    """Builds jobs of one kind with any number of samples."""

    def __init__(self, tracer: Tracer, client: Client, down: Packet, own: State) -> None:
        self.tracer = tracer
        self.client = client
        self.real = (down, own)
        # A state that an earlier trace left on meta may hold one tensor twice; a device that kept it has two.
        self.on_meta = (move_to(down, "meta"), map_tensors(_without_values, own))
        self.meta_task = tracer.task.to("meta")  # weights that a client initialises have no values either
        default = torch.device(tracer.task.model.torch_device)  # where a client initialises weights
        self.torch_device = next((each.device for each in tensors_in(self.real) if not each.is_meta), default)
        self.needs = SHAPES

    def find_needs(self, attempt: Callable[[], Result]) -> Result:
        """Sets `needs` to the first of SHAPES, LABELS and VALUES with which `attempt` succeeds; returns its result."""
        for needs in (SHAPES, LABELS, VALUES):
            self.needs = needs
            if needs == VALUES:
                self.real = map_tensors(self._with_values, self.real)
            try:
                result = attempt()
            except InputError:
                raise
            except CODE_ERRORS as error:  # reading a value that a meta tensor does not have can raise any error
                problem = error
                continue
            if needs != VALUES:
                self.real = self.on_meta  # frees the weights
            return result
        name, kind = type(self.client).__name__, type(problem).__name__
        raise RunError(f"the client {name} failed while its work was priced: {kind}: {problem}") from problem

    def _with_values(self, tensor: Tensor) -> Tensor:
        """A copy: which tensors share memory depends on earlier rounds. The state after a traced job has no values."""
        return torch.zeros_like(tensor, device=self.torch_device) if tensor.is_meta else tensor.clone()

    @contextlib.contextmanager
    def job(
        self,
        size: int,
        counts: ClassCounts | None = None,
        scalars: Mapping[str, float] | None = None,
        guess: bool = False,
    ) -> Iterator[TracedJob]:
        """A job with `size` samples, `counts` of each class; `scalars` replace those of the packet."""
        task = self.tracer.task if self.needs == VALUES else self.meta_task
        down, own = self.real if self.needs == VALUES else self.on_meta
        if scalars is not None:
            down = Packet(down.tensors, scalars, down.tags)
        shard = self._shard(size, counts)
        meter = Meter(guess)
        meter.ignore(shard.x, shard.y)
        if task.public is not None:
            meter.ignore(task.public.x, task.public.y)
        meter.hold((down, own, task.model.constants))
        with _without_fused_layers() if self.needs == VALUES else contextlib.nullcontext():
            yield TracedJob(self._client(), task, down, shard, own, Context(0, "device", 0), meter)

    def _client(self) -> Client:
        """The client on its device; values that other jobs use must not change in place, and shapes do not."""
        if not isinstance(self.client, LoopClient):
            return self.client
        client = self.client.for_price()
        return client if self.needs == VALUES else client.on_device()

    def _shard(self, size: int, counts: ClassCounts | None) -> Shard:
        """Inputs of zeros, and labels with the given counts or with all classes equally frequent."""
        torch_device = self.torch_device if self.needs == VALUES else torch.device("meta")
        x = torch.zeros((size, *self.tracer.shape), dtype=self.tracer.dtype, device=torch_device)
        task = self.tracer.task
        if self.needs == SHAPES or not isinstance(task.kind, Classification):
            place = torch.device("meta") if self.needs == SHAPES else self.torch_device
            return Shard(x, task.kind.example_labels(size, self.tracer.shape, task.classes, place))
        if counts is None:
            y = torch.arange(size) % task.classes
        else:
            y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        return Shard(x, y.to(self.torch_device))


@contextlib.contextmanager
def _without_fused_layers() -> Iterator[None]:
    """Computes recurrent layers and attention as the matrix products that they are on meta tensors.

    Otherwise oneDNN computes an LSTM, and torch's fast kernels compute attention or a whole layer of a transformer, in
    one operation that has no FLOP formula in torch.
    """
    onednn, fast_layers = torch._C._get_mkldnn_enabled(), torch.backends.mha.get_fastpath_enabled()
    torch._C._set_mkldnn_enabled(False)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch._C._set_mkldnn_enabled(onednn)
        torch.backends.mha.set_fastpath_enabled(fast_layers)
