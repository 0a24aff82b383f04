"""Keys: names and weights do not matter where structure does, and do where content does."""

from __future__ import annotations

import hashlib

import pytest
import torch

from anabranch.ir.key import (
    SMALL_BYTES,
    THREADS,
    code,
    content_key,
    copied_together,
    digest_tensor,
    digest_tensors,
    structure_key,
    task_key,
)
from anabranch.ir.task import Kernel, Task
from anabranch.ir.text import parse_graph

TEXT = """
graph {g} {{
  input %{x}: f32[2,3]
  const %{w}: f32[3] = {digest}
  %{y}: f32[2,3] = aten.add.Tensor(%{x}, %{w}, alpha={alpha})    # {origin}
  return %{y}
}}"""


def graph(**changed: str) -> str:
    names = {
        "g": "g",
        "x": "x",
        "w": "w",
        "y": "y",
        "digest": "1",
        "alpha": "2",
        "origin": "a.py:1",
    }
    return TEXT.format(**{**names, **changed})


def test_structure_ignores_names_weights_and_origin() -> None:
    a, b = (
        parse_graph(graph()),
        parse_graph(graph(g="h", x="p", w="q", y="r", digest="2", origin="b")),
    )
    assert structure_key(a) == structure_key(b)
    assert content_key(a) != content_key(b)
    assert structure_key(a) != structure_key(parse_graph(graph(alpha="3")))


def test_a_task_is_keyed_with_its_kernel() -> None:
    body = parse_graph(graph())
    plain, fast = Task("t", body), Task("u", body, Kernel("aten", "aten", body))
    other = Task("t", body, Kernel("aten", "aten", body, variant="1"))
    assert len({task_key(plain), task_key(fast), task_key(other)}) == 3
    assert task_key(plain) == task_key(Task("v", body))


def test_digests_name_the_content() -> None:
    a = torch.arange(6.0).reshape(2, 3)
    assert digest_tensor(a) == digest_tensor(a.clone())
    assert digest_tensor(a) != digest_tensor(a + 1)
    assert digest_tensor(a) != digest_tensor(a.reshape(3, 2))
    assert digest_tensor(torch.empty(0)) != digest_tensor(torch.empty(0, dtype=torch.half))
    right = hashlib.sha256(b"torch.float32(2, 3)" + a.numpy().tobytes()).hexdigest()[:32]
    assert digest_tensor(a) == right
    assert digest_tensor(a.to(torch.bfloat16)) == digest_tensor(a.to(torch.bfloat16))
    long = (0, 4, SMALL_BYTES)  # nothing, what is digested at once, and what a thread is given
    many = [torch.full((size % 2 + 1, long[size % 3]), size) for size in range(4 * THREADS)]
    assert digest_tensors(iter(many)) == [digest_tensor(one) for one in many]


def test_memory_of_a_tensor_that_was_digested_can_be_resized() -> None:
    tensors = [torch.ones(4), torch.ones(1 << 15)]
    digest_tensor(tensors[0])
    digest_tensors(tensors)
    for tensor in tensors:
        size = 2 * tensor.numel()
        assert tensor.untyped_storage().resizable()
        assert tensor.resize_(size).numel() == size


def test_bytes_that_are_copied_together_are_each_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.ir.key.TOGETHER_BYTES", 8)
    sizes = [3, 0, 5, 1, 9, 0, 2, 8]  # eight together, one more, too many for any, three, eight
    whole = torch.arange(sum(sizes), dtype=torch.uint8)
    parts = torch.split(whole, sizes)
    found = list(copied_together(iter(parts)))
    assert [part.tolist() for part in found] == [part.tolist() for part in parts]
    assert list(copied_together([])) == []


def test_numbers_that_are_equal_and_yet_differ_make_other_graphs() -> None:
    """Caches find graphs by equality, and x / -0.0 is not x / 0.0."""
    numbers = ["0.0", "-0.0", "0", "False", "1", "1.0", "True"]
    graphs = [parse_graph(graph(alpha=number)) for number in numbers]
    assert len(set(graphs)) == len({structure_key(one) for one in graphs}) == len(numbers)
    assert parse_graph(graph(alpha="-0.0")) == graphs[1]


@pytest.mark.parametrize(
    ("source", "left"),
    [
        ("", ""),
        ("# only", ""),
        ("# task a\n# from b\r\nimport triton\n# c\n", "import triton\n# c\n"),
        ("# of a model\u2028code", "code"),
        (" # none\n", " # none\n"),
    ],
)
def test_code_is_what_follows_the_first_comment(source: str, left: str) -> None:
    assert code(source) == left
