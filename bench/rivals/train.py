#!/usr/bin/env python3
"""Makes the models that rivals are compared on, where none can be had: trains a Llama from nothing, or a folder's on.

  train.py OUT --tokens SHARD [--validation SHARD] --width 512 --layers 14 --vocabulary 1024     a new one
  train.py OUT --tokens SHARD [--validation SHARD] --start FOLDER --off-grid --steps 300 --rate 3e-4   a folder's on,
                                                                                               off a grid of 4 bits

OUT gets config.json and model.safetensors in bf16, and the tokenizer of the folder it began from. Sequences of
--length tokens lie anywhere in SHARD (thimble tokenize), drawn with --seed. AdamW, a cosine schedule after a twentieth
of the steps, bf16 products. Losses in nats per token, on the validation shard's first --validation-sequences
sequences, as the training goes on. --off-grid first adds to each weight an error uniform over one step of the grid that
it lies on, where 32 neighbours in a row have at most 16 values, as those of a GGUF file of Q4_0 or Q4_1 do.
Needs torch and transformers, and a CUDA device for any but the smallest models.
"""
import argparse
import math
import shutil
import time
from pathlib import Path

import numpy
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from token_shard import HEADER_BYTES, token_bytes

HEAD_COLUMNS = 64
GRID_COLUMNS, GRID_VALUES = 32, 16  # of a block of Q4_0 and Q4_1


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--validation")
    parser.add_argument("--validation-sequences", type=int, default=64)
    parser.add_argument("--start", help="a folder of Hugging Face to train on")
    parser.add_argument("--off-grid", action="store_true", help="with --start: leave a grid of 4 bits first")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=14)
    parser.add_argument("--mlp", type=int, help="columns inside the MLP; by default 8/3 of the width, whole 256s")
    parser.add_argument("--kv-heads", type=int, help="by default half of the heads of 64 columns")
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=64, help="sequences in a step")
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--decay", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def read_shard(path):
    raw = Path(path).read_bytes()
    kind = {2: numpy.uint16, 4: numpy.uint32}[token_bytes(raw)]
    return torch.from_numpy(numpy.frombuffer(raw, kind, offset=HEADER_BYTES).astype(numpy.int64))


def make_model(options):
    if options.start:
        return AutoModelForCausalLM.from_pretrained(options.start, dtype=torch.float32)
    heads = options.width // HEAD_COLUMNS
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=options.vocabulary, hidden_size=options.width, num_hidden_layers=options.layers,
        intermediate_size=options.mlp or math.ceil(options.width * 8 / 3 / 256) * 256, num_attention_heads=heads,
        num_key_value_heads=options.kv_heads or heads // 2, max_position_embeddings=max(1024, options.length),
        tie_word_embeddings=True, bos_token_id=1, eos_token_id=2))


def leave_grid(matrix):
    """Adds up to half a step of a block's grid to each of its weights. Returns the share of weights on a grid."""
    if matrix.shape[1] % GRID_COLUMNS:
        return 0.0
    blocks = matrix.data.view(-1, GRID_COLUMNS)
    values = blocks.sort(dim=1).values
    on_grid = 1 + (values.diff(dim=1) > 0).sum(dim=1, keepdim=True) <= GRID_VALUES
    step = (values[:, -1:] - values[:, :1]) / (GRID_VALUES - 1)
    blocks += torch.where(on_grid, step, 0.0) * (torch.rand_like(blocks) - 0.5)
    return on_grid.float().mean().item()


def loss_of(model, rows):
    with torch.autocast(rows.device.type, dtype=torch.bfloat16):
        logits = model(input_ids=rows[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())


def validate(model, sequences):
    model.eval()
    with torch.no_grad():
        losses = [loss_of(model, rows).item() * len(rows) for rows in sequences.split(8)]
    model.train()
    return sum(losses) / len(sequences)


def rate_at(step, options):
    warm = max(1, options.steps // 20)
    if step < warm:
        return (step + 1) / warm
    return 0.5 + 0.5 * math.cos(math.pi * (step - warm) / max(1, options.steps - warm))


def main():
    options = parse()
    torch.manual_seed(options.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens = read_shard(options.tokens)
    if len(tokens) <= options.length:
        raise SystemExit(f"{options.tokens}: {len(tokens)} tokens, where a sequence has {options.length + 1}")
    sequences = None
    if options.validation:
        held_out = read_shard(options.validation)
        count = min(len(held_out) // (options.length + 1), options.validation_sequences)
        sequences = held_out[:count * (options.length + 1)].view(count, -1).to(device)
    model = make_model(options).to(device).train()
    count = sum(p.numel() for p in model.parameters())
    print(f"{count:,} parameters, {len(tokens):,} tokens", flush=True)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim != 2]
    report = f"held out {validate(model, sequences):.4f}" if sequences is not None else ""
    if options.off_grid:
        left = sum(leave_grid(matrix) * matrix.numel() for matrix in matrices)
        report += f", {100 * left / count:.1f} % of the weights leave a grid"
        report += f", held out {validate(model, sequences):.4f}" if sequences is not None else ""
    print(report.removeprefix(", "), flush=True)
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": options.decay},
                                   {"params": vectors, "weight_decay": 0.0}], lr=options.rate, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, options))
    step_model = torch.compile(model) if device == "cuda" else model
    places = torch.Generator().manual_seed(options.seed)
    columns = torch.arange(options.length + 1)
    began = time.monotonic()
    for step in range(options.steps):
        first = torch.randint(len(tokens) - options.length, (options.batch, 1), generator=places)
        loss = loss_of(step_model, tokens[first + columns].to(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        if (step + 1) % max(1, options.steps // 10) == 0:
            held_out = f", held out {validate(model, sequences):.4f}" if sequences is not None else ""
            print(f"step {step + 1}: {loss.item():.4f}{held_out}, {time.monotonic() - began:.0f} s", flush=True)
    model.to(torch.bfloat16).save_pretrained(options.out)
    if options.start:
        for file in Path(options.start).glob("tokenizer*"):
            shutil.copy(file, options.out)


if __name__ == "__main__":
    main()
