"""BERT's optional arguments: by default one sentence without padding; padding is not read."""

import torch

from anabranch.models.zoo import ZOO


def test_defaults_are_all_ones_and_all_zeros() -> None:
    model, (ids,) = ZOO["bert_base"].build("tiny"), ZOO["bert_base"].inputs("tiny", 2)
    with torch.no_grad():
        plain = model(ids)
        explicit = model(ids, torch.ones_like(ids), torch.zeros_like(ids))
        other = model(ids, None, torch.ones_like(ids))
    for a, b, c in zip(plain, explicit, other, strict=True):
        torch.testing.assert_close(a, b)
        assert not torch.allclose(a, c)


def test_masked_tokens_are_not_read() -> None:
    model, (ids,) = ZOO["bert_base"].build("tiny"), ZOO["bert_base"].inputs("tiny", 1)
    mask = torch.ones_like(ids)
    mask[:, 10:] = 0
    changed = ids.clone()
    changed[:, 10:] = (changed[:, 10:] + 1) % 100
    with torch.no_grad():
        hidden, pooled = model(ids, mask)
        hidden_changed, pooled_changed = model(changed, mask)
    torch.testing.assert_close(hidden[:, :10], hidden_changed[:, :10])
    torch.testing.assert_close(pooled, pooled_changed)
