"""Generated GPU kernels: a task's body and a variant -> Triton text, by `codegen.program`.

The text is a function of the body and the variant and of nothing else. That is what makes a saved
plan safe to load: whoever runs a kernel writes its text anew and compares, and never executes what
a file says. `Program` is the text with all that a launch needs to know.
"""

from anabranch.kernels.triton.program import Program

__all__ = ["Program"]
