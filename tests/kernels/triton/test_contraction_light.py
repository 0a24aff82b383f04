"""Contractions with light work before and behind them, in any layout, in one kernel."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.triton.bodies import gpu, read
from tests.kernels.triton.interpreter import check

from anabranch.ir.ops import channels_last_strides
from anabranch.kernels.triton.codegen import variants

LAYOUTS = ("", "last")


def image(dtype: str, *shape: int, layout: str) -> str:
    strides = f"{{{','.join(map(str, channels_last_strides(shape)))}}}" if layout else ""
    return f"{dtype}[{','.join(map(str, shape))}]{strides}"


@given(st.data(), st.sampled_from(["f32", "f16"]))
@settings(max_examples=12, deadline=None)
def test_scaled_before_and_turned_behind(data: st.DataObject, dtype: str) -> None:
    """As in squeeze-excite: x * s -> convolution -> + y -> in another layout."""
    n, taps = data.draw(st.integers(1, 2)), data.draw(st.sampled_from([1, 1, 3]))
    c, k = (data.draw(st.sampled_from([2, 3, 13, 32])) for _ in range(2))
    h, w = data.draw(st.integers(1, 6)), data.draw(st.integers(2, 6))
    x, y, z = (data.draw(st.sampled_from(LAYOUTS)) for _ in range(3))
    given_, inner = image(dtype, n, c, h, w, layout=x), image(dtype, n, k, h, w, layout=y)
    graph = read(f"""
    graph g {{
      input %x: {given_}
      input %s: {dtype}[{n},{c},1,1]
      input %y: {inner}
      const %w: {dtype}[{k},{c},{taps},{taps}] = w
      %light: {given_} = aten.mul.Tensor(%x, %s)
      %conv: {inner} = aten.convolution.default(%light, %w, None, [1, 1], [{taps // 2}, {taps // 2}], [1, 1], False, [0, 0], 1)
      %sum: {inner} = aten.add.Tensor(%conv, %y)
      %last: {image(dtype, n, k, h, w, layout=z)} = aten.clone.default(%sum)
      return %last
    }}""")  # noqa: E501
    found = [variant for variant in variants(graph, gpu(132)) if variant.template == "contraction"]
    assert found
    check(graph, [found[0], found[-1]])
