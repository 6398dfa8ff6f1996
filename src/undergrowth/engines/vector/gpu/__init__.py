"""Stacked layers with Triton kernels. Only this package needs Triton."""

from undergrowth.engines.vector.gpu.layers import Convolution, Normalisation, Pool
from undergrowth.engines.vector.gpu.linear_kernels import can_descend, descend
from undergrowth.engines.vector.gpu.norm_kernels import statistics

convolve, normalise, pool = Convolution.apply, Normalisation.apply, Pool.apply

__all__ = ["can_descend", "convolve", "descend", "normalise", "pool", "statistics"]
