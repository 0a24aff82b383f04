"""Tables of rules. Those that always help run to a fixed point (`always`); those that might help
feed the search, and stand in files of their own, a line for each family."""

from anabranch.ir.rule import Rule
from anabranch.rewrite.rules import (
    attention_scale,
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
    recurrences,
    space_to_depth,
    special,
    transposed_operands,
)

_WRITTEN: dict[str, tuple[Rule, ...]] = {
    # First, for others then have one place where there was one for each step.
    "recurrences": recurrences.RULES,
    "merging": conv_merging.RULES,
    "interleaved": conv_merging.INTERLEAVED,
    "activated": conv_merging.ACTIVATED,
    "channels": layers.CHANNELS,
    "groups": grouped_convs.RULES,
    "blocks": space_to_depth.RULES,
    "linears": linear_merging.RULES,
    "normed": linear_after_norm.RULES,
    "fewrows": norm_by_parts.RULES,
    "products": matmul_merging.RULES,
    "attention": attention_scale.RULES,
    "forms": channel_scales.RULES,
    "composing": conv_composition.RULES,
    "matrices": matmul_spellings.RULES,
    "averages": average_pooling.RULES,
    "pooling": pooling.RULES,
    "algebra": matmul_algebra.RULES,
    "linearity": linearity.RULES,
    "lookups": embedding_linear.RULES,
    "tables": embedding_merging.RULES,
    "stacked": embedding_linear.STACKED,
    "pieces": concat_slice.RULES,
    "movement": movement.RULES,
    "vectors": channel_padding.RULES,
    "transposes": transposed_operands.RULES,
    "sums": elementwise_algebra.RULES,
    "found": found.RULES,
}
CANDIDATES = {name: special.flagged(rules) for name, rules in _WRITTEN.items()}
"""Those that change what is not finite, or the sign of a zero, say so."""

ALL: tuple[Rule, ...] = tuple(rule for family in CANDIDATES.values() for rule in family)
"""What a search may apply."""
PUBLISHED = published.published(CANDIDATES)
"""What published searches may."""
