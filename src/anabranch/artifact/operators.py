"""Which operators a saved plan may call: those that compute tensors of tensors and do nothing else.

    aten.relu.default                  of the table of operators (`ir.ops`): allowed
    aten.linalg_qr.default             opaque there, but export makes it of models (OPAQUE)
    aten.add_.Tensor, aten.add.out     write to what they are given: never
    aten.empty.memory_format           shows memory that nobody wrote: never
    aten.from_file.default, inductor._reinterpret_tensor.default, mylib.secret.default
                                       of no table: only if whoever loads the plan names them

An operator is allowed if torch's schema says that it is functional, from tensors and plain values
to tensors, and if a table here or in `ir.ops`, or torch's own tags (`core`, `pointwise`) know it.
Of gradients only those are that compute each element by itself, and those in GRADIENTS: several
others trust the indices that they are given.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection

import torch

from anabranch.errors import ArtifactError, OptionError
from anabranch.ir import custom_ops, functional_forms, ops
from anabranch.ir.graph import Arg, Node, Ref
from anabranch.ir.refused import Refused

SPELLED = re.compile(r"(\w+)\.(\w+)\.(\w+)")


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names.split())


OPAQUE = _aten(
    "__and__ __lshift__ __or__ __rshift__ __xor__ _adaptive_avg_pool3d _cdist_forward _conj "
    "_embedding_bag _embedding_bag_forward_only _euclidean_dist _fft_c2c _fft_c2r _fft_r2c "
    "_int_mm _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex "
    "_linalg_svd _neg_view _safe_softmax _scaled_mm _unsafe_index _upsample_bicubic2d_aa "
    "_upsample_bilinear2d_aa _weight_int8pack_mm _weight_norm_interface addbmm addmv addr "
    "affine_grid_generator as_strided_scatter binary_cross_entropy "
    "binary_cross_entropy_with_logits block_diag bucketize cdist complex conj count_nonzero "
    "diag_embed diagonal_scatter dist dot grid_sampler_3d histc huber_loss index_add "
    "index_copy index_fill index_put index_reduce isin kthvalue lift_fresh_copy "
    "linalg_cholesky_ex linalg_cross linalg_eig linalg_eigvals linalg_householder_product "
    "linalg_inv_ex linalg_ldl_factor_ex linalg_lu linalg_lu_factor_ex linalg_lu_solve "
    "linalg_matrix_exp linalg_pinv linalg_qr linalg_solve_triangular linspace "
    "log_sigmoid_forward logspace lu_unpack masked_scatter max_unpool2d max_unpool3d median "
    "mode mse_loss multi_margin_loss mv nanmedian nansum new_full new_ones new_zeros "
    "nll_loss2d_forward nll_loss_forward ormqr outer polar prelu put real imag renorm "
    "resolve_conj resolve_neg rot90 rrelu_with_noise_functional scatter_add scatter_reduce "
    "searchsorted smooth_l1_loss soft_margin_loss sort std_mean take topk trace "
    "triangular_solve tril_indices triu_indices vdot zero"
)
"""What export makes of models and `ir.ops` does not know: functional, within their operands."""
GRADIENTS = _aten("avg_pool2d_backward")
"""Gradients within their operands, if these fit together (`argument_checks`)."""
NEVER = _aten("empty empty_strided from_file masked_select new_empty nonzero")
"""Functional by their schemas, but they show memory that nobody wrote, read files, or give results
whose sizes depend on the data."""
RESULTS = ("Tensor", "List[Tensor]")
HANDLES = re.compile(r"^(?:pin_memory|names|layout): |Generator|Device")
"""Arguments that say where or as what memory lies; plans never do."""
KINDS: dict[str, tuple[type, ...]] = {
    "Tensor": (Ref, int, float, bool),
    "int": (int, bool, torch.dtype, torch.layout, torch.memory_format),
    "number": (int, float, bool),
    "float": (float, int),
    "bool": (bool,),
    "str": (str,),
}
"""What an argument of a schema's type may be; types that are not here are handles of something."""


SPELLED_BY_USERS = re.compile(r"(\w+)(?:::|\.)(\w+)(?:\.(\w+))?")


def named(operators: Collection[str]) -> frozenset[str]:
    """The operators that a user names, `ns::name` or `ns::name.overload`, as plans spell them;
    ArtifactError for one that is spelled otherwise, OptionError for what is no list of names."""
    names = set[str]()
    if isinstance(operators, str) or not isinstance(operators, Collection):
        raise OptionError(
            f"operators is a {type(operators).__name__}: {operators!r:.80}",
            "it is a list of the names of operators that the file may call",
            'for example operators=["mylib::attend"]',
        )
    for operator in operators:
        spelled = SPELLED_BY_USERS.fullmatch(operator) if isinstance(operator, str) else None
        if spelled is None:
            raise ArtifactError(
                f"{operator!r} names no operator",
                "an operator is named by its namespace and its name",
                'for example operators=["mylib::attend"]',
            )
        names.add(".".join(part for part in spelled.groups() if part))
    return frozenset(names)


def check_operator(op: str, own_operators: frozenset[str]) -> None:
    """ArtifactError for an operator that a file may not name."""
    users = functional_forms.original(op)
    spelled = SPELLED.fullmatch(users)
    by_user = spelled is not None and bool(own_operators & {users, ops.packet_name(users)})
    if spelled is None or not (by_user or _listed(op)):
        asked = "::".join(spelled.group(1, 2)) if spelled else "ns::name"
        raise ArtifactError(
            f"the plan calls {op}, which saved plans may not call unasked",
            "it is none of the operators of torch that compute tensors of tensors and do nothing "
            "else, so what it does is not known",
            "if you trust it, import the library that defines it and load with "
            f'operators=["{asked}"]',
        )
    why = _unfit(op)
    if why:
        raise ArtifactError(
            f"the plan calls {op}, which no saved plan may call",
            str(why),
            "import the library that defines it, then load the plan again"
            if by_user
            else "load it with the version of torch that saved it, or compile the model again",
        )


@functools.cache
def _listed(op: str) -> bool:
    """Whether it is one of torch's, or ours, that plans need."""
    if op in custom_ops.ALL:
        return True
    packet = ops.packet_name(op)
    if not packet.startswith("aten.") or packet in NEVER:
        return False
    if packet.endswith("_backward"):
        return packet in GRADIENTS or ops.info(op).kind == "pointwise"
    if packet in ops.OPS or packet in OPAQUE:
        return True
    try:
        tags = ops.resolve(op).tags
    except (KeyError, RuntimeError, ValueError):
        return False
    return torch.Tag.core in tags or torch.Tag.pointwise in tags


@functools.cache
def _unfit(op: str) -> Refused | None:
    """Why an operator is not one from tensors and plain values to tensors; None if it is."""
    try:
        overload = ops.resolve(op)
    except (KeyError, RuntimeError, ValueError):
        return Refused(
            "it is not an operator here: its library is not imported, or torch is another one"
        )
    schema = overload._schema
    if schema.is_mutable or any(argument.is_out for argument in schema.arguments):
        return Refused("it writes to what it is given")
    if not schema.returns or any(str(result.type) not in RESULTS for result in schema.returns):
        return Refused("it returns something else than tensors")
    return None


def check_arguments(node: Node) -> None:
    """ArtifactError for arguments that are not those of the operator's schema, are handles of
    something, or ask for memory of another kind than a plan's."""
    schema = ops.resolve(node.op)._schema.arguments
    table = {argument.name: argument for argument in schema}
    args = dict(zip(table, node.args, strict=False))
    if len(node.args) > len(schema) or args.keys() & dict(node.kwargs).keys():
        raise _argument(node, "it has too many arguments")
    args |= dict(node.kwargs)
    missing = [name for name, argument in table.items() if not argument.has_default_value()]
    for name in args.keys() ^ (args.keys() & table.keys()) or set(missing) - args.keys():
        raise _argument(node, f"{name!r} is missing, or no argument of it")
    for name, value in args.items():
        kind = str(table[name].type)
        if not _fits(kind, value):
            raise _argument(node, f"{name!r} is {value!r}, and should be {kind}")
        if value not in (None, False, torch.strided) and HANDLES.search(f"{name}: {kind}"):
            raise _argument(node, f"plans never set {name!r}")
        if isinstance(value, torch.layout) and value is not torch.strided:
            raise _argument(node, f"{name!r} is {value}, and plans hold strided tensors alone")


def _fits(kind: str, value: Arg) -> bool:
    """Whether a value is of a type of torch's schemas."""
    if kind.startswith("Optional["):
        return value is None or _fits(kind[9:-1], value)
    if kind.startswith("List["):
        inner = kind[5:-1]
        if isinstance(value, tuple):
            return all(_fits(inner, item) for item in value)
        return inner in ("int", "float") and _fits(inner, value)
    return type(value) in KINDS[kind] if kind in KINDS else value is None


def _argument(node: Node, why: str) -> ArtifactError:
    return ArtifactError(
        f"the plan calls {node.op} for %{node.name} in a way that no plan may",
        why,
        "do not use this file; save the plan again from its model",
    )
