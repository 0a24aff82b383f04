"""T5's distances by hand, and who reads what: the encoder all of the text, the decoder no answer
that is yet to come."""

import torch

from anabranch.models.zoo import ZOO
from anabranch.models.zoo.t5 import buckets


def test_buckets_of_distances() -> None:
    """Exact up to 7 ahead and behind, then by logarithm: 8 * 16 ** (i / 8) begins bucket 8 + i."""
    ahead = torch.tensor([-200, -128, -16, -12, -11, -8, -7, -1, 0, 1, 7, 8, 11, 12, 200])
    both = [15, 15, 10, 9, 8, 8, 7, 1, 0, 17, 23, 24, 24, 25, 31]
    assert buckets(ahead, both=True).tolist() == both
    causal = [31, 31, 16, 12, 11, 8, 7, 1, 0, 0, 0, 0, 0, 0, 0]
    assert buckets(ahead, both=False).tolist() == causal


def test_the_decoder_reads_the_text_and_no_later_tokens() -> None:
    model, (text, answer) = ZOO["t5"].build("tiny"), ZOO["t5"].inputs("tiny", 1)
    later, other = answer.clone(), text.clone()
    later[:, 10:] = (later[:, 10:] + 1) % 100
    other[:, -1] = (other[:, -1] + 1) % 100
    with torch.no_grad():
        plain, changed, reread = model(text, answer), model(text, later), model(other, answer)
    torch.testing.assert_close(plain[:, :10], changed[:, :10])
    assert not torch.allclose(plain[:, 10:], changed[:, 10:])
    assert not torch.allclose(plain[:, 0], reread[:, 0])
