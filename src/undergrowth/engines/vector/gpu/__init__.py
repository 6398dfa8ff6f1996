"""Stacked layers with Triton kernels. Only this package needs Triton."""

from undergrowth.engines.vector.gpu.layers import Convolution, Normalisation, Pool
from undergrowth.engines.vector.gpu.linear_kernels import can_descend, descend

convolve, normalise, pool = Convolution.apply, Normalisation.apply, Pool.apply

__all__ = ["can_descend", "convolve", "descend", "normalise", "pool"]
