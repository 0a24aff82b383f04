"""The passes, one per file, in the order in which they run; each takes a graph and a trace and
returns the same graph if it changes nothing. `layout` runs once, after them, where convolutions
profit, and is not in the table; nor are `embedding_bags`, `depthwise`, `grouped_heads` and
`round_factors`, which are for generated kernels."""

from collections.abc import Callable

from anabranch.ir.graph import Graph
from anabranch.rewrite.passes.activation_results import activation_results
from anabranch.rewrite.passes.affine_batch_norm import affine_batch_norm
from anabranch.rewrite.passes.attention import attention
from anabranch.rewrite.passes.attention_copies import uncopied
from anabranch.rewrite.passes.canonical import canonical
from anabranch.rewrite.passes.constant_operands import beside
from anabranch.rewrite.passes.cse import cse
from anabranch.rewrite.passes.dead_code import dead_code
from anabranch.rewrite.passes.flatten_cat import flatten_cat
from anabranch.rewrite.passes.fold_batch_norm import fold_batch_norm
from anabranch.rewrite.passes.fold_constants import fold_constants
from anabranch.rewrite.passes.functional import functional
from anabranch.rewrite.passes.identities import identities
from anabranch.rewrite.passes.log_softmax_parts import log_softmax_parts
from anabranch.rewrite.passes.matrix_transposes import matrix_transposes
from anabranch.rewrite.passes.sink_transposes import sink
from anabranch.rewrite.passes.sums_of_products import sums_of_products
from anabranch.rewrite.passes.zero_channels import zeros
from anabranch.trace import Trace

PASSES: dict[str, Callable[[Graph, Trace], Graph]] = {
    "functional": functional,
    "canonical": canonical,
    "beside": beside,
    "matrix_transposes": matrix_transposes,
    "identities": identities,
    "attention": attention,
    "uncopied": uncopied,
    "sink": sink,
    "fold_batch_norm": fold_batch_norm,
    "affine_batch_norm": affine_batch_norm,
    "flatten_cat": flatten_cat,
    "zeros": zeros,
    "fold_constants": fold_constants,
    "cse": cse,
    "activation_results": activation_results,
    "log_softmax_parts": log_softmax_parts,
    "sums_of_products": sums_of_products,
    "dead_code": dead_code,
}
