"""Updates as optimizers write them, of states that the body reads."""

MOMENTUM = """
graph momentum {
  input %m: f32[37,19]
  input %g: f32[37,19]
  input %p: f32[37,19]
  input %rate: f32[]
  %kept: f32[37,19] = aten.mul.Tensor(%m, 0.9)
  %new_m: f32[37,19] = aten.add.Tensor(%kept, %g)
  %far: f32[37,19] = aten.mul.Tensor(%new_m, %rate)
  %new_p: f32[37,19] = aten.sub.Tensor(%p, %far)
  return %new_m, %new_p
}
"""

ADAM = """
graph adam {
  input %m: f32[700]
  input %v: f32[700]
  input %g: f32[700]
  input %p: f32[700]
  input %rate: f32[]
  %new_m: f32[700] = aten.lerp.Scalar(%m, %g, 0.1)
  %kept: f32[700] = aten.mul.Tensor(%v, 0.999)
  %square: f32[700] = aten.mul.Tensor(%g, %g)
  %share: f32[700] = aten.mul.Tensor(%square, 0.001)
  %new_v: f32[700] = aten.add.Tensor(%kept, %share)
  %size: f32[700] = aten.abs.default(%new_v)
  %root: f32[700] = aten.sqrt.default(%size)
  %safe: f32[700] = aten.add.Tensor(%root, 1e-08)
  %unit: f32[700] = aten.div.Tensor(%new_m, %safe)
  %far: f32[700] = aten.mul.Tensor(%unit, %rate)
  %new_p: f32[700] = aten.sub.Tensor(%p, %far)
  return %new_m, %new_v, %new_p
}
"""

OF_ROWS = """
graph bias {
  input %g: f32[33,50]
  input %m: f32[50]
  input %p: f32[50]
  %sum: f32[50] = aten.sum.dim_IntList(%g, [0])
  %kept: f32[50] = aten.mul.Tensor(%m, 0.9)
  %new_m: f32[50] = aten.add.Tensor(%kept, %sum)
  %far: f32[50] = aten.mul.Tensor(%new_m, 0.1)
  %new_p: f32[50] = aten.sub.Tensor(%p, %far)
  return %new_m, %new_p
}
"""

TO_WEIGHTS = """
graph weights {
  input %x: f16[48,64]
  input %y: f16[64,80]
  input %m: f16[48,80]
  %g: f16[48,80] = aten.mm.default(%x, %y)
  %kept: f16[48,80] = aten.mul.Tensor(%m, 0.9)
  %new_m: f16[48,80] = aten.add.Tensor(%kept, %g)
  return %new_m
}
"""

COUNTER = """
graph counter {
  input %n: i64[]
  %new_n: i64[] = aten.add.Tensor(%n, 1)
  return %new_n
}
"""
