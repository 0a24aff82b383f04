"""One body for each template, as networks have them: what goldens show and Triton compiles."""

from __future__ import annotations

from tests.kernels.dfg.test_concat_stores import recurrence

SAMPLES: dict[str, tuple[str, str]] = {
    "pointwise": (
        "pointwise:512.w2",
        """
    graph sum2 {
      input %left: f16[1,256,17,17]{73984,1,4352,256}
      input %right: f16[1,256,17,17]{73984,1,4352,256}
      const %scale: f16[256,1,1] = s
      %a: f16[1,256,17,17]{73984,1,4352,256} = aten.add.Tensor(%left, %right)    # net.py:12
      %b: f16[1,256,17,17]{73984,1,4352,256} = aten.mul.Tensor(%a, %scale)    # net.py:13
      %c: f16[1,256,17,17]{73984,1,4352,256} = aten.silu.default(%b)    # net.py:13
      return %c
    }""",
    ),
    "window": (
        "window:16x32u2.w2",
        """
    graph depth {
      input %x: f16[1,96,28,28]{75264,1,2688,96}
      const %w: f16[96,1,3,3]{1,1,288,96} = w
      const %b: f16[96] = b
      %r: f16[1,96,28,28]{75264,1,2688,96} = aten.relu.default(%x)    # net.py:20 in forward
      %conv: f16[1,96,28,28]{75264,1,2688,96} = aten.convolution.default(%r, %w, %b, [1, 1], [1, 1], [1, 1], False, [0, 0], 96)    # net.py:21 in forward
      return %conv
    }""",  # noqa: E501
    ),
    "contraction_and_its_rows": (
        "contraction:64x32x64.k1.w4.s4",
        """
    graph made {
      input %x: f16[1,128,3072]
      input %z: f16[1,128,768]
      const %w: f16[768,3072] = w
      %p: f16[1,128,768] = aten.linear.default(%x, %w)    # net.py:39
      %a: f16[1,128,768] = aten.add.Tensor(%p, %z)    # net.py:39
      %b: f16[1,128,24,32] = aten.reshape.default(%a, [1, 128, 24, 32])    # net.py:40
      %f: f32[1,128,24,32] = aten._to_copy.default(%b, dtype=torch.float32)    # net.py:40
      %u: f32[1,128,24] = aten.mean.dim(%f, [-1])    # net.py:40
      %uu: f32[1,128,24,1] = aten.unsqueeze.default(%u, -1)    # net.py:40
      %d: f32[1,128,24,32] = aten.sub.Tensor(%f, %uu)    # net.py:40
      %dd: f32[1,128,24,32] = aten.mul.Tensor(%d, %d)    # net.py:40
      %q: f32[1,128,24] = aten.mean.dim(%dd, [-1])    # net.py:40
      return %a, %u, %q
    }""",
    ),
    "contraction_of_rows": (
        "contraction:64x32x64.k1.w4.s4",
        """
    graph normed {
      input %x: f16[1,128,768]
      input %u: f32[1,128,24]
      input %q: f32[1,128,24]
      const %w: f16[2304,768] = w
      const %s: f32[2304] = s
      const %t: f32[2304] = t
      %m: f32[1,128,1] = aten.mean.dim(%u, [-1], True)    # net.py:40
      %c: f32[1,128,24] = aten.sub.Tensor(%u, %m)    # net.py:40
      %cc: f32[1,128,24] = aten.mul.Tensor(%c, %c)    # net.py:40
      %qc: f32[1,128,24] = aten.add.Tensor(%q, %cc)    # net.py:40
      %v: f32[1,128,1] = aten.mean.dim(%qc, [-1], True)    # net.py:40
      %e: f32[1,128,1] = aten.add.Tensor(%v, 1e-12)    # net.py:40
      %r: f32[1,128,1] = aten.rsqrt.default(%e)    # net.py:40
      %p: f16[1,128,2304] = aten.linear.default(%x, %w)    # net.py:41
      %pr: f32[1,128,2304] = aten.mul.Tensor(%p, %r)    # net.py:41
      %mr: f32[1,128,1] = aten.mul.Tensor(%m, %r)    # net.py:41
      %ms: f32[1,128,2304] = aten.mul.Tensor(%mr, %s)    # net.py:41
      %d: f32[1,128,2304] = aten.sub.Tensor(%pr, %ms)    # net.py:41
      %sum: f32[1,128,2304] = aten.add.Tensor(%d, %t)    # net.py:41
      %out: f16[1,128,2304] = aten._to_copy.default(%sum, dtype=torch.float16)    # net.py:41
      return %r, %mr, %out
    }""",
    ),
    "contraction": (
        "contraction:64x32x64.k2.w4.s3",
        """
    graph three {
      input %x: f16[1,128,28,28]{100352,1,3584,128}
      input %y: f16[1,64,28,28]{50176,1,1792,64}
      const %w: f16[64,128,3,3]{1152,1,384,128} = w
      const %b: f16[64] = b
      %conv: f16[1,64,28,28]{50176,1,1792,64} = aten.convolution.default(%x, %w, %b, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)    # net.py:30
      %sum: f16[1,64,28,28]{50176,1,1792,64} = aten.add.Tensor(%conv, %y)    # net.py:31
      %relu: f16[1,64,28,28]{50176,1,1792,64} = aten.relu.default(%sum)    # net.py:31
      return %relu
    }""",  # noqa: E501
    ),
    "contraction_of_one_step": (
        "contraction:64x32x64.k1.w4.s2",
        """
    graph one {
      input %x: f16[1,64,28,28]{50176,1,1792,64}
      const %w: f16[256,64,1,1]{64,1,64,64} = w
      const %b: f16[256] = b
      %conv: f16[1,256,28,28]{200704,1,7168,256} = aten.convolution.default(%x, %w, %b, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)    # net.py:40
      %relu: f16[1,256,28,28]{200704,1,7168,256} = aten.relu.default(%conv)    # net.py:41
      return %relu
    }""",  # noqa: E501
    ),
    "rows": (
        "rows:1x1024.w4",
        """
    graph norm {
      input %x: f16[1,128,768]
      input %y: f16[1,128,768]
      const %w: f16[768] = w
      const %b: f16[768] = b
      %sum: f16[1,128,768] = aten.add.Tensor(%x, %y)    # bert.py:80
      %norm: f16[1,128,768] = aten.layer_norm.default(%sum, [768], %w, %b)    # bert.py:81
      return %norm
    }""",
    ),
    "rows_that_are_shared": (
        "rows:32x64.k64.w4",
        """
    graph squeeze {
      input %x: f16[1,32,112,112]{401408,1,3584,32}
      %pool: f16[1,32,1,1] = aten.adaptive_avg_pool2d.default(%x, [1, 1])    # net.py:9
      return %pool
    }""",
    ),
    "rows_in_blocks": (
        "rows:1x256.w4",
        """
    graph attention {
      input %x: f32[12,128,1000]
      %r: f32[12,128,1000] = aten._softmax.default(%x, -1, False)    # bert.py:44 in forward
      return %r
    }""",
    ),
    "rows_that_run": (
        "rows:4x1024.w4",
        """
    graph nucleus {
      input %x: f16[12,1000]
      %p: f32[12,1000] = aten.softmax.int(%x, -1, torch.float32)    # lm.py:60 in sample
      %c: f32[12,1000] = aten.cumsum.default(%p, -1)    # lm.py:61 in sample
      %before: f32[12,1000] = aten.sub.Tensor(%c, %p)    # lm.py:61 in sample
      %far: b1[12,1000] = aten.gt.Scalar(%before, 0.9)    # lm.py:62 in sample
      %kept: f32[12,1000] = aten.masked_fill.Scalar(%p, %far, 0.0)    # lm.py:62 in sample
      return %kept
    }""",
    ),
    "rows_that_run_in_blocks": (
        "rows:1x1024.w4",
        """
    graph back {
      input %x: f16[4,5000]
      %r: f16[4,5000] = aten.flip.default(%x, [1])    # rl.py:7 in returns
      %c: f16[4,5000] = aten.cumsum.default(%r, 1)    # rl.py:7 in returns
      %left: f16[4,5000] = aten.flip.default(%c, [1])    # rl.py:7 in returns
      %all: f16[4,1] = aten.sum.dim_IntList(%x, [1], True)    # rl.py:8 in returns
      %y: f16[4,5000] = aten.div.Tensor(%left, %all)    # rl.py:8 in returns
      return %y
    }""",
    ),
    "recurrence_that_reads_ahead": (
        "recurrence:512.u2.a.w4",
        recurrence(98, 1024, "f16").replace("graph g", "graph sru"),
    ),
    "recurrence": (
        "recurrence:512.u4.w4",
        recurrence(98, 1024, "f16").replace("graph g", "graph sru"),
    ),
    "attention": (
        "attention:16x128.w4.s1",
        """
    graph heads {
      input %q: f16[1,12,128,64]{98304,64,768,1}
      input %k: f16[1,12,128,64]{98304,64,768,1}
      input %v: f16[1,12,128,64]{98304,64,768,1}
      %r: f16[1,12,128,64]{98304,64,768,1} = aten.scaled_dot_product_attention.default(%q, %k, %v)    # bert.py:50 in forward
      return %r
    }""",  # noqa: E501
    ),
    "attention_in_blocks": (
        "attention:64x32.w4.s2",
        """
    graph grouped {
      input %q: f16[2,8,100,96]{76800,96,768,1}
      input %k: f16[2,2,100,96]{19200,96,192,1}
      input %v: f16[2,2,100,96]{19200,96,192,1}
      const %mask: f16[100,100]{104,1} = m
      %r: f16[2,8,100,96]{76800,96,768,1} = aten.scaled_dot_product_attention.default(%q, %k, %v, %mask, 0.0, False, scale=0.125, enable_gqa=True)    # net.py:60 in forward
      return %r
    }""",  # noqa: E501
    ),
    "contraction_of_taps": (
        "contraction:32x32x64.k1.w4.s2",
        """
    graph separable {
      input %x: f16[1,192,28,28]{150528,1,5376,192}
      const %w: f16[192,1,3,3]{1,1,576,192} = w
      const %b: f16[192] = b
      const %v: f16[32,192,1,1]{192,1,192,192} = v
      const %d: f16[32] = d
      %conv: f16[1,192,28,28]{150528,1,5376,192} = aten.convolution.default(%x, %w, %b, [1, 1], [1, 1], [1, 1], False, [0, 0], 192)    # net.py:60
      %act: f16[1,192,28,28]{150528,1,5376,192} = aten.clamp.default(%conv, 0, 6)    # net.py:61
      %point: f16[1,32,28,28]{25088,1,896,32} = aten.convolution.default(%act, %v, %d, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)    # net.py:62
      return %point
    }""",  # noqa: E501
    ),
    "gemm_chain": (
        "gemm_chain:32x256x64x64.k1.w4.s3",
        """
    graph bottleneck {
      input %x: f16[1,64,56,56]{200704,1,3584,64}
      input %y: f16[1,256,56,56]{802816,1,14336,256}
      const %w: f16[64,64,3,3]{576,1,192,64} = w
      const %b: f16[64] = b
      const %v: f16[256,64,1,1]{64,1,64,64} = v
      const %d: f16[256] = d
      %conv: f16[1,64,56,56]{200704,1,3584,64} = aten.convolution.default(%x, %w, %b, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)    # net.py:50
      %act: f16[1,64,56,56]{200704,1,3584,64} = aten.relu.default(%conv)    # net.py:51
      %expand: f16[1,256,56,56]{802816,1,14336,256} = aten.convolution.default(%act, %v, %d, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)    # net.py:52
      %sum: f16[1,256,56,56]{802816,1,14336,256} = aten.add.Tensor(%expand, %y)    # net.py:53
      %relu: f16[1,256,56,56]{802816,1,14336,256} = aten.relu.default(%sum)    # net.py:53
      return %relu
    }""",  # noqa: E501
    ),
    "gemm_chain_of_one_row": (
        "gemm_chain:1x128x32x256.k8.w8.s2",
        """
    graph layers {
      input %x: f16[1,512]
      const %w: f16[1024,512] = w
      const %b: f16[1024] = b
      const %v: f16[256,1024] = v
      const %d: f16[256] = d
      %a: f16[1,1024] = aten.linear.default(%x, %w, %b)    # mlp.py:7
      %g: f16[1,1024] = aten.gelu.default(%a)    # mlp.py:8
      %r: f16[1,256] = aten.linear.default(%g, %v, %d)    # mlp.py:9
      return %r
    }""",
    ),
    "scatter": (
        "scatter:256.w1",
        """
    graph keys {
      input %x: f16[1,8,1,64]
      input %cos: f16[1,64]
      input %at: i64[1]
      state %k: f16[1,8,1024,64] -> %k_1
      %m: f16[1,8,1,64] = aten.mul.Tensor(%x, %cos)    # decoder.py:40
      %k_1: f16[1,8,1024,64] = aten.index_copy.default(%k, 2, %at, %m)    # decoder.py:41
      return %k_1
    }""",
    ),
}
