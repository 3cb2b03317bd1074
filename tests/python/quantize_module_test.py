"""quantize_module_test.py: thimble.quantize() and thimble.collect() on PyTorch modules of every kind that they know.

Modules of random weights; budgets, reloaded losses, the statistics against plain loops, and what the command line makes
of the same statistics. Skipped where thimble or torch is missing; models of transformers where that is.
"""

import json
import math
import shutil
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path

from needs import needs, thimble_program

needs("thimble", "torch")

import numpy  # noqa: E402
import thimble  # noqa: E402
import torch  # noqa: E402
from modules import (  # noqa: E402
    REPOSITORY,
    VOCABULARY,
    PlainModel,
    batches_of,
    example_model,
    llama_config,
)
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

TOKENIZER = REPOSITORY / "tests" / "eval" / "tokenizers" / "golden" / "byte_level.json"


def read_safetensors(path):
    raw = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    types = {"F32": "<f4", "I64": "<i8"}
    tensors = {
        name: numpy.frombuffer(raw[8 + length :][slice(*entry["data_offsets"])], types[entry["dtype"]]).reshape(
            entry["shape"]
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }
    return tensors, header["__metadata__"]


class ModuleTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        torch.manual_seed(11)

    def quantized(self, model, batches=None, bits=5.0, **arguments):
        """Its report, after the checks that every model must pass."""
        arguments = {"min_elements": 256, "progress": False} | arguments
        out = self.folder / "model.thmb"
        before = {name: value.clone() for name, value in model.state_dict().items()}
        budget = math.ceil(sum(p.numel() for p in model.parameters()) * bits / 8) + 4000
        report = thimble.quantize(model, batches or batches_of(), budget=budget, out=out, **arguments)
        self.assertLessEqual(out.stat().st_size, budget)
        self.assertEqual(report.artifact_bytes, out.stat().st_size)
        self.assertFalse(Path(f"{out}.work").exists())
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(value, before[name]), name)
        self.assertTrue(all(p.requires_grad and p.grad is None for p in model.parameters()))
        return report

    def loss_of(self, model, batches=None):
        from thimble.module_statistics import next_token_loss

        model.eval()
        with torch.no_grad():
            return sum(next_token_loss(model, batch) for batch in batches or batches_of()).item()

    def reloaded(self, report, model):
        """The loss before, and after the artifact's weights have been loaded."""
        before = self.loss_of(model)
        tensors = thimble.state_dict(report.path, device="cpu")
        self.assertLessEqual({name for name, _ in model.named_parameters()}, set(tensors))
        model.load_state_dict(tensors, strict=False)
        return before, self.loss_of(model)

    def test_a_plain_module_with_a_convolution_experts_and_a_tied_head(self):
        model = PlainModel()
        report = self.quantized(model, bits=8)
        coded = {name for name, tensor in report.artifact.tensors.items() if tensor.stored_as.startswith("trellis")}
        self.assertEqual(coded, {"convolution.weight", "embedding.weight", "linear.weight", "turned",
                                 *(f"experts.{m}.{e}" for m in ("up", "down") for e in range(3))})
        before, after = self.reloaded(report, model)
        self.assertLess(abs(after - before), 0.05 * before)  # which is 85 nats for each token
        self.assertIn("bits per parameter", repr(report))
        self.assertIn("experts.up.0", report._repr_html_())

    def test_statistics_are_those_of_plain_loops(self):
        model = PlainModel().double().float()
        batches = batches_of(2)
        path = self.folder / "statistics.safetensors"
        thimble.collect(model, batches, path, progress=False)
        tensors, metadata = read_safetensors(path)
        self.assertEqual((metadata["tokens"], metadata["sequences"]), ("192", "8"))
        inputs, gradients = [], []
        model.linear.register_forward_pre_hook(lambda module, given: inputs.append(given[0].detach().reshape(-1, 64)))
        model.linear.register_full_backward_hook(lambda module, given, out: gradients.append(out[0].reshape(-1, 32)))
        patches = []
        model.convolution.register_forward_pre_hook(
            lambda module, given: patches.append(functional.unfold(given[0].detach()[:, :, None], (1, 3))))
        from thimble.module_statistics import next_token_loss

        for batch in batches:
            next_token_loss(model, batch).backward()
        x = torch.cat(inputs)
        numpy.testing.assert_allclose(tensors["linear.weight"], (x.T @ x / len(x)).numpy(), rtol=1e-4, atol=1e-6)
        squares = torch.cat(gradients).square().mean(0)
        numpy.testing.assert_allclose(tensors["output_fisher/linear.weight"], squares.numpy(), rtol=1e-4, atol=1e-9)
        p = torch.cat(patches).transpose(1, 2).reshape(-1, 96)
        numpy.testing.assert_allclose(tensors["convolution.weight"], (p.T @ p / len(p)).numpy(), rtol=1e-4, atol=1e-5)
        counts = torch.bincount(torch.cat(batches).flatten(), minlength=VOCABULARY)
        self.assertTrue(numpy.array_equal(tensors["row_counts/embedding.weight"], counts.numpy()))
        self.assertIn("head_hessian/embedding.weight", tensors)

    def test_squared_gradients_are_means_over_tokens_however_often_a_matrix_is_read(self):
        class Sparse(nn.Module):
            """Positions are looked up once for a batch; every third token alone reads `some`."""

            def __init__(self):
                super().__init__()
                self.tokens, self.positions = nn.Embedding(VOCABULARY, 32), nn.Embedding(24, 32)
                self.some, self.head = nn.Linear(32, 32), nn.Linear(32, VOCABULARY)

            def forward(self, tokens):
                self.places = self.positions(torch.arange(tokens.shape[1])[None])
                x = self.tokens(tokens) + self.places
                y = torch.zeros_like(x)
                self.read = self.some(x[:, ::3])
                y[:, ::3] = self.read
                return self.head(x + y)

        model, batches = Sparse(), batches_of(2)
        path = self.folder / "statistics.safetensors"
        thimble.collect(model, batches, path, progress=False)
        from thimble.module_statistics import next_token_loss

        expected = {"lookup_fisher/positions.weight": torch.zeros(32), "output_fisher/some.weight": torch.zeros(32)}
        for batch in batches:
            loss = next_token_loss(model, batch)
            for name, of in zip(expected, torch.autograd.grad(loss, [model.places, model.read])):
                expected[name] += of.square().sum((0, 1)) / sum(batch.numel() for batch in batches)
        tensors, _ = read_safetensors(path)
        for name, squares in expected.items():
            numpy.testing.assert_allclose(tensors[name], squares.numpy(), rtol=1e-4, atol=1e-9, err_msg=name)

    def test_matrices_that_read_one_tensor_share_a_hessian(self):
        class Shared(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding = nn.Embedding(VOCABULARY, 32)
                self.first, self.second = nn.Linear(32, 48), nn.Linear(32, 48)
                self.head = nn.Linear(48, VOCABULARY)

            def forward(self, tokens):
                x = self.embedding(tokens)
                return self.head(self.first(x) * self.second(x))

        path = self.folder / "statistics.safetensors"
        thimble.collect(Shared(), batches_of(2), path, progress=False)
        tensors, metadata = read_safetensors(path)
        self.assertEqual(json.loads(metadata["shared"]), {"second.weight": "first.weight"})
        self.assertNotIn("second.weight", tensors)

    def test_statistics_are_kept_for_the_same_model_batches_and_options(self):
        from unittest import mock

        import thimble.module_quantizer as quantizer

        model = PlainModel()
        out = self.folder / "model.thmb"
        arguments = dict(budget=20000, out=out, min_elements=256, progress=False)
        with self.assertRaises(thimble.CheckError):  # statistics are kept, the artifact cannot be made
            thimble.quantize(model, batches_of(), **arguments | {"budget": 600})

        def collects(batches=None, **changed):
            """Whether a call after that one, which is made whole, collects statistics."""
            shutil.copytree(f"{out}.work", self.folder / "kept")
            with mock.patch.object(quantizer, "gather", wraps=quantizer.gather) as gather:
                thimble.quantize(model, batches or batches_of(), **arguments | changed)
            (self.folder / "kept").rename(f"{out}.work")
            return gather.called

        self.assertFalse(collects(batch for batch in batches_of()))
        first = out.read_bytes()
        self.assertTrue(collects(fisher=False))
        self.assertTrue(collects(batches_of(3)))
        other = [batch.clone() for batch in batches_of()]
        other[1][2, 3] += 1
        self.assertTrue(collects(other))
        self.assertTrue(collects(loss=lambda model, batch: model(batch).square().sum()))
        (self.folder / "model.thmb.work" / "statistics.json").write_text("{")
        self.assertTrue(collects())
        self.assertEqual(out.read_bytes(), first)
        with torch.no_grad():
            model.linear.weight[0, 0] += 1
        self.assertTrue(collects())

    def test_what_is_wrong_is_named(self):
        model = PlainModel()
        for call, kind, text in (
            (lambda: thimble.quantize(model, batches_of()), thimble.UsageError, "give a budget"),
            (lambda: thimble.quantize(model, batches_of(), budget="60mb"), thimble.UsageError, "'60mb' is no size"),
            (lambda: thimble.collect(model, [], self.folder / "s", progress=False), thimble.UsageError, "batches"),
        ):
            with self.assertRaisesRegex(kind, text):
                call()
        with torch.no_grad():
            model.linear.weight[0, 0] = math.nan
        with self.assertRaisesRegex(thimble.FormatError, "linear.weight' holds a value that is not finite"):
            thimble.quantize(model, batches_of(), budget=50000, out=self.folder / "x.thmb", fisher=False,
                             progress=False)

    def test_models_of_transformers(self):
        needs("transformers")
        import transformers

        common = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
        configs = {
            "llama": transformers.LlamaConfig(**common, tie_word_embeddings=False),
            "qwen3": transformers.Qwen3Config(**common, head_dim=8, tie_word_embeddings=True),
            "mixtral": transformers.MixtralConfig(**common, num_local_experts=4, num_experts_per_tok=2),
            "gpt2": transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64),
        }
        for name, config in configs.items():
            with self.subTest(model=name):
                model = transformers.AutoModelForCausalLM.from_config(config)
                report = self.quantized(model, bits=7)
                before, after = self.reloaded(report, model)
                self.assertLess(abs(after - before), 0.02 * before)
                coded = [tensor for tensor in report.artifact.tensors.values() if tensor.stored_as.startswith("trellis")]
                self.assertGreater(sum(tensor.elements for tensor in coded), 0.9 * report.artifact.parameters)

    def test_folders_of_transformers_with_matrices_stacked_in_parameters(self):
        needs("transformers")
        import transformers

        config = transformers.MixtralConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64,
                                            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                            num_local_experts=4, max_position_embeddings=64)
        model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
        report = self.quantized(model, bits=7)
        report.save_pretrained(self.folder / "mixtral", model)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(self.folder / "mixtral")
        exact = thimble.state_dict(report.path, device="cpu", dtype="bfloat16")
        self.assertIn("model.layers.0.mlp.experts.gate_up_proj", exact)
        for name, value in loaded.named_parameters():
            self.assertTrue(torch.equal(value, exact[name]), name)
        self.assertIn(f"{report.artifact_bytes:,} B", (self.folder / "mixtral" / "README.md").read_text())

    def test_bits_per_byte_are_those_of_the_command_line(self):
        needs("transformers")
        import transformers

        torch.manual_seed(4)
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER))
        config = llama_config()
        config.vocab_size = 363
        model = transformers.AutoModelForCausalLM.from_config(config)
        report = self.quantized(model, batches_of(vocabulary=363), bits=5, cross_term=0)
        text = "Sliding windows score each byte of a text once, été or not. " * 9
        found = report.score(model, tokenizer, text, context=40, stride=8)
        report.save_pretrained(self.folder / "scored", model, tokenizer)
        card = (self.folder / "scored" / "README.md").read_text()
        self.assertIn(f"{found['after']['bits_per_byte']:.5f}, of the original {found['before']['bits_per_byte']:.5f}", card)
        self.assertIn("context 40, stride 8", card)
        model.save_pretrained(self.folder / "original")
        tokenizer.save_pretrained(self.folder / "original")
        (self.folder / "text.txt").write_text(text)
        done = subprocess.run([thimble_program(), "eval", str(self.folder / "original"), report.path, "--text",
                               str(self.folder / "text.txt"), "--tokenizer", str(TOKENIZER), "--context", "40",
                               "--stride", "8", "--device", "cpu", "--json"], check=False, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        for side, expected in zip(("before", "after"), json.loads(done.stdout)["evaluations"], strict=True):
            self.assertEqual(found[side]["text_bytes"], expected["text_bytes"])
            self.assertAlmostEqual(found[side]["bits_per_byte"], expected["bits_per_byte"], 5)
        with self.assertRaisesRegex(thimble.UsageError, "stride is 41, allowed are 1 to the context, 40"):
            report.score(model, tokenizer, text, context=40, stride=41)

    def test_the_snippets_of_the_documentation_run(self):
        """Those of the README and of docs/python.md that make and read an artifact of a module."""
        import os
        import re

        here = os.getcwd()
        self.addCleanup(os.chdir, here)
        os.chdir(self.folder)
        ran = []
        for page in ("README.md", "docs/python.md"):
            text = (REPOSITORY / page).read_text()
            made = [code for code in re.findall(r"```python\n(.*?)```", text, re.S) if "thimble.quantize(" in code]
            read = [code for code in re.findall(r"```python\n(.*?)```", text, re.S) if "thimble.state_dict(" in code]
            for code in made[:1] + read[:1]:
                names = {"model": PlainModel(), "batches": batches_of(), "thimble": thimble}
                exec(code, names)
                ran.append(code)
        self.assertEqual(len(ran), 4)
        self.assertLessEqual((self.folder / "model.thmb").stat().st_size, 60_000_000)

    def test_a_llama_is_quantized_as_the_command_line_does_it(self):
        needs("transformers")
        import transformers

        model = transformers.AutoModelForCausalLM.from_config(llama_config())
        report = self.quantized(model, bits=6, cross_term=0, distill_steps=0)
        model.save_pretrained(self.folder / "llama")
        statistics = self.folder / "statistics.safetensors"
        thimble.collect(model, batches_of(), statistics, progress=False)
        command = [thimble_program(), "quantize", str(self.folder / "llama"), "-o", str(self.folder / "line.thmb"),
                   "--hessians", str(statistics), "--fisher", "--budget", str(report.facts["budget_bytes"]),
                   "--min-elements", "256", "--cross-term", "0", "--distill-steps", "0", "--no-resume", "--device", "cpu"]
        subprocess.run(command, check=True, capture_output=True)
        ours, theirs = (thimble.state_dict(path) for path in (report.path, self.folder / "line.thmb"))
        for name, values in theirs.items():
            self.assertTrue(numpy.array_equal(ours[name], values), name)

    def test_golf_gpt(self):
        model = example_model()
        batches = batches_of(2, 2, 64, 1024)
        report = self.quantized(model, batches, bits=4, min_elements=4096)
        before = self.loss_of(model, batches)
        model.load_state_dict(thimble.state_dict(report.path, device="cpu"), strict=False)
        self.assertLess(abs(self.loss_of(model, batches) - before), 0.03 * before)


if __name__ == "__main__":
    unittest.main()
