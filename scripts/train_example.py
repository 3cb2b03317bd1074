#!/usr/bin/env python3
"""train_example.py: trains, scores and checks a golf-gpt; made the model of examples/tiny.

  train:   train_example.py --train train.txt --tokenizer sp.model --text text.bin --out DIR
  score:   train_example.py --checkpoint DIR/model.safetensors --tokenizer sp.model --text text.bin
  record:  train_example.py --checkpoint DIR/model.safetensors --text text.bin --export-golden FILE
  compare: train_example.py --check DIR/model.safetensors FILE

In:  token shards (.bin) or texts (example_tokens.py has both formats), a model configuration.
Out: DIR/model.safetensors (bfloat16 matrices), DIR/config.json, with --pt DIR/model.pt, and a log
     on standard output. A golden file holds tokens, their float32 losses in nats and some logits.
The seed fixes initialisation, data order and dropout; a GPU's sums may still differ in last bits.
Needs Python >= 3.10, torch >= 2.5, numpy, safetensors, sentencepiece.
"""

import argparse
import math
import sys
import time
from pathlib import Path

import numpy as np
import safetensors.numpy
import sentencepiece
import torch
import torch.nn.functional as F
from torch import Tensor

from example_tokens import ByteTable, load_tokens
from golf_gpt import GolfGpt, GolfGptConfig, balance_banks, load_checkpoint, save_checkpoint

DEFAULT_CONFIG = Path(__file__).resolve().parent.parent / "examples" / "tiny" / "config.json"


# ---- optimisation -------------------------------------------------------------------------------


def orthogonalise(matrices: Tensor) -> Tensor:
    """Newton-Schulz iteration: (batch, R, C) -> nearly the closest orthogonal matrices, in bfloat16."""
    a, b, c = 3.4445, -4.7750, 2.0315  # quintic with steep slope at zero (Jordan et al., Muon)
    x = matrices.bfloat16()
    transposed = x.shape[-2] > x.shape[-1]
    if transposed:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if transposed else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised per matrix of a bank, with decoupled weight decay."""

    def __init__(self, params, lr: float, momentum: float, weight_decay: float, compiled: bool):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.orthogonalise = torch.compile(orthogonalise, dynamic=False) if compiled else orthogonalise

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["velocity"] = torch.zeros_like(parameter)
                state["velocity"].lerp_(parameter.grad, 1 - group["momentum"])
                update = self.orthogonalise(parameter.grad.lerp(state["velocity"], group["momentum"]))
                scale = max(1.0, parameter.shape[-2] / parameter.shape[-1]) ** 0.5
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-group["lr"] * scale)


def build_optimisers(model: GolfGpt, options) -> list[torch.optim.Optimizer]:
    """Muon (or AdamW) for the banks, AdamW for embeddings and for vectors and scalars."""
    banks, tables, vectors = [], [], []
    for name, parameter in model.named_parameters():
        kind = banks if name.endswith("_bank") else tables if name.endswith(".weight") else vectors
        kind.append(parameter)
    groups = [
        {"params": tables, "lr": options.table_lr, "weight_decay": options.table_decay},
        {"params": vectors, "lr": options.vector_lr, "weight_decay": 0.0},
    ]
    optimisers: list[torch.optim.Optimizer] = []
    if options.optimiser == "muon":
        optimisers.append(Muon(banks, options.bank_lr, 0.95, options.bank_decay, options.compile))
    else:
        groups.append({"params": banks, "lr": options.bank_lr, "weight_decay": options.bank_decay})
    optimisers.append(torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-10, fused=True))
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["peak_lr"] = group["lr"]
    return optimisers


def learning_rate_factor(step: int, steps: int, warmup: int, cooldown: float) -> float:
    """Linear warm-up, constant, then linear to zero over the last `cooldown` share of the steps."""
    rising = (step + 1) / max(1, warmup)
    falling = (steps - step) / max(1.0, cooldown * steps)
    return min(1.0, rising, falling)


# ---- data ---------------------------------------------------------------------------------------


def epoch_batches(tokens: Tensor, length: int, batch: int, generator: torch.Generator):
    """Yield (batch, length + 1) windows that cover the tokens once, from a random offset, shuffled."""
    offset = int(torch.randint(length, (1,), generator=generator))
    windows = (len(tokens) - 1 - offset) // length
    order = torch.randperm(windows, generator=generator)
    starts = (offset + order * length).to(tokens.device)
    span = torch.arange(length + 1, device=tokens.device)
    for first in range(0, windows - batch + 1, batch):
        yield tokens[starts[first : first + batch, None] + span]


def batch_loss(model: GolfGpt, tokens: Tensor) -> Tensor:
    """Mean loss in nats of tokens[:, 1:] given their predecessors."""
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


@torch.no_grad()
def validation_loss(loss_of, model: GolfGpt, tokens: Tensor, length: int, batch: int) -> float:
    """Mean loss in nats over whole batches of disjoint windows: a quick estimate while training."""
    model.eval()
    generator = torch.Generator().manual_seed(0)
    losses = [loss_of(model, part) for part in epoch_batches(tokens, length, batch, generator)]
    model.train()
    return float(torch.stack(losses).double().mean())


# ---- scoring ------------------------------------------------------------------------------------


def scored_windows(targets: int, length: int, stride: int) -> list[tuple[int, int, int]]:
    """(start, first, end): the window's start and the targets [first, end) it scores, each once."""
    windows, scored, start = [], 0, 0
    while scored < targets:
        end = min(start + length, targets)
        windows.append((start, scored, end))
        scored = end
        start += stride
    return windows


@torch.no_grad()
def sliding_window_loss(model: GolfGpt, tokens: Tensor, length: int, stride: int, batch: int) -> float:
    """Summed loss in nats of tokens[1:], float32 forward, float64 sum.

    Every target is scored once, with as much context as its window has. The last window is filled
    up with zeros behind its targets, which a causal model cannot see.
    """
    windows = scored_windows(len(tokens) - 1, length, stride)
    padded = F.pad(tokens, (0, length))
    span = torch.arange(length, device=tokens.device)
    total = torch.zeros((), dtype=torch.float64, device=tokens.device)
    for first in range(0, len(windows), batch):
        part = torch.tensor(windows[first : first + batch], device=tokens.device)
        positions = part[:, :1] + span
        losses = F.cross_entropy(
            model(padded[positions]).transpose(1, 2), padded[positions + 1], reduction="none"
        )
        scored = (positions >= part[:, 1:2]) & (positions < part[:, 2:3])
        total += losses.double()[scored].sum()
    return float(total)


def report_bits_per_byte(model: GolfGpt, tokens: np.ndarray, tokenizer, options) -> None:
    ids = torch.from_numpy(tokens.astype(np.int64)).to(options.device)
    loss = sliding_window_loss(model, ids, options.eval_length, options.stride, options.eval_batch)
    text_bytes = ByteTable(tokenizer).count(tokens)
    print(
        f"score: {len(ids) - 1} targets, {text_bytes} bytes, {loss / (len(ids) - 1):.6f} nats per token, "
        f"{loss / math.log(2) / text_bytes:.6f} bits per byte "
        f"(context {options.eval_length}, stride {options.stride})"
    )


@torch.no_grad()
def golden_tensors(model: GolfGpt, tokens: np.ndarray, length: int, windows: int) -> dict[str, np.ndarray]:
    """Losses (windows, length) of disjoint windows, and the first window's outermost logits."""
    tokens = tokens[: windows * length + 1]
    ids = torch.from_numpy(tokens.astype(np.int64)).to(model.qo_bank.device)
    logits = torch.cat([model(ids[None, w * length : (w + 1) * length]) for w in range(windows)])
    losses = F.cross_entropy(logits.flatten(0, 1), ids[1:], reduction="none")
    return {
        "tokens": tokens,
        "nll_fp32": losses.view(windows, length).cpu().numpy(),
        "logits_fp32_w0_first16": logits[0, :16].cpu().numpy(),
        "logits_fp32_w0_last16": logits[0, -16:].cpu().numpy(),
    }


def check_golden(checkpoint: Path, golden: Path, device: str, tolerance: float) -> bool:
    """Recompute a golden file's numbers; true when none differs by more than the tolerance."""
    expected = safetensors.numpy.load_file(golden)
    tokens = expected["tokens" if "tokens" in expected else "golden_tokens"]
    windows, length = expected["nll_fp32"].shape
    if len(tokens) != windows * length + 1:
        raise ValueError(f"{golden}: {len(tokens)} tokens for {windows} windows of {length}")
    actual = golden_tensors(load_checkpoint(checkpoint, device), tokens, length, windows)
    worst = 0.0
    for name, value in expected.items():
        if name in ("nll_fp32", "logits_fp32_w0_first16", "logits_fp32_w0_last16"):
            error = float(np.abs(actual[name] - value).max())
            worst = max(worst, error)
            print(f"check: {name} {value.shape}: largest difference {error:.3g}")
    print(f"check: {'passed' if worst <= tolerance else 'FAILED'} (tolerance {tolerance:g})")
    return worst <= tolerance


# ---- program ------------------------------------------------------------------------------------


def train(model: GolfGpt, train_tokens: Tensor, val_tokens: Tensor | None, options) -> None:
    loss_of = torch.compile(batch_loss) if options.compile else batch_loss
    optimisers = build_optimisers(model, options)
    generator = torch.Generator().manual_seed(options.seed)
    per_epoch = (len(train_tokens) - options.length) // options.length // options.batch
    steps = options.steps or options.epochs * per_epoch
    batches = (
        batch
        for _ in range(math.ceil(steps / max(1, per_epoch)) + 1)
        for batch in epoch_batches(train_tokens, options.length, options.batch, generator)
    )
    device_type = torch.device(options.device).type
    autocast = torch.autocast(device_type, torch.bfloat16, enabled=device_type == "cuda")
    running, started = None, time.time()
    model.train()
    for step, batch in zip(range(steps), batches):
        factor = learning_rate_factor(step, steps, options.warmup, options.cooldown)
        with autocast:
            loss = loss_of(model, batch)
        loss.backward()
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["peak_lr"] * factor
            optimiser.step()
            optimiser.zero_grad()
        running = loss.detach() if running is None else torch.lerp(running, loss.detach(), 0.01)
        last = step + 1 == steps
        if last or (step + 1) % options.log_every == 0:
            line = f"step {step + 1}/{steps} train {float(running):.4f}"
            if val_tokens is not None:
                with autocast:
                    value = validation_loss(loss_of, model, val_tokens, options.length, options.batch)
                line += f" val {value:.4f}"
            print(f"{line} nats per token, {time.time() - started:.1f} s", flush=True)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--train", type=Path, nargs="+", metavar="FILE", help="training shards (.bin) or texts")
    add("--val", type=Path, metavar="FILE", help="shard or text whose loss is logged while training")
    add("--text", type=Path, metavar="FILE", help="shard or text to score at the end")
    add("--tokenizer", type=Path, metavar="FILE", help="SentencePiece model")
    add("--config", type=Path, default=DEFAULT_CONFIG, metavar="FILE", help="architecture (default: examples/tiny)")
    add("--out", type=Path, metavar="DIR", help="folder for model.safetensors and config.json")
    add("--pt", action="store_true", help="also write model.pt with torch.save")
    add("--checkpoint", type=Path, metavar="FILE", help="score this checkpoint instead of training")
    add("--export-golden", type=Path, metavar="FILE", help="write losses and logits of --text's first windows")
    add("--golden-windows", type=int, default=2, metavar="N", help="windows in that file (default 2)")
    add("--check", type=Path, nargs=2, metavar=("CHECKPOINT", "GOLDEN"), help="compare a checkpoint with a golden file")
    add("--tolerance", type=float, default=1e-3, help="largest difference --check allows (default 1e-3)")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--seed", type=int, default=1337)
    add("--compile", action="store_true", help="use torch.compile")
    add("--epochs", type=int, default=50, help="passes over the training tokens (default 50)")
    add("--steps", type=int, help="number of steps instead of epochs")
    add("--batch", type=int, default=32, help="sequences per step (default 32)")
    add("--length", type=int, default=1024, help="tokens per sequence (default 1024)")
    add("--optimiser", choices=("muon", "adamw"), default="muon", help="for the banks (default muon)")
    add("--bank-lr", type=float, default=0.04)
    add("--bank-decay", type=float, default=0.1, help="weight decay of the banks")
    add("--table-lr", type=float, default=0.02, help="embeddings and other AdamW matrices")
    add("--table-decay", type=float, default=0.1)
    add("--vector-lr", type=float, default=0.01, help="vectors and scalars")
    add("--dropout", type=float, default=0.05, help="on what each layer adds, while training")
    add("--warmup", type=int, default=200, help="steps (default 200)")
    add("--cooldown", type=float, default=0.7, help="share of the steps over which rates fall to 0 (default 0.7)")
    add("--log-every", type=int, default=500, metavar="STEPS")
    add("--eval-length", type=int, default=1024, help="context of the final score (default 1024)")
    add("--stride", type=int, default=64, help="targets per window of the final score (default 64)")
    add("--eval-batch", type=int, default=16, help="windows scored at a time (default 16)")
    options = parser.parse_args()
    if options.check:
        return options
    if bool(options.train) == bool(options.checkpoint):
        parser.error("give --train to train, --checkpoint to score, or --check to compare")
    if options.train and not options.out:
        parser.error("--train needs --out")
    if options.checkpoint and not options.text:
        parser.error("--checkpoint needs --text")
    if not options.tokenizer:
        parser.error("--tokenizer is missing")
    return options


def main() -> int:
    options = parse_options()
    if options.check:
        return 0 if check_golden(*options.check, options.device, options.tolerance) else 3
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(options.tokenizer))
    checkpoint = options.checkpoint
    if options.train:
        torch.manual_seed(options.seed)
        config = GolfGptConfig.load(options.config)
        model = GolfGpt(config, options.dropout).to(options.device)
        print(f"parameters: {sum(parameter.numel() for parameter in model.parameters())}")

        def on_device(paths: list[Path]) -> Tensor:
            tokens = np.concatenate([load_tokens(path, tokenizer) for path in paths])
            if tokens.max() >= config.vocab_size:
                raise ValueError(f"{paths}: token {tokens.max()}, vocabulary {config.vocab_size}")
            return torch.from_numpy(tokens.astype(np.int64)).to(options.device)

        train(model, on_device(options.train), on_device([options.val]) if options.val else None, options)
        balance_banks(model.state_dict(), config)
        options.out.mkdir(parents=True, exist_ok=True)
        config.save(options.out / "config.json")
        checkpoint = options.out / "model.safetensors"
        save_checkpoint(model, checkpoint)
        if options.pt:
            save_checkpoint(model, options.out / "model.pt")
        print(f"wrote {checkpoint}: {checkpoint.stat().st_size} bytes")
    if options.text:
        # What is scored is the file just written, with its rounded matrices.
        model = load_checkpoint(checkpoint, options.device)
        tokens = load_tokens(options.text, tokenizer)
        report_bits_per_byte(model, tokens, tokenizer, options)
        if options.export_golden:
            golden = golden_tensors(model, tokens, options.eval_length, options.golden_windows)
            safetensors.numpy.save_file(golden, options.export_golden)
    return 0


if __name__ == "__main__":
    sys.exit(main())
