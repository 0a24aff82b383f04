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
    """tanh(x); below 0.1 by its series, where the quotient of exponentials would cancel."""
    t = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - t) / (1.0 + t)
    s = x * x
    near = x * (1.0 - s * (1.0 / 3.0 - s * (2.0 / 15.0 - s * (17.0 / 315.0))))
    return tl.where(s < 0.01, near, tl.where(x < 0.0, -far, far))


@triton.jit
def expm1(x):
    """exp(x) - 1, with the error of exp(x) near 1 divided out."""
    u = tl.exp(x)
    step = u - 1.0
    scaled = step * (x / tl.log(u))
    near = tl.where(u == 1.0, x, scaled)
    return tl.where(tl.abs(step) < 0.5, near, step)


@triton.jit
def log1p(x):
    """log(1 + x), with the rounding of 1 + x divided out where |x| < 0.5."""
    u = 1.0 + x
    scaled = tl.log(u) * (x / (u - 1.0))
    near = tl.where(u == 1.0, x, scaled)
    return tl.where(tl.abs(x) < 0.5, near, tl.log(u))


@triton.jit
def normal_cdf(x):
    """(1 + erf(x / sqrt(2))) / 2 of an fp32 number, 2^-17 of it wrong at most: a polynomial, fitted
    for it to be so from -6 to 6, for log2 of the tail's size times 2^(its slope). A device's erf
    takes three times as long."""
    far = tl.abs(x)
    near = tl.minimum(far, 6.0)
    p = -1.8348117691857624e-06 * near + 6.159829354146495e-05
    p = (p * near - 0.0009305247804149985) * near + 0.00850789062678814
    p = (p * near - 0.05396006628870964) * near + 0.26288312673568726
    p = (p * near - 1.1512510776519775) * near - 0.9999952912330627
    tail = tl.exp2(p - far * far * 0.7213475204444817)
    return tl.where(x > 0.0, 1.0 - tail, tail)


@triton.jit
def full_sqrt(x):
    """The root of any fp32 number: what is too small to be normal is scaled by 2^24 before."""
    tiny = x < 1.1754943508222875e-38
    return tl.sqrt(tl.where(tiny, x * 16777216.0, x)) * tl.where(tiny, 0.000244140625, 1.0)


@triton.jit
def full_rsqrt(x):
    """1 / root of any fp32 number: what is too small to be normal is scaled by 2^24 before."""
    tiny = x < 1.1754943508222875e-38
    return tl.rsqrt(tl.where(tiny, x * 16777216.0, x)) * tl.where(tiny, 4096.0, 1.0)


@triton.jit
def full_exp2(x):
    """2^x, also where the result is too small to be normal."""
    tiny = x < -126.0
    return tl.exp2(tl.where(tiny, x + 24.0, x)) * tl.where(tiny, 5.9604644775390625e-8, 1.0)


@triton.jit
def full_sin(x):
    """sin(x), which is x itself where x is too small to be normal."""
    return tl.where(tl.abs(x) < 1.1754943508222875e-38, x, tl.sin(x))


@triton.jit
def full_pow(x, y):
    """x^y, also of an x that is too small to be normal."""
    tiny = (tl.abs(x) < 1.1754943508222875e-38) & (x != 0.0)
    near = libdevice.pow(tl.where(tiny, x * 16777216.0, x), y)
    return tl.where(tiny, near * tl.exp2(y * -24.0), near)


@triton.jit
def floor(x):
    """The largest whole number not above x, whichever way the instruction rounds."""
    low = tl.floor(x)
    return tl.where(low > x, low - 1.0, low)


@triton.jit
def ceil(x):
    """The smallest whole number not below x, whichever way the instruction rounds."""
    high = tl.ceil(x)
    return tl.where(high < x, high + 1.0, high)


@triton.jit
def trunc(x):
    """The whole number next to x towards zero."""
    return tl.where(x < 0.0, tl.ceil(x), tl.floor(x))


@triton.jit
def fmod(x, y):
    """The rest of x / y with the sign of x, computed in fp64 for an exact one."""
    return libdevice.fmod(x.to(tl.float64), y.to(tl.float64)).to(x.dtype)


@triton.jit
def round_even(x):
    """The nearest whole number, of two the even one; zeros keep their sign."""
    low = tl.floor(x)
    rest = x - low
    odd = low - 2.0 * tl.floor(low * 0.5)
    up = (rest > 0.5) | ((rest == 0.5) & (odd == 1.0))
    near = tl.where(up, low + 1.0, low)
    return tl.where(near == 0.0, x * 0.0, near)


@triton.jit
def larger(a, b):
    """The larger one; NaN if one is NaN, as torch.maximum."""
    return tl.maximum(a, b, tl.PropagateNan.ALL)


@triton.jit
def smaller(a, b):
    """The smaller one; NaN if one is NaN, as torch.minimum."""
    return tl.minimum(a, b, tl.PropagateNan.ALL)


@triton.jit
def latest_largest(a, b):
    """For a scan: the largest so far, NaN once there was one; of equals the later."""
    return tl.where((b >= a) | (b != b), b, a)


@triton.jit
def latest_smallest(a, b):
    """For a scan: the smallest so far, NaN once there was one; of equals the later."""
    return tl.where((b <= a) | (b != b), b, a)


@triton.jit
def log_add_exp(a, b):
    """log(exp(a) + exp(b)), without overflow; infinities stay what they are."""
    top = tl.maximum(a, b, tl.PropagateNan.ALL)
    low = tl.minimum(a, b, tl.PropagateNan.ALL)
    far = tl.exp(low - top)
    u = 1.0 + far
    more = tl.where(u == 1.0, far, tl.log(u) * (far / (u - 1.0)))
    return tl.where((top == low) & (tl.abs(top) == float("inf")), top, top + more)


@triton.jit
def one_after_other(by, x, by_next, x_next):
    """Two steps h -> by h + x as one, for a scan of recurrences."""
    return by * by_next, by_next * x + x_next


@triton.jit
def nearest_tf32(x):
    """fp32 rounded to the ten bits of tf32, halves away from zero; NaN as it is."""
    bits = x.to(tl.int32, bitcast=True)
    rounded = ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return tl.where(x == x, rounded, x)


@triton.jit
def as_f16(x):
    """Rounded to fp16 and back to fp32, for a value that eager keeps in fp16."""
    return x.to(tl.float16).to(tl.float32)


@triton.jit
def as_bf16(x):
    """Rounded to bf16 and back to fp32, for a value that eager keeps in bf16."""
    return x.to(tl.bfloat16).to(tl.float32)


@triton.jit
def product(x, y):
    """The product in fp32, rounded: it may not become one instruction with a sum."""
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
    """The product in fp64, rounded: it may not become one instruction with a sum."""
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
    """A number in [0, 1) for a place of a tensor, by Philox: `number` tells draws of one call
    apart, `seed` and `offset` are torch's."""
    low = place.to(tl.uint32)
    zero = low * 0
    high = (place >> 32).to(tl.uint32) if place.dtype.primitive_bitwidth == 64 else zero
    word, _, _, _ = tl.philox(seed, low, high, zero + number, zero + offset.to(tl.uint32))
    return tl.uint_to_uniform_float(word)


@triton.jit
def fetch_ahead(pointers):
    """Bring the cache lines at these addresses into L2, waiting for nothing."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // $0",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
