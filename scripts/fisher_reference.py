"""fisher_reference.py: the output Fisher of a golf-gpt by PyTorch's automatic differentiation in float64.

The reference that `thimble quantize --fisher` is compared with (docs/method.md, "Loss statistics"). For every matrix
the mean square, over tokens, of the gradient of a sequence's summed loss at each output; the same at the rows that
tokens look up in tables; how often each row was looked up; E[h h^T] at the input of the output head.

    python3 fisher_reference.py MODEL.safetensors TOKENS.bin --length 1024 --check HESSIANS.safetensors
    python3 fisher_reference.py MODEL.safetensors TOKENS.bin --length 128 --sequences 2 --golden GOLDEN.safetensors
    python3 fisher_reference.py MODEL.safetensors TOKENS.bin --length 512 --sequences 8 --predict

config.json lies beside the model. TOKENS.bin is a token shard, cut into sequences of --length tokens; what
`thimble quantize --save-calibration` wrote, say. Needs torch >= 2.5, numpy and safetensors.
"""

import argparse
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import safetensors.numpy
import torch
import torch.nn.functional as F
from golf_gpt import GolfGpt, load_checkpoint

SHARD_HEADER_BYTES = 1024
# Float32 sums of a whole pass against float64: relative to the largest value of a tensor.
TOLERANCE = 2e-5


def load_sequences(path: Path, length: int, count: int | None) -> torch.Tensor:
    """(sequences, length); tokens after the last whole sequence are left out."""
    tokens = np.frombuffer(path.read_bytes()[SHARD_HEADER_BYTES:], dtype="<u2").astype(np.int64)
    sequences = torch.from_numpy(tokens[: len(tokens) // length * length].reshape(-1, length))
    if len(sequences) < (count or 1):
        raise SystemExit(f"{path}: {len(sequences)} sequences of {length} tokens, {count or 1} needed")
    return sequences[:count]


def matrix_names(model: GolfGpt) -> list[str]:
    """The unbanked names of the matrices, in the order in which a forward pass multiplies by them."""
    names = [] if model.bigram is None else ["bigram.proj.weight"]
    if model.config.ve_layers:
        names.append("ve_shared.proj.weight")
    for i in range(model.config.num_layers):
        attention = (f"blocks.{i}.attn.{part}.weight" for part in ("c_q", "c_k", "c_v", "proj"))
        names += [*attention, f"blocks.{i}.mlp.fc.weight", f"blocks.{i}.mlp.proj.weight"]
    return [*names, "tok_emb.weight" if model.lm_head is None else "lm_head.weight"]


def table_names(model: GolfGpt) -> list[str]:
    names = ["tok_emb.weight"]
    if model.bigram is not None:
        names.append("bigram.embed.weight")
    if model.config.ve_layers:
        names.append("ve_shared.embed.weight")
    return names


class Recorder:
    """Keeps the inputs and outputs of every F.linear and F.embedding of one forward pass, in order."""

    def __init__(self):
        self.linears: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.lookups: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __enter__(self):
        def recording(function, calls):
            def call(x, *arguments, **options):
                output = function(x, *arguments, **options)
                output.retain_grad()
                calls.append((x, output))
                return output

            return call

        self.patches = [
            mock.patch.object(F, "linear", recording(F.linear, self.linears)),
            mock.patch.object(F, "embedding", recording(F.embedding, self.lookups)),
        ]
        for patch in self.patches:
            patch.start()
        return self

    def __exit__(self, *_):
        for patch in self.patches:
            patch.stop()


def loss_statistics(model: GolfGpt, sequences: torch.Tensor) -> dict[str, np.ndarray]:
    """The tensors of a Hessian file with --fisher, without the Hessians of the layers; float64 and int64."""
    sums: dict[str, torch.Tensor] = {}

    def add(name: str, value: torch.Tensor) -> None:
        sums[name] = sums[name] + value if name in sums else value

    parameters = dict(model.named_parameters())
    tokens = 0
    for sequence in sequences:
        inputs, targets = sequence[None, :-1], sequence[1:]
        with Recorder() as recorder:
            logits = model(inputs, context_length=len(sequence))[0]
        F.cross_entropy(logits, targets, reduction="sum").backward()
        for name, (x, output) in zip(matrix_names(model), recorder.linears, strict=True):
            add(f"output_fisher/{name}", output.grad[0].square().sum(0))
        add(f"head_hessian/{name}", x[0].detach().T @ x[0].detach())
        for name, (rows, output) in zip(table_names(model), recorder.lookups, strict=True):
            add(f"lookup_fisher/{name}", output.grad[0].square().sum(0))
            add(f"row_counts/{name}", torch.bincount(rows[0], minlength=len(parameters[name])))
        tokens += len(targets)
        model.zero_grad()
    return {
        name: (value if value.dtype == torch.int64 else value / tokens).numpy() for name, value in sums.items()
    }


@torch.no_grad()
def noise_divergence(model: GolfGpt, sequences: torch.Tensor, name: str, deviation: float) -> float:
    """KL(p || p') in nats per token, p' the model with independent normal noise on every output of matrix `name`."""
    generator = torch.Generator().manual_seed(1)
    names, linear = matrix_names(model), F.linear
    total = tokens = 0
    for sequence in sequences:
        calls = iter(names)

        def noisy(x, weight, bias=None, calls=calls):
            output = linear(x, weight, bias)
            if next(calls) != name:
                return output
            return output + deviation * torch.randn(output.shape, generator=generator, dtype=output.dtype)

        clean = model(sequence[None, :-1], context_length=len(sequence))[0].log_softmax(-1)
        with mock.patch.object(F, "linear", noisy):
            changed = model(sequence[None, :-1], context_length=len(sequence))[0].log_softmax(-1)
        total += float((clean.exp() * (clean - changed)).sum())
        tokens += len(clean)
    return total / tokens


def predict(model: GolfGpt, sequences: torch.Tensor, statistics: dict[str, np.ndarray]) -> None:
    """Prints what noise costs over what F says that it costs, sum F(r) deviation^2 / 2, for every matrix."""
    expected = 0.01
    for name in matrix_names(model):
        deviation = (2 * expected / statistics[f"output_fisher/{name}"].sum()) ** 0.5
        ratio = noise_divergence(model, sequences, name, deviation) / expected
        print(f"{name}: measured / predicted divergence {ratio:.3f}", flush=True)


def check(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    """Prints the largest differences; False when one is above TOLERANCE or a tensor is missing."""
    worst: dict[str, float] = {}
    for name, value in expected.items():
        if name not in found or found[name].shape != value.shape:
            print(f"{name}: missing, or of another shape")
            return False
        kind = name.split("/")[0]
        difference = float(np.abs(found[name] - value).max() / np.abs(value).max())
        worst[kind] = max(worst.get(kind, 0.0), difference)
    for kind, difference in worst.items():
        print(f"{kind}: largest difference {difference:.2e} of the largest value of its tensor")
    return all(difference <= (0 if kind == "row_counts" else TOLERANCE) for kind, difference in worst.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--length", type=int, default=2048, help="tokens per sequence, and the context length")
    parser.add_argument("--sequences", type=int, help="take only the first so many")
    parser.add_argument("--check", type=Path, help="compare with this file of thimble's; exit code 3 if it differs")
    parser.add_argument("--golden", type=Path, help="write the result, rounded to float32, less the head's Hessian")
    parser.add_argument("--predict", action="store_true", help="compare what noise on outputs costs with the prediction")
    options = parser.parse_args()
    model = load_checkpoint(options.model).double()
    sequences = load_sequences(options.tokens, options.length, options.sequences)
    expected = loss_statistics(model, sequences)
    if options.golden:
        golden = {
            name: value if value.dtype == np.int64 else value.astype(np.float32)
            for name, value in expected.items()
            if not name.startswith(("head_hessian/", "row_counts/"))
        }
        safetensors.numpy.save_file(golden | {"tokens": sequences.numpy().astype(np.int32)}, options.golden)
    if options.predict:
        predict(model.float(), sequences, expected)
    if options.check and not check(safetensors.numpy.load_file(options.check), expected):
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
