"""fisher_reference_test.py: scripts/fisher_reference.py, on small random models and on the bundled one.

Run with python3 tests/python/run_file.py tests/python/fisher_reference_test.py; skipped without PyTorch.
"""

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from needs import needs

needs("numpy", "safetensors", "torch")

import numpy as np  # noqa: E402
import safetensors.numpy  # noqa: E402
import torch  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "scripts"))
import fisher_reference  # noqa: E402
import golf_gpt  # noqa: E402

TINY = REPOSITORY / "examples" / "tiny"
PLAIN = golf_gpt.GolfGptConfig(
    vocab_size=31, num_layers=2, model_dim=16, num_heads=2, num_kv_heads=1, mlp_mult=2, rope_dims=4,
    tie_embeddings=False,
)  # fmt: skip


def random_model(config: golf_gpt.GolfGptConfig) -> golf_gpt.GolfGpt:
    torch.manual_seed(5)
    model = golf_gpt.GolfGpt(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return model.double()


class StatisticsTest(unittest.TestCase):
    def test_head_fisher_is_that_of_softmax_minus_one_hot(self):
        model = random_model(PLAIN)
        sequences = torch.randint(31, (3, 9))
        found = fisher_reference.loss_statistics(model, sequences)["output_fisher/lm_head.weight"]
        squares = 0
        for sequence in sequences:
            logits = model(sequence[None, :-1])[0].double()
            gradient = logits.softmax(-1) - torch.nn.functional.one_hot(sequence[1:], 31)
            gradient = gradient * (1 - (logits / PLAIN.logit_softcap) ** 2)
            squares = squares + gradient.square().sum(0)
        np.testing.assert_allclose(found, (squares / 24).detach().numpy(), rtol=1e-4)

    def test_output_gradients_times_inputs_are_weight_gradients(self):
        model = random_model(PLAIN)
        sequence = torch.randint(31, (1, 9))
        with fisher_reference.Recorder() as recorder:
            logits = model(sequence)[0]
        logits.square().sum().backward()
        names = fisher_reference.matrix_names(model)
        self.assertEqual(len(names), len(recorder.linears))
        gradients = {
            name: output.grad[0].T @ x[0] for name, (x, output) in zip(names, recorder.linears, strict=True)
        }
        banks = {"c_q": (model.qo_bank, 0), "proj": (model.qo_bank, 2), "c_k": (model.kv_bank, 0)}
        for part, (bank, first) in banks.items():
            for layer in (0, 1):
                found = gradients[f"blocks.{layer}.attn.{part}.weight"]
                torch.testing.assert_close(found, bank.grad[first + layer], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradients["blocks.1.mlp.proj.weight"], model.mlp_down_bank.grad[1])

    def test_counts_are_those_of_the_inputs(self):
        sequences = torch.tensor([[3, 3, 7], [7, 3, 9]])
        counts = fisher_reference.loss_statistics(random_model(PLAIN), sequences)["row_counts/tok_emb.weight"]
        self.assertEqual({row: n for row, n in enumerate(counts) if n}, {3: 3, 7: 1})


class PredictionTest(unittest.TestCase):
    def test_small_noise_costs_what_the_fisher_of_sampled_tokens_predicts(self):
        model = random_model(PLAIN)
        sequences = torch.zeros((60, 17), dtype=torch.int64)
        torch.manual_seed(2)
        for p in range(16):  # each next token from the model itself
            with torch.no_grad():
                probabilities = model(sequences[:, : p + 1], context_length=17)[:, -1].softmax(-1)
            sequences[:, p + 1] = torch.multinomial(probabilities, 1)[:, 0]
        statistics = fisher_reference.loss_statistics(model, sequences)
        for name in ("blocks.0.attn.c_v.weight", "blocks.1.mlp.fc.weight", "lm_head.weight"):
            deviation = (2e-4 / statistics[f"output_fisher/{name}"].sum()) ** 0.5
            found = fisher_reference.noise_divergence(model, sequences, name, deviation)
            self.assertAlmostEqual(found / 1e-4, 1, delta=0.2, msg=name)


class ProgramTest(unittest.TestCase):
    def run_program(self, *arguments) -> int:
        with mock.patch.object(sys, "argv", ["fisher_reference.py", *map(str, arguments)]):
            with contextlib.redirect_stdout(io.StringIO()):
                return fisher_reference.main()

    def test_the_golden_file_is_what_it_writes(self):
        arguments = (TINY / "model.safetensors", TINY / "text.bin", "--length", 128, "--sequences", 2)
        with tempfile.TemporaryDirectory() as name:
            golden = Path(name) / "golden.safetensors"
            self.assertEqual(0, self.run_program(*arguments, "--golden", golden))
            found = safetensors.numpy.load_file(golden)
            expected = safetensors.numpy.load_file(TINY / "fisher_golden.safetensors")
            self.assertEqual(found.keys(), expected.keys())
            for key, value in expected.items():
                np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-6 * np.abs(value).max(), err_msg=key)

    def test_checks(self):
        arguments = (TINY / "model.safetensors", TINY / "text.bin", "--length", 32, "--sequences", 1)
        model = golf_gpt.load_checkpoint(TINY / "model.safetensors").double()
        sequences = fisher_reference.load_sequences(TINY / "text.bin", 32, 1)
        statistics = fisher_reference.loss_statistics(model, sequences)
        with tempfile.TemporaryDirectory() as name:
            file = Path(name) / "statistics.safetensors"
            safetensors.numpy.save_file(statistics, file)
            self.assertEqual(0, self.run_program(*arguments, "--check", file))
            statistics["output_fisher/blocks.1.mlp.fc.weight"] *= 1.001
            safetensors.numpy.save_file(statistics, file)
            self.assertEqual(3, self.run_program(*arguments, "--check", file))
            del statistics["output_fisher/blocks.1.mlp.fc.weight"]
            safetensors.numpy.save_file(statistics, file)
            self.assertEqual(3, self.run_program(*arguments, "--check", file))


if __name__ == "__main__":
    unittest.main()
