"""One small function an operator, in rooms by kind; this table has all of them by full name.

An operator of a file that this table lacks is an error that names it: nothing is ever skipped.
"""

from __future__ import annotations

from anabranch.frontend.onnx.operators.activations import ACTIVATIONS
from anabranch.frontend.onnx.operators.arithmetic import ARITHMETIC
from anabranch.frontend.onnx.operators.attention import ATTENTION
from anabranch.frontend.onnx.operators.casts import CASTS
from anabranch.frontend.onnx.operators.control import CONTROL
from anabranch.frontend.onnx.operators.convolution import CONVOLUTION
from anabranch.frontend.onnx.operators.create import CREATE
from anabranch.frontend.onnx.operators.image import IMAGE
from anabranch.frontend.onnx.operators.indexing import INDEXING
from anabranch.frontend.onnx.operators.linear import LINEAR_ALGEBRA
from anabranch.frontend.onnx.operators.logic import LOGIC
from anabranch.frontend.onnx.operators.losses import LOSSES
from anabranch.frontend.onnx.operators.normalisation import NORMALISATION
from anabranch.frontend.onnx.operators.operator import OperatorTable
from anabranch.frontend.onnx.operators.pooling import POOLING
from anabranch.frontend.onnx.operators.quantised import QUANTISED
from anabranch.frontend.onnx.operators.recurrent import RECURRENT
from anabranch.frontend.onnx.operators.reduce import REDUCE
from anabranch.frontend.onnx.operators.resize import RESIZE
from anabranch.frontend.onnx.operators.sequence import SEQUENCE
from anabranch.frontend.onnx.operators.shape import SHAPE
from anabranch.frontend.onnx.operators.signal import SIGNAL

OPERATORS: OperatorTable = {
    **ACTIVATIONS,
    **ARITHMETIC,
    **ATTENTION,
    **CASTS,
    **CONTROL,
    **CONVOLUTION,
    **CREATE,
    **IMAGE,
    **INDEXING,
    **LINEAR_ALGEBRA,
    **LOGIC,
    **LOSSES,
    **NORMALISATION,
    **POOLING,
    **QUANTISED,
    **RECURRENT,
    **REDUCE,
    **RESIZE,
    **SEQUENCE,
    **SHAPE,
    **SIGNAL,
}
