"""Language and speech models of transformers with random weights, each with one call's arguments.

    PYTHONPATH=src python3 -m anabranch bench benchmarks/language.py:gpt2 --dtype fp16

Default configurations of their classes, but for Llama's; 128 tokens, or 30 seconds' spectrum.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

TOKENS, WORDS = 128, 30_000

Loaded = tuple[nn.Module, tuple[Tensor, ...]]


class Hidden(nn.Module):
    """A model's last hidden state alone. `fixed`: arguments that every call has."""

    def __init__(self, model: nn.Module, **fixed: Any) -> None:
        super().__init__()
        self.model, self.fixed = model.eval(), fixed

    def forward(self, *args: Tensor) -> Any:
        return self.model(*args, **self.fixed).last_hidden_state


def tokens(batch: int) -> Tensor:
    return torch.randint(0, WORDS, (batch, TOKENS))


def gpt2(batch: int = 1) -> Loaded:
    from transformers import GPT2Config, GPT2Model

    return Hidden(GPT2Model(GPT2Config()), use_cache=False), (tokens(batch),)


def distilbert(batch: int = 1) -> Loaded:
    from transformers import DistilBertConfig, DistilBertModel

    return Hidden(DistilBertModel(DistilBertConfig())), (tokens(batch),)


def llama(batch: int = 1) -> Loaded:
    """Eight layers of 1,024, with four heads of keys and values for sixteen of queries."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=32_000,
    )
    return Hidden(LlamaModel(config), use_cache=False), (tokens(batch),)


def t5(batch: int = 1) -> Loaded:
    """The encoder."""
    from transformers import T5Config, T5EncoderModel

    return Hidden(T5EncoderModel(T5Config())), (tokens(batch),)


def whisper(batch: int = 1) -> Loaded:
    """The encoder."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    return Hidden(WhisperEncoder(WhisperConfig())), (torch.randn(batch, 80, 3000),)
