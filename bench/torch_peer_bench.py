#!/usr/bin/env python3
"""The same work as cuda_forward_bench in PyTorch, as fast as we could make it: what our figures are compared with.

  bench/torch_peer_bench.py [--contexts 512 2048] [--skip-generation] [--autotune] [--llama SHAPE]

A 30M-parameter golf-gpt with random weights, bf16, torch.compile, scaled-dot-product attention (the fastest of its
backends), logits of the scored positions only; with --llama scoring by a Llama of that shape instead. Generation:
static key/value caches in buckets of 256 positions, each step one CUDA graph, sampling on the device. Prints medians.
Needs torch >= 2.5 and a CUDA device.
"""
import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import golf_gpt  # noqa: E402
from golf_gpt import GolfGpt, GolfGptConfig, apply_rope, rms_norm, rope_tables  # noqa: E402

SHAPE = GolfGptConfig(vocab_size=1024, num_layers=11, model_dim=512, num_heads=8, num_kv_heads=4, mlp_mult=3.5,
                      xsa_last_n=11, bigram_vocab_size=3072, bigram_dim=112, smear_gate=True, ve_layers=(9, 10), ve_dim=128)
STRIDE = 64
SEQUENCES, LENGTH, BUCKET = 64, 2048, 256


def random_model():
    torch.manual_seed(1)
    model = GolfGpt(SHAPE)
    with torch.no_grad():
        for bank in (model.qo_bank, model.mlp_down_bank):
            bank.normal_(std=bank.shape[-1] ** -0.5)
    return model.cuda().bfloat16().eval().requires_grad_(False)


def median_seconds(body, runs=5):
    seconds = []
    for _ in range(runs):
        torch.cuda.synchronize()
        start = time.perf_counter()
        body()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def score(model, windows, targets):
    """Summed NLL of each window's last targets."""
    hidden = model.hidden(windows)[:, -targets.shape[1]:]
    return F.cross_entropy(model.logits(hidden).flatten(0, 1), targets.flatten(), reduction="none")


# vocabulary, layers, heads, key/value heads, width, width of the MLP; heads of 64, tied embeddings
LLAMAS = {"smollm2-135m": (49152, 30, 9, 3, 576, 1536), "llama-3.2-1b": (128256, 16, 32, 8, 2048, 8192)}


class Llama(torch.nn.Module):
    def __init__(self, shape, context):
        super().__init__()
        self.vocabulary, self.layers, self.heads, self.kv_heads, width, mlp = LLAMAS[shape]
        rows = (self.heads + 2 * self.kv_heads) * 64
        weight = lambda *size: torch.nn.Parameter(torch.randn(size) * size[-1] ** -0.5)  # noqa: E731
        matrices = {"qkv": (rows, width), "out": (width, self.heads * 64), "up": (2 * mlp, width), "down": (width, mlp)}
        self.blocks = torch.nn.ModuleList(
            torch.nn.ParameterDict({name: weight(*size) for name, size in matrices.items()})
            for _ in range(self.layers))
        self.norms = torch.nn.Parameter(torch.ones(2 * self.layers + 1, width))
        self.embedding = weight(self.vocabulary, width)
        angles = torch.arange(context)[:, None] * 100000.0 ** (-torch.arange(0, 64, 2) / 64)
        self.register_buffer("cos", angles.cos().repeat(1, 2)[:, None])
        self.register_buffer("sin", torch.cat((-angles.sin(), angles.sin()), -1)[:, None])

    def forward(self, windows, targets):
        """As score()."""
        norm = lambda x, i: F.rms_norm(x, x.shape[-1:], self.norms[i], 1e-5)  # noqa: E731
        turn = lambda q: q * self.cos + q.roll(32, -1) * self.sin  # noqa: E731
        x = F.embedding(windows, self.embedding)
        for i, block in enumerate(self.blocks):
            qkv = F.linear(norm(x, 2 * i), block["qkv"]).unflatten(-1, (-1, 64))
            q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), -2)
            y = F.scaled_dot_product_attention(turn(q).transpose(1, 2), turn(k).transpose(1, 2), v.transpose(1, 2),
                                               is_causal=True, enable_gqa=True)
            x = x + F.linear(y.transpose(1, 2).flatten(2), block["out"])
            gate, up = F.linear(norm(x, 2 * i + 1), block["up"]).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, block["down"])
        hidden = norm(x[:, -targets.shape[1]:], -1)
        logits = F.linear(hidden, self.embedding)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")


def llama_rate(shape, backend, autotune, context=2048, stride=512, rows=65536, batches=4):
    model = Llama(shape, context).cuda().bfloat16().eval().requires_grad_(False)
    compiled = torch.compile(model, dynamic=False, mode="max-autotune-no-cudagraphs" if autotune else "default")
    windows = torch.randint(0, model.vocabulary, (rows // context, context), device="cuda")
    targets = torch.randint(0, model.vocabulary, (rows // context, stride), device="cuda")
    with sdpa_kernel(backend):
        compiled(windows, targets)
        seconds = median_seconds(lambda: [compiled(windows, targets) for _ in range(batches)])
    return batches * rows / seconds


def scoring_rate(model, context, backend, autotune, rows=65536, batches=16):
    compiled = torch.compile(score, dynamic=False, mode="max-autotune-no-cudagraphs" if autotune else "default")
    windows = torch.randint(0, SHAPE.vocab_size, (rows // context, context), device="cuda")
    targets = torch.randint(0, SHAPE.vocab_size, (rows // context, STRIDE), device="cuda")
    with sdpa_kernel(backend):
        for _ in range(3):
            compiled(model, windows, targets)
        seconds = median_seconds(lambda: [compiled(model, windows, targets) for _ in range(batches)])
    return batches * windows.numel() / seconds


def step(model, tokens, previous, before, position, cos, sin, keys, values, length):
    """One position of all sequences: logits (S, V). `length` bounds the cached positions that are read."""
    c = model.config
    n, skips, rows = c.num_layers, c.num_skips, tokens.shape[0]

    def embedding(token, earlier, has_earlier):
        buckets = c.bigram_vocab_size - 1
        t, e = token.to(torch.int32), earlier.to(torch.int32)
        hashed = torch.where(has_earlier, torch.bitwise_xor(36313 * t, 27191 * e) % buckets, buckets)
        return rms_norm(model.tok_emb(token) + model.bigram.proj(model.bigram.embed(hashed)) * model.bigram.scale)

    gate = torch.sigmoid(model.smear.gate)
    own = embedding(tokens, previous, position > 0)
    x = (1 - gate) * own + gate * torch.where(position > 0, embedding(previous, before, position > 1), 0)
    x0 = x
    value_embedding = model.ve_shared(tokens)
    mask = (torch.arange(length, device="cuda") <= position)[None, None, None, :]
    rope = cos.index_select(0, position), sin.index_select(0, position)
    stack = []
    for i, block in enumerate(model.blocks):
        if 0 <= i - skips < skips:
            x = model.join_skip(i - skips, x, stack.pop())
        x = block.resid_mix[0] * x + block.resid_mix[1] * x0
        normed = rms_norm(x) * block.norm_scale
        q = F.linear(normed, model.qo_bank[i]).view(rows, 1, c.num_heads, c.head_dim)
        k = F.linear(normed, model.kv_bank[i]).view(rows, 1, c.num_kv_heads, c.head_dim)
        v = F.linear(normed, model.kv_bank[n + i])
        if i in c.ve_layers:
            v = v + value_embedding * model.ve_layer_scales[c.ve_layers.index(i)]
        v = v.view(rows, 1, c.num_kv_heads, c.head_dim)
        q = (apply_rope(rms_norm(q), *rope) * block.attn.q_gain[:, None]).to(v.dtype)
        k = apply_rope(rms_norm(k), *rope).to(v.dtype)
        keys[i].index_copy_(2, position, k.transpose(1, 2))
        values[i].index_copy_(2, position, v.transpose(1, 2))
        y = F.scaled_dot_product_attention(q.transpose(1, 2), keys[i][:, :, :length], values[i][:, :, :length],
                                           attn_mask=mask, enable_gqa=True)
        own_value = F.normalize(v, dim=-1, eps=1e-12).view(rows, c.num_kv_heads, 1, c.head_dim)
        y = y.view(rows, c.num_kv_heads, -1, c.head_dim)
        y = y - (y * own_value).sum(-1, keepdim=True) * own_value
        x = x + block.attn_scale * F.linear(y.reshape(rows, -1), model.qo_bank[n + i])
        hidden = F.leaky_relu(F.linear(rms_norm(x) * block.norm_scale, model.mlp_up_bank[i]), 0.5).square()
        x = x + block.mlp_scale * F.linear(hidden, model.mlp_down_bank[i])
        if i < skips:
            stack.append(x)
    return model.logits(x)


def generation_seconds(model):
    c = model.config
    shape = (c.num_layers, SEQUENCES, c.num_kv_heads, LENGTH, c.head_dim)
    keys = torch.zeros(shape, device="cuda", dtype=torch.bfloat16)
    values = torch.zeros_like(keys)
    cos, sin = (table[:, 0] for table in rope_tables(c, LENGTH, LENGTH, "cuda"))
    history = torch.zeros((LENGTH, SEQUENCES), device="cuda", dtype=torch.long)
    position = torch.zeros(1, device="cuda", dtype=torch.long)

    def advance(length):
        tokens = history.index_select(0, position)[0]
        previous = history.index_select(0, (position - 1).clamp(min=0))[0]
        before = history.index_select(0, (position - 2).clamp(min=0))[0]
        logits = step(model, tokens, previous, before, position, cos, sin, keys, values, length)
        drawn = torch.multinomial(torch.softmax(logits / 0.8, -1), 1)[:, 0]
        history.index_copy_(0, position + 1, drawn[None])
        position.add_(1)

    compiled = torch.compile(advance, dynamic=False)
    graphs = []
    for bucket in range(LENGTH // BUCKET):
        length = (bucket + 1) * BUCKET
        position.zero_()
        for _ in range(3):
            compiled(length)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            compiled(length)
        graphs.append(graph)

    def generate():
        position.zero_()
        history[0].random_(c.vocab_size)
        for p in range(LENGTH - 1):
            graphs[p // BUCKET].replay()

    generate()
    return median_seconds(generate, runs=3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", type=int, nargs="*", default=[2048])
    parser.add_argument("--skip-generation", action="store_true")
    parser.add_argument("--autotune", action="store_true", help="let the compiler try many kernels: minutes")
    parser.add_argument("--llama", choices=LLAMAS)
    options = parser.parse_args()
    golf_gpt.torch.set_float32_matmul_precision("high")
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    if options.llama:
        with torch.inference_mode():
            for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
                rate = llama_rate(options.llama, backend, options.autotune)
                print(f"{options.llama}, {backend.name}: {rate / 1e6:.3f} M tokens/s", flush=True)
        return
    model = random_model()
    with torch.inference_mode():
        for context in options.contexts:
            for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
                try:
                    rate = scoring_rate(model, context, backend, options.autotune)
                    print(f"context {context}, {backend.name}: {rate / 1e6:.3f} M tokens/s", flush=True)
                except RuntimeError as error:
                    print(f"context {context}, {backend.name}: {str(error).splitlines()[0]}", flush=True)
        if not options.skip_generation:
            print(f"generation of {SEQUENCES} x {LENGTH}: {generation_seconds(model):.3f} s", flush=True)


if __name__ == "__main__":
    main()
