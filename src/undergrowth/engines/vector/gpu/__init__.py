"""Stacked layers with kernels of their own, in Triton. Importing this needs Triton; all else does without it."""

from undergrowth.engines.vector.gpu.layers import Convolution, Normalisation, Pool

convolve, normalise, pool = Convolution.apply, Normalisation.apply, Pool.apply

__all__ = ["convolve", "normalise", "pool"]
