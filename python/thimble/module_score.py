"""module_score.py: bits per byte of a text, before and after, of a model that PyTorch runs, with sliding windows
(docs/reference/evaluation.md): every token is predicted once, from at least `context` - `stride` tokens before it where
the text has as many.

N = predicted tokens
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn import functional

from .errors import UsageError
from .module_parameters import at_rest

LONGEST_CONTEXT = 2048  # by default
BETWEEN_TEXTS = ("<|endoftext|>", "<|end_of_text|>", "<s>", "<bos>", "</s>")


def _context_of(model: torch.nn.Module) -> int:
    config = getattr(model, "config", None)
    return min(getattr(config, "max_position_embeddings", None) or LONGEST_CONTEXT, LONGEST_CONTEXT)


def _first_token(model: torch.nn.Module, tokenizer: Any) -> int | None:
    """What the program begins texts with (docs/tokenizers.md)."""
    if tokenizer.bos_token_id is not None:
        return tokenizer.bos_token_id
    known = tokenizer.get_vocab()
    between = [known[token] for token in BETWEEN_TEXTS if token in known]
    return between[0] if between else getattr(getattr(model, "config", None), "bos_token_id", None)


def _windows(count: int, context: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Where the context begins, and the predictions [first, end) that are scored in it."""
    begin = first = 0
    while first < count:
        end = min(begin + context, count)
        yield begin, first, end
        begin, first = begin + stride, end


def nats_of_tokens(model: torch.nn.Module, tokens: torch.Tensor, context: int, stride: int,
                   values: Mapping[str, torch.Tensor] | None = None) -> torch.Tensor:  # fmt: skip
    """Negative log-likelihoods (N) in nats, float64, of tokens (N + 1) behind the first, by the model, or by it with
    these parameters instead of its own."""
    nats = torch.empty(len(tokens) - 1, dtype=torch.float64)
    with torch.no_grad(), at_rest(model):
        for begin, first, end in _windows(len(nats), context, stride):
            window = tokens[None, begin:end]
            given = model(window) if values is None else torch.func.functional_call(model, values, (window,))
            logits = getattr(given, "logits", given)[0, first - begin :].float()
            nats[first:end] = functional.cross_entropy(logits, tokens[first + 1 : end + 1], reduction="none").cpu()
    return nats


def score(model: torch.nn.Module, tokenizer: Any, text: str, values: Mapping[str, torch.Tensor],
          context: int | None = None, stride: int | None = None) -> dict[str, Any]:  # fmt: skip
    """Bits per byte of `text` in UTF-8 by the model, before, and with `values`, after: as the JSON of `thimble quantize`
    has them. Predictions begin behind the token that a text begins with; where there is none, behind the text's own first token, whose bytes do not count then. `context`: default what the model was made for, at most 2048; `stride`: default
    half of that."""
    context = context or _context_of(model)
    stride = stride or max(1, context // 2)
    if not 1 <= stride <= context:
        raise UsageError(f"stride is {stride}, allowed are 1 to the context, {context}")
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    size = len(text.encode())
    first = _first_token(model, tokenizer)
    if first is not None:
        ids = [first, *ids]
    elif ids:
        size -= len(tokenizer.decode(ids[:1]).encode())
    if len(ids) < 2 or size <= 0:
        raise UsageError(f"a text of {len(ids)} tokens has nothing to predict")
    tokens = torch.tensor(ids, device=next(model.parameters()).device)
    before = nats_of_tokens(model, tokens, context, stride)
    after = nats_of_tokens(model, tokens, context, stride, values)
    how = {"targets": len(before), "total_targets": len(before), "text_bytes": size, "context": context, "stride": stride}
    sides = {side: {"bits_per_byte": nats.sum().item() / math.log(2) / size} | how
             for side, nats in (("before", before), ("after", after))}  # fmt: skip
    # No standard error: that takes the bytes of each block of the text (eval/score/loss_blocks.h), which tokenizers of
    # transformers do not tell.
    gap = sides["after"]["bits_per_byte"] - sides["before"]["bits_per_byte"]
    return sides | {"gap_bits_per_byte": gap, "gap_standard_error": None}
