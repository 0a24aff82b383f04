"""Tables of rules. Those that always help run to a fixed point (`always`); those that might help
feed the search, and stand in files of their own, a line for each family."""

from anabranch.ir.rule import Rule
from anabranch.rewrite.rules import (
    average_pooling,
    channel_padding,
    channel_scales,
    concat_slice,
    conv_composition,
    conv_merging,
    elementwise_algebra,
    embedding_linear,
    embedding_merging,
    found,
    grouped_convs,
    layers,
    linear_after_norm,
    linear_merging,
    linearity,
    matmul_algebra,
    matmul_merging,
    matmul_spellings,
    movement,
    norm_by_parts,
    pooling,
    published,
    published_alone,
    recurrences,
    space_to_depth,
    special,
    transposed_operands,
)

_WRITTEN: dict[str, tuple[Rule, ...]] = {
    # First, for others then have one place where there was one for each step.
    "recurrences": recurrences.RULES,
    "conv_merging": conv_merging.RULES,
    "conv_activation_merging": conv_merging.ACTIVATED,
    "conv_input_channels": layers.CHANNELS,
    "grouped_convs": grouped_convs.RULES,
    "space_to_depth": space_to_depth.RULES,
    "linear_merging": linear_merging.RULES,
    "linear_after_norm": linear_after_norm.RULES,
    "norm_by_parts": norm_by_parts.RULES,
    "matmul_merging": matmul_merging.RULES,
    "channel_scales": channel_scales.RULES,
    "conv_composition": conv_composition.RULES,
    "matmul_spellings": matmul_spellings.RULES,
    "average_pooling": average_pooling.RULES,
    "pooling": pooling.RULES,
    "matmul_algebra": matmul_algebra.RULES,
    "linearity": linearity.RULES,
    "embedding_linear": embedding_linear.RULES,
    "embedding_merging": embedding_merging.RULES,
    "concat_slice": concat_slice.RULES,
    "movement": movement.RULES,
    "channel_padding": channel_padding.RULES,
    "transposed_operands": transposed_operands.RULES,
    "elementwise_algebra": elementwise_algebra.RULES,
    "found": found.RULES,
}
CANDIDATES = {name: special.flagged(rules) for name, rules in _WRITTEN.items()}
"""Those that change what is not finite, or the sign of a zero, say so."""

ALL: tuple[Rule, ...] = tuple(rule for family in CANDIDATES.values() for rule in family)
"""What a search may apply."""
SIBLINGS: tuple[Rule, ...] = tuple(
    next(rule for rule in ALL if rule.name == name)
    for name in (*linear_merging.SIBLINGS, *conv_merging.SIBLINGS)
)
"""Those that make one linear or convolution of several with one input, the larger first."""
PUBLISHED_ALONE = special.flagged(published_alone.RULES)
"""What no other search may."""
PUBLISHED: tuple[Rule, ...] = (*published.published(CANDIDATES), *PUBLISHED_ALONE)
"""What published searches may."""
