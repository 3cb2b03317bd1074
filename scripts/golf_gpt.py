"""golf_gpt.py: the golf-gpt architecture in PyTorch, its configuration and its checkpoints.

The documented template of the model family: a readable forward pass with every option, and the
reference that other implementations are compared with. Parameter names are the checkpoint's names.
Non-goals: training (train_example.py), key/value caches, quantization.

Axis letters: B batch, T tokens, V vocabulary, D model width, H query heads, G key/value heads,
d = D/H head width, n layers, M MLP width. Matrices are (out, in). There are no biases.
Needs torch >= 2.5 and safetensors.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

ARCHITECTURE = "golf-gpt"
ACTIVATION = "leaky_relu_0.5_squared"
RMS_EPSILON = 1.1920929e-7  # float32 machine epsilon


@dataclass(frozen=True)
class GolfGptConfig:
    """The keys of config.json. An option that is 0, false or an empty list is absent."""

    vocab_size: int
    num_layers: int
    model_dim: int
    num_heads: int
    num_kv_heads: int
    mlp_mult: float  # M = int(mlp_mult * model_dim)
    tie_embeddings: bool = True
    logit_softcap: float = 30.0
    rope_base: float = 10000.0
    rope_dims: int = 16  # leading dimensions of each head that rotate
    rope_train_seq_len: int = 1024
    ln_scale: bool = True  # layer i's normed inputs are multiplied by 1/sqrt(i+1)
    xsa_last_n: int = 0  # how many of the last layers use exclusive self-attention
    bigram_vocab_size: int = 0  # rows of the hashed token-pair table
    bigram_dim: int = 0
    smear_gate: bool = False
    skip_gates: bool = False
    ve_layers: tuple[int, ...] = ()  # layers whose values get a token embedding added
    ve_dim: int = 0

    def __post_init__(self):
        object.__setattr__(self, "ve_layers", tuple(self.ve_layers))
        if self.model_dim % self.num_heads or self.num_heads % self.num_kv_heads:
            raise ValueError("model_dim must be a multiple of num_heads, num_heads of num_kv_heads")
        if self.rope_dims % 2 or not 2 < self.rope_dims <= self.head_dim:
            raise ValueError(f"rope_dims {self.rope_dims} must be even, 4 to {self.head_dim}")
        if any(not 0 <= layer < self.num_layers for layer in self.ve_layers):
            raise ValueError(f"ve_layers {self.ve_layers}: layers are 0 to {self.num_layers - 1}")
        if self.bigram_vocab_size == 1:
            raise ValueError("bigram_vocab_size must be 0 or at least 2")

    @property
    def head_dim(self) -> int:
        return self.model_dim // self.num_heads

    @property
    def kv_dim(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def mlp_dim(self) -> int:
        return int(self.mlp_mult * self.model_dim)

    @property
    def num_skips(self) -> int:
        return self.num_layers // 2

    @staticmethod
    def load(path: Path) -> "GolfGptConfig":
        fields = json.loads(path.read_text(encoding="utf-8"))
        for key, expected in (("architecture", ARCHITECTURE), ("mlp_activation", ACTIVATION)):
            if fields.pop(key, expected) != expected:
                raise ValueError(f"{path}: {key} must be {expected}")
        return GolfGptConfig(**fields)

    def save(self, path: Path) -> None:
        fields = {"architecture": ARCHITECTURE, **asdict(self), "mlp_activation": ACTIVATION}
        path.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")


def rms_norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), eps=RMS_EPSILON)


def rope_tables(config: GolfGptConfig, length: int, context_length: int, device) -> tuple[Tensor, Tensor]:
    """cos and sin, (length, 1, rope_dims/2), in float32 from float64 angles.

    Beyond 1024 tokens of context the base grows, so that the slowest rotation spans the context.
    It depends on the evaluation's context length and not on how many tokens one call holds.
    """
    dims = config.rope_dims
    base = config.rope_base
    if context_length > config.rope_train_seq_len:
        base *= (context_length / config.rope_train_seq_len) ** (dims / (dims - 2))
    exponents = torch.arange(0, dims, 2, dtype=torch.float64, device=device) / dims
    angles = torch.outer(torch.arange(length, dtype=torch.float64, device=device), base**-exponents)
    return angles.cos().float()[:, None, :], angles.sin().float()[:, None, :]


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first 2*cos.shape[-1] dimensions of x (B, T, heads, d) as two halves."""
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos + second * sin, second * cos - first * sin, rest), dim=-1)


class BigramEmbedding(nn.Module):
    """An embedding of the hashed pair (previous token, token)."""

    def __init__(self, config: GolfGptConfig):
        super().__init__()
        self.embed = nn.Embedding(config.bigram_vocab_size, config.bigram_dim)
        self.proj = nn.Linear(config.bigram_dim, config.model_dim, bias=False)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, tokens: Tensor) -> Tensor:
        buckets = self.embed.num_embeddings - 1  # the last row is the first position's
        t = tokens.to(torch.int32)
        hashed = torch.bitwise_xor(36313 * t[:, 1:], 27191 * t[:, :-1]) % buckets
        rows = F.pad(hashed, (1, 0), value=buckets)
        return self.proj(self.embed(rows)) * self.scale


class SmearGate(nn.Module):
    """Mixes a share of the previous position into each position, per dimension."""

    def __init__(self, config: GolfGptConfig):
        super().__init__()
        self.gate = nn.Parameter(torch.full((config.model_dim,), -2.0))

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate)
        previous = F.pad(x[:, :-1], (0, 0, 1, 0))
        return (1 - gate) * x + gate * previous


class ValueEmbedding(nn.Module):
    """A token embedding in the space of the values, shared by all layers that use it."""

    def __init__(self, config: GolfGptConfig):
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.ve_dim)
        self.proj = nn.Linear(config.ve_dim, config.kv_dim, bias=False)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.proj(self.embed(tokens)) * self.scale


class Attention(nn.Module):
    """Causal grouped-query attention; its matrices live in the model's banks."""

    def __init__(self, config: GolfGptConfig, layer: int):
        super().__init__()
        self.config = config
        self.exclusive = layer >= config.num_layers - config.xsa_last_n
        self.q_gain = nn.Parameter(torch.full((config.num_heads,), 1.5))

    def forward(self, x: Tensor, weights: tuple[Tensor, ...], value_offset: Tensor | None,
                rope: tuple[Tensor, Tensor]) -> Tensor:
        """x (B, T, D) -> (B, T, D). weights: query, key, value, output; value_offset (B, T, G*d)."""
        config = self.config
        batch, length, _ = x.shape
        query, key, value, output = weights
        q = F.linear(x, query).view(batch, length, config.num_heads, config.head_dim)
        k = F.linear(x, key).view(batch, length, config.num_kv_heads, config.head_dim)
        v = F.linear(x, value)
        if value_offset is not None:
            v = v + value_offset.to(v.dtype)
        v = v.view(batch, length, config.num_kv_heads, config.head_dim)
        q = apply_rope(rms_norm(q), *rope) * self.q_gain[:, None]
        k = apply_rope(rms_norm(k), *rope)
        # Query head h reads key/value head h // (H/G); scores are scaled by 1/sqrt(d).
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2).to(v.dtype), k.transpose(1, 2).to(v.dtype), v.transpose(1, 2),
            is_causal=True, enable_gqa=True,
        ).transpose(1, 2)
        if self.exclusive:
            # Exclusive self-attention: drop the part of y along the position's own value.
            own = F.normalize(v, dim=-1, eps=1e-12)[:, :, :, None, :]
            y = y.view(batch, length, config.num_kv_heads, -1, config.head_dim)
            y = y - (y * own).sum(-1, keepdim=True) * own
        return F.linear(y.reshape(batch, length, -1), output)


class Block(nn.Module):
    """One layer: attention, then an MLP with leaky_relu(., 0.5)^2."""

    def __init__(self, config: GolfGptConfig, layer: int, dropout: float):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.norm_scale = 1 / math.sqrt(layer + 1) if config.ln_scale else 1.0
        self.attn = Attention(config, layer)
        self.attn_scale = nn.Parameter(torch.ones(config.model_dim))
        self.mlp_scale = nn.Parameter(torch.ones(config.model_dim))
        # x and the embedding x0 are mixed at every layer's input.
        self.resid_mix = nn.Parameter(torch.stack((torch.ones(config.model_dim), torch.zeros(config.model_dim))))

    def forward(self, x: Tensor, x0: Tensor, attention_weights: tuple[Tensor, ...], mlp_up: Tensor,
                mlp_down: Tensor, value_offset: Tensor | None, rope: tuple[Tensor, Tensor]) -> Tensor:
        x = self.resid_mix[0] * x + self.resid_mix[1] * x0
        normed = rms_norm(x) * self.norm_scale
        attended = self.attn(normed, attention_weights, value_offset, rope)
        x = x + self.attn_scale * self.dropout(attended)
        hidden = F.linear(rms_norm(x) * self.norm_scale, mlp_up)
        return x + self.mlp_scale * self.dropout(F.linear(F.leaky_relu(hidden, 0.5).square(), mlp_down))


class GolfGpt(nn.Module):
    """tokens (B, T) -> logits (B, T, V). `dropout` acts while training and belongs to no checkpoint."""

    def __init__(self, config: GolfGptConfig, dropout: float = 0.0):
        super().__init__()
        self.config = config
        n, width = config.num_layers, config.model_dim
        self.tok_emb = nn.Embedding(config.vocab_size, width)
        # Banks: entry i is layer i's query (key), entry n + i its attention output (value).
        self.qo_bank = nn.Parameter(torch.empty(2 * n, width, width))
        self.kv_bank = nn.Parameter(torch.empty(2 * n, config.kv_dim, width))
        self.mlp_up_bank = nn.Parameter(torch.empty(n, config.mlp_dim, width))
        self.mlp_down_bank = nn.Parameter(torch.empty(n, width, config.mlp_dim))
        self.blocks = nn.ModuleList(Block(config, layer, dropout) for layer in range(n))
        self.skip_weights = nn.Parameter(torch.ones(config.num_skips, width))
        if config.skip_gates:
            self.skip_gates = nn.Parameter(torch.zeros(config.num_skips, width))
        self.smear = SmearGate(config) if config.smear_gate else None
        self.bigram = BigramEmbedding(config) if config.bigram_vocab_size else None
        if config.ve_layers:
            self.ve_shared = ValueEmbedding(config)
            self.ve_layer_scales = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in config.ve_layers)
        self.lm_head = None if config.tie_embeddings else nn.Linear(width, config.vocab_size, bias=False)
        self.reset_matrices()

    @torch.no_grad()
    def reset_matrices(self) -> None:
        """Normal weights of variance 1/in; the matrices that write into the residual stream start at 0."""
        n = self.config.num_layers
        for bank in (self.qo_bank, self.kv_bank, self.mlp_up_bank):
            bank.normal_(std=bank.shape[-1] ** -0.5)
        self.qo_bank[n:].zero_()
        self.mlp_down_bank.zero_()
        self.tok_emb.weight.normal_(std=0.05)
        if self.bigram is not None:
            self.bigram.embed.weight.normal_(std=0.05)
            self.bigram.proj.weight.zero_()
        if self.config.ve_layers:
            self.ve_shared.embed.weight.normal_(std=0.05)
            self.ve_shared.proj.weight.zero_()
        if self.lm_head is not None:
            self.lm_head.weight.normal_(std=0.05)

    def forward(self, tokens: Tensor, context_length: int | None = None) -> Tensor:
        """Logits of every position. `context_length` sets the RoPE base; the number of tokens if None."""
        return self.logits(self.hidden(tokens, context_length))

    def hidden(self, tokens: Tensor, context_length: int | None = None) -> Tensor:
        """The last layer's output (B, T, D)."""
        config = self.config
        n, skips = config.num_layers, config.num_skips
        length = tokens.shape[1]
        rope = rope_tables(config, length, context_length or length, tokens.device)
        x = self.tok_emb(tokens)
        if self.bigram is not None:
            x = x + self.bigram(tokens)
        x = rms_norm(x)
        if self.smear is not None:
            x = self.smear(x)
        x0 = x
        value_embedding = self.ve_shared(tokens) if config.ve_layers else None
        stack: list[Tensor] = []
        for i, block in enumerate(self.blocks):
            if 0 <= i - skips < skips:  # decoder layer: take back the matching encoder output
                x = self.join_skip(i - skips, x, stack.pop())
            offset = None
            if i in config.ve_layers:
                offset = value_embedding * self.ve_layer_scales[config.ve_layers.index(i)]
            weights = (self.qo_bank[i], self.kv_bank[i], self.kv_bank[n + i], self.qo_bank[n + i])
            x = block(x, x0, weights, self.mlp_up_bank[i], self.mlp_down_bank[i], offset, rope)
            if i < skips:
                stack.append(x)
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Softcapped float32 logits of hidden states (..., D)."""
        head = self.tok_emb.weight if self.lm_head is None else self.lm_head.weight
        logits = F.linear(rms_norm(x), head).float()
        cap = self.config.logit_softcap
        return cap * torch.tanh(logits / cap)

    def join_skip(self, j: int, x: Tensor, skip: Tensor) -> Tensor:
        skip = self.skip_weights[j] * skip
        if not self.config.skip_gates:
            return x + skip
        gate = torch.sigmoid(self.skip_gates[j])
        return (1 - gate) * skip + gate * x


def balance_banks(state: dict[str, Tensor], config: GolfGptConfig) -> None:
    """Multiply each matrix of the banks, in place, by a power of two to bring its RMS to 0.125-0.25.

    The model stays the same function: queries and keys are normalised after their matrices, and
    attn_scale, mlp_scale and ve_layer_scales take back what the others gain, exactly. Weight decay
    leaves matrices of arbitrary size; fixed-precision quantizers of this family never use a row
    scale below 1/15 or 1/31 and so need weights of the usual size.
    """

    def factor(matrix: Tensor) -> float:
        rms = float((matrix**2).mean()) ** 0.5
        return 2.0 ** round(math.log2(2**-2.5 / rms)) if rms > 0 else 1.0

    n = config.num_layers
    for i in range(n):
        query, output = state["qo_bank"][i], state["qo_bank"][n + i]
        key, value = state["kv_bank"][i], state["kv_bank"][n + i]
        up, down = state["mlp_up_bank"][i], state["mlp_down_bank"][i]
        value_factor, up_factor = factor(value), factor(up)
        state[f"blocks.{i}.attn_scale"] /= value_factor * factor(output)
        state[f"blocks.{i}.mlp_scale"] /= up_factor**2 * factor(down)
        if i in config.ve_layers:
            state[f"ve_layer_scales.{config.ve_layers.index(i)}"] *= value_factor
        for matrix in (query, key, value, output, up, down):
            matrix *= factor(matrix)


def is_matrix(name: str) -> bool:
    """Whether a checkpoint name is a matrix or a bank of them, and no per-channel vector or scalar."""
    return name.endswith(("_bank", ".weight"))


def save_checkpoint(model: GolfGpt, path: Path) -> None:
    """Write .safetensors with bfloat16 matrices, or .pt through torch.save with all in float32."""
    state = {name: value.detach().float().cpu() for name, value in model.state_dict().items()}
    if path.suffix == ".pt":
        torch.save(state, path)
        return
    rounded = {name: v.bfloat16() if is_matrix(name) else v for name, v in state.items()}
    safetensors.torch.save_file(rounded, path, metadata={"format": "pt"})


def load_checkpoint(path: Path, device="cpu") -> GolfGpt:
    """A float32 model from .safetensors or .pt; config.json lies in the same folder."""
    model = GolfGpt(GolfGptConfig.load(path.parent / "config.json"))
    if path.suffix == ".pt":
        state = torch.load(path, map_location="cpu", weights_only=True)
    else:
        state = safetensors.torch.load_file(path)
    model.load_state_dict({name: value.float() for name, value in state.items()})
    return model.eval().to(device)
