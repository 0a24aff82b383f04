"""DeepFM's pair term against the sum over all pairs of fields."""

from itertools import combinations

import torch

from anabranch.models.zoo.deepfm import DeepFM, build, inputs


def test_pair_term_is_the_sum_over_pairs() -> None:
    model, (ids, numbers) = build("tiny"), inputs("tiny", 3)
    assert isinstance(model, DeepFM)
    with torch.no_grad():
        vectors = [table(ids[:, i]) for i, table in enumerate(model.tables)]
        vectors += [numbers[:, i, None] * v for i, v in enumerate(model.number_vectors)]
        pairs = torch.stack([(a * b).sum(1) for a, b in combinations(vectors, 2)]).sum(0)
        linear = sum(weight(ids[:, i])[:, 0] for i, weight in enumerate(model.weights))
        deep = torch.cat(vectors, 1)
        for layer in model.deep:
            deep = layer(deep).relu()
        logit = linear + model.number_weights(numbers)[:, 0] + pairs + model.deep_out(deep)[:, 0]
        torch.testing.assert_close(model(ids, numbers)[:, 0], torch.sigmoid(logit))
