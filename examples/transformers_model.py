"""Compile a model of Hugging Face transformers; it is called by keywords and returns its own class.

pip install transformers
python examples/transformers_model.py
"""

import torch
from transformers import BertConfig, BertModel

import anabranch

# A small one with random weights, so that nothing is downloaded; from_pretrained is as good.
config = BertConfig(
    vocab_size=1000,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=128,
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
model = BertModel(config).eval().to(DEVICE)
inputs = {
    "input_ids": torch.randint(0, config.vocab_size, (1, 16), device=DEVICE),
    "attention_mask": torch.ones(1, 16, dtype=torch.int64, device=DEVICE),
}

fast = anabranch.compile(model, kwargs=inputs, search_seconds=5)
output = fast(**inputs)
with torch.no_grad():
    expected = model(**inputs)
assert type(output) is type(expected)
torch.testing.assert_close(
    output.last_hidden_state, expected.last_hidden_state, rtol=1e-3, atol=1e-4
)
print(fast)
print(f"{type(output).__name__} with last_hidden_state {tuple(output.last_hidden_state.shape)}")

# Its weights are the plan's own; new ones are taken in place, and nothing is compiled again.
other = BertModel(config).eval().to(DEVICE)
fast.refit(other)
with torch.no_grad():
    torch.testing.assert_close(
        fast(**inputs).pooler_output, other(**inputs).pooler_output, rtol=1e-3, atol=1e-4
    )
print("refitted with the weights of another model")
