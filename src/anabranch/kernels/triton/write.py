"""The former name of `codegen`: tools written before it was called that import `program` here."""

from anabranch.kernels.triton.codegen import program

__all__ = ["program"]
