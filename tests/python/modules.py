"""modules.py: small PyTorch modules of random weights, their batches, and the example's model, for tests."""

import importlib.util
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

REPOSITORY = Path(__file__).resolve().parents[2]
VOCABULARY = 96


def batches_of(count=4, sequences=4, length=24, vocabulary=VOCABULARY):
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(0, vocabulary, (sequences, length), generator=generator) for _ in range(count)]


class Experts(nn.Module):
    """Two stacked matrices, one of them as (input, output)."""

    def __init__(self, width, inner):
        super().__init__()
        self.up = nn.Parameter(torch.randn(3, inner, width) * 0.3)
        self.down = nn.Parameter(torch.randn(3, inner, width) * 0.3)

    def forward(self, x):
        return x + sum(functional.relu(functional.linear(x, self.up[e])) @ self.down[e] for e in range(3))


class PlainModel(nn.Module):
    """A convolution in front, experts, a layer as (input, output), a linear layer, and a head tied to the embedding."""

    def __init__(self, width=32):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.convolution = nn.Conv1d(width, width, 3)
        self.experts = Experts(width, 48)
        self.turned = nn.Parameter(torch.randn(width, 2 * width) * 0.2)
        self.bias = nn.Parameter(torch.zeros(2 * width))
        self.linear = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = x + self.convolution(functional.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)
        x = self.experts(x)
        flat = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.turned)
        x = x + self.linear(functional.gelu(flat)).reshape(x.shape)
        return self.head(x)


def llama_config(tie=False):
    """Of transformers."""
    import transformers

    return transformers.LlamaConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                    num_attention_heads=4, max_position_embeddings=64, tie_word_embeddings=tie)


def example_model():
    """The bundled golf-gpt, as scripts/golf_gpt.py runs it."""
    spec = importlib.util.spec_from_file_location("golf_gpt", REPOSITORY / "scripts" / "golf_gpt.py")
    golf = importlib.util.module_from_spec(spec)
    sys.modules["golf_gpt"] = golf
    spec.loader.exec_module(golf)
    return golf.load_checkpoint(REPOSITORY / "examples" / "tiny" / "model.safetensors")
