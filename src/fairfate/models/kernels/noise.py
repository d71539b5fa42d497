"""Standard normal numbers from a counter: the same wherever and in whatever parts they are drawn.

Number ``i`` of a key is a function of both alone (SplitMix64, then Box and Muller's transform). This is for
experiments, not for secrets: who knows the key knows the noise.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import float32, int64, uint64

from fairfate.models.kernels.batches import Floats, mix
from fairfate.models.kernels.compile import kernel, write
from fairfate.models.kernels.simd import fill, fma, load, log, mul, sqrt, store
from fairfate.models.rows import LANES

Array = Any  # Numba infers the types of the kernels' arguments

_F = np.float32
_PAIRS = 2 * LANES
_SINE = tuple(_F((-1) ** k * (math.pi / 2) ** (2 * k + 1) / math.factorial(2 * k + 1)) for k in range(7))
_COSINE = tuple(_F((-1) ** k * (math.pi / 2) ** (2 * k) / math.factorial(2 * k)) for k in range(8))
"""Series of sin(pi x / 2) and cos(pi x / 2), of which what is left out is below 1e-9 for |x| <= 1."""


@kernel(uint64, int64, write(float32, 1), write(float32, 1))
def _fill_normals(key: Any, first: int, out: Array, space: Array) -> None:
    """Fill ``out``, a multiple of 32 long, with the numbers of a key from 32 times ``first`` on."""
    step = np.uint64(0x9E3779B97F4A7C15)
    for start in range(0, len(out), _PAIRS):
        block = np.uint64(first) + np.uint64(start // _PAIRS)
        for k in range(LANES):
            word = mix(np.uint64(key) + (block * np.uint64(LANES) + np.uint64(k) + np.uint64(1)) * step)
            space[k] = (_F(np.int64(word >> np.uint64(32))) + _F(0.5)) * _F(2.0**-32)
            space[LANES + k] = (_F(np.int64(word & np.uint64(0xFFFFFFFF))) - _F(2.0**31)) * _F(2.0**-31)
        radius = sqrt(mul(fill(_F(-2)), log(load(space, 0))))
        angle = load(space, LANES)
        square = mul(angle, angle)
        sine = fma(square, fill(_SINE[6]), fill(_SINE[5]))
        sine = fma(square, sine, fill(_SINE[4]))
        sine = fma(square, sine, fill(_SINE[3]))
        sine = fma(square, sine, fill(_SINE[2]))
        sine = fma(square, sine, fill(_SINE[1]))
        sine = mul(fma(square, sine, fill(_SINE[0])), angle)
        cosine = fma(square, fill(_COSINE[7]), fill(_COSINE[6]))
        cosine = fma(square, cosine, fill(_COSINE[5]))
        cosine = fma(square, cosine, fill(_COSINE[4]))
        cosine = fma(square, cosine, fill(_COSINE[3]))
        cosine = fma(square, cosine, fill(_COSINE[2]))
        cosine = fma(square, cosine, fill(_COSINE[1]))
        cosine = fma(square, cosine, fill(_COSINE[0]))
        double = mul(fill(_F(2)), sine)
        store(out, start, mul(radius, fma(mul(fill(_F(-1)), double), sine, fill(_F(1)))))
        store(out, start + LANES, mul(radius, mul(double, cosine)))


def normals(key: int, first: int, count: int) -> tuple[Floats, int]:
    """So many numbers of a key from block ``first`` on, and the first block that is not used."""
    blocks = -(-count // _PAIRS)
    out = np.empty(blocks * _PAIRS, np.float32)
    _fill_normals(np.uint64(key), first, out, np.empty(_PAIRS, np.float32))
    return out[:count], first + blocks
