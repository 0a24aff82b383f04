# mypy: ignore-errors
"""Functions that generated kernels call. Read as text, one by one; never imported.

All but the last three use only what Triton has on every backend, its interpreter included. A
product is an instruction of its own where it may not become one with a sum. Triton's roots, powers
and their like take what is too small to be normal for 0 (`.ftz`), so that a root of it would be 0
or infinite: here it is made larger before, and smaller again behind, by powers of two, which round
nothing. Where a plain formula loses all digits near 0, the error of the rounded step is divided out
again (Kahan). Tensor cores cut fp32 off after the ten bits of tf32: rounded before, it is half as
wrong and not biased.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def tanh(x):
    t = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - t) / (1.0 + t)
    s = x * x
    near = x * (1.0 - s * (1.0 / 3.0 - s * (2.0 / 15.0 - s * (17.0 / 315.0))))
    return tl.where(s < 0.01, near, tl.where(x < 0.0, -far, far))


@triton.jit
def expm1(x):
    u = tl.exp(x)
    step = u - 1.0
    scaled = step * (x / tl.log(u))
    near = tl.where(u == 1.0, x, scaled)
    return tl.where(tl.abs(step) < 0.5, near, step)


@triton.jit
def log1p(x):
    u = 1.0 + x
    scaled = tl.log(u) * (x / (u - 1.0))
    near = tl.where(u == 1.0, x, scaled)
    return tl.where(tl.abs(x) < 0.5, near, tl.log(u))


@triton.jit
def full_sqrt(x):
    tiny = x < 1.1754943508222875e-38
    return tl.sqrt(tl.where(tiny, x * 16777216.0, x)) * tl.where(tiny, 0.000244140625, 1.0)


@triton.jit
def full_rsqrt(x):
    tiny = x < 1.1754943508222875e-38
    return tl.rsqrt(tl.where(tiny, x * 16777216.0, x)) * tl.where(tiny, 4096.0, 1.0)


@triton.jit
def full_exp2(x):
    tiny = x < -126.0
    return tl.exp2(tl.where(tiny, x + 24.0, x)) * tl.where(tiny, 5.9604644775390625e-8, 1.0)


@triton.jit
def full_sin(x):
    return tl.where(tl.abs(x) < 1.1754943508222875e-38, x, tl.sin(x))


@triton.jit
def full_pow(x, y):
    tiny = (tl.abs(x) < 1.1754943508222875e-38) & (x != 0.0)
    near = libdevice.pow(tl.where(tiny, x * 16777216.0, x), y)
    return tl.where(tiny, near * tl.exp2(y * -24.0), near)


@triton.jit
def floor(x):
    low = tl.floor(x)
    return tl.where(low > x, low - 1.0, low)


@triton.jit
def ceil(x):
    high = tl.ceil(x)
    return tl.where(high < x, high + 1.0, high)


@triton.jit
def trunc(x):
    return tl.where(x < 0.0, tl.ceil(x), tl.floor(x))


@triton.jit
def fmod(x, y):
    return libdevice.fmod(x.to(tl.float64), y.to(tl.float64)).to(x.dtype)


@triton.jit
def round_even(x):
    low = tl.floor(x)
    rest = x - low
    odd = low - 2.0 * tl.floor(low * 0.5)
    up = (rest > 0.5) | ((rest == 0.5) & (odd == 1.0))
    near = tl.where(up, low + 1.0, low)
    return tl.where(near == 0.0, x * 0.0, near)


@triton.jit
def larger(a, b):
    return tl.maximum(a, b, tl.PropagateNan.ALL)


@triton.jit
def smaller(a, b):
    return tl.minimum(a, b, tl.PropagateNan.ALL)


@triton.jit
def latest_largest(a, b):
    return tl.where((b >= a) | (b != b), b, a)


@triton.jit
def latest_smallest(a, b):
    return tl.where((b <= a) | (b != b), b, a)


@triton.jit
def log_add_exp(a, b):
    top = tl.maximum(a, b, tl.PropagateNan.ALL)
    low = tl.minimum(a, b, tl.PropagateNan.ALL)
    far = tl.exp(low - top)
    u = 1.0 + far
    more = tl.where(u == 1.0, far, tl.log(u) * (far / (u - 1.0)))
    return tl.where((top == low) & (tl.abs(top) == float("inf")), top, top + more)


@triton.jit
def one_after_other(by, x, by_next, x_next):
    return by * by_next, by_next * x + x_next


@triton.jit
def nearest_tf32(x):
    bits = x.to(tl.int32, bitcast=True)
    rounded = ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return tl.where(x == x, rounded, x)


@triton.jit
def as_f16(x):
    return x.to(tl.float16).to(tl.float32)


@triton.jit
def as_bf16(x):
    return x.to(tl.bfloat16).to(tl.float32)


@triton.jit
def product(x, y):
    return tl.inline_asm_elementwise(
        "mul.rn.f32 $0, $1, $2;",
        "=f,f,f",
        [x, y],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def product_f64(x, y):
    return tl.inline_asm_elementwise(
        "mul.rn.f64 $0, $1, $2;",
        "=d,d,d",
        [x, y],
        dtype=tl.float64,
        is_pure=True,
        pack=1,
    )


@triton.jit
def uniform(seed, offset, number, place):
    low = place.to(tl.uint32)
    zero = low * 0
    high = (place >> 32).to(tl.uint32) if place.dtype.primitive_bitwidth == 64 else zero
    word, _, _, _ = tl.philox(seed, low, high, zero + number, zero + offset.to(tl.uint32))
    return tl.uint_to_uniform_float(word)


@triton.jit
def fetch_ahead(pointers):
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // $0",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
