"""Stacked layers with Triton kernels. Only this package needs Triton."""

from undergrowth.engines.vector.gpu.layers import Convolution, Dropout, Normalisation, Pool
from undergrowth.engines.vector.gpu.linear_kernels import can_descend, descend
from undergrowth.engines.vector.gpu.norm_kernels import fixed_statistics, statistics

convolve, drop, normalise, pool = Convolution.apply, Dropout.apply, Normalisation.apply, Pool.apply

__all__ = ["can_descend", "convolve", "descend", "drop", "fixed_statistics", "normalise", "pool", "statistics"]
