"""golf_gpt_test.py: scripts/golf_gpt.py and the training program, on small random models.

Run with python3 tests/python/run_file.py tests/python/golf_gpt_test.py; skipped without PyTorch.
"""

import contextlib
import io
import sys
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path
from unittest import mock

from needs import needs

needs("numpy", "safetensors", "sentencepiece", "torch")

import torch  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "scripts"))
import golf_gpt  # noqa: E402
import train_example  # noqa: E402

TINY = REPOSITORY / "examples" / "tiny"
PLAIN = golf_gpt.GolfGptConfig(
    vocab_size=61, num_layers=3, model_dim=24, num_heads=4, num_kv_heads=2, mlp_mult=1.5, rope_dims=4, ln_scale=False
)
FULL = replace(
    PLAIN, num_layers=5, tie_embeddings=False, ln_scale=True, xsa_last_n=2, bigram_vocab_size=17, bigram_dim=3,
    smear_gate=True, skip_gates=True, ve_layers=(0, 4), ve_dim=5,
)  # fmt: skip


def random_model(config: golf_gpt.GolfGptConfig) -> golf_gpt.GolfGpt:
    """A model none of whose parameters is zero, so that every option acts."""
    torch.manual_seed(5)
    model = golf_gpt.GolfGpt(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return model


class ForwardTest(unittest.TestCase):
    def test_no_position_sees_a_later_token(self):
        for config in (PLAIN, FULL):
            model = random_model(config)
            tokens = torch.randint(config.vocab_size, (1, 12))
            changed = tokens.clone()
            changed[0, 7:] = (changed[0, 7:] + 1) % config.vocab_size
            before, after = model(tokens), model(changed)
            self.assertTrue(torch.allclose(before[0, :7], after[0, :7], atol=1e-5))
            self.assertFalse(torch.allclose(before[0, 7:], after[0, 7:]))

    def test_every_option_changes_the_logits(self):
        tokens = torch.randint(61, (1, 12))
        full = random_model(FULL)
        state = full.state_dict()
        for change in (
            {"ln_scale": False}, {"xsa_last_n": 0}, {"smear_gate": False}, {"skip_gates": False}, {"rope_dims": 6},
            {"bigram_vocab_size": 0}, {"ve_layers": ()}, {"tie_embeddings": True}, {"logit_softcap": 1.0},
        ):  # fmt: skip
            with self.subTest(change=change):
                model = golf_gpt.GolfGpt(replace(FULL, **change)).eval()
                model.load_state_dict({name: state[name] for name in model.state_dict()})
                self.assertFalse(torch.allclose(model(tokens), full(tokens), atol=1e-4))

    def test_rope_base_depends_on_the_context_length(self):
        model = random_model(PLAIN)
        tokens = torch.randint(61, (1, 12))
        self.assertTrue(torch.equal(model(tokens), model(tokens, context_length=1024)))
        self.assertFalse(torch.equal(model(tokens), model(tokens, context_length=2048)))

    def test_bigram_rows(self):
        config = replace(FULL, bigram_dim=1)
        bigram = golf_gpt.BigramEmbedding(config)
        with torch.no_grad():
            bigram.embed.weight.copy_(torch.arange(17.0)[:, None])
            bigram.proj.weight.fill_(1.0)
            bigram.scale.fill_(1.0)
        rows = bigram(torch.tensor([[3, 5, 60]]))[0, :, 0].tolist()
        self.assertEqual(rows, [16, ((36313 * 5) ^ (27191 * 3)) % 16, ((36313 * 60) ^ (27191 * 5)) % 16])

    def test_bad_configurations(self):
        bad = {"num_heads": 5, "rope_dims": 8, "ve_layers": (3,), "bigram_vocab_size": 1}
        for change in ({"rope_dims": 5}, *({key: value} for key, value in bad.items())):
            with self.subTest(change=change), self.assertRaises(ValueError):
                replace(PLAIN, **change)


class BalanceTest(unittest.TestCase):
    def test_same_function_with_weights_of_the_usual_size(self):
        for config in (PLAIN, FULL):
            model = random_model(config)
            banks = [parameter for name, parameter in model.named_parameters() if name.endswith("_bank")]
            for bank in banks:
                bank.data *= torch.linspace(0.1, 9.0, len(bank))[:, None, None]
            tokens = torch.randint(61, (2, 12))
            before = model(tokens)
            golf_gpt.balance_banks(model.state_dict(), config)
            # Not closer: RMS_EPSILON, which does not grow with queries and keys, moves these logits by about 1e-4.
            self.assertTrue(torch.allclose(model(tokens), before, rtol=0, atol=1e-3))
            for bank in banks:
                rms = bank.square().mean(dim=(1, 2)).sqrt()
                self.assertTrue(bool(((rms > 0.1249) & (rms < 0.2501)).all()))


class CheckpointTest(unittest.TestCase):
    def test_round_trip(self):
        model = random_model(FULL)
        with tempfile.TemporaryDirectory() as name:
            FULL.save(Path(name) / "config.json")
            for file in ("model.pt", "model.safetensors"):
                golf_gpt.save_checkpoint(model, Path(name) / file)
                loaded = golf_gpt.load_checkpoint(Path(name) / file).state_dict()
                for key, value in model.state_dict().items():
                    rounded = file != "model.pt" and golf_gpt.is_matrix(key)
                    self.assertTrue(torch.equal(loaded[key], value.bfloat16().float() if rounded else value), key)


class ScoringTest(unittest.TestCase):
    def test_each_target_is_scored_once(self):
        for targets in (1, 63, 64, 100, 101, 229):
            windows = train_example.scored_windows(targets, length=100, stride=64)
            scored = [target for _, first, end in windows for target in range(first, end)]
            self.assertEqual(scored, list(range(targets)))
            for start, first, end in windows:
                self.assertLessEqual(start, first)
                self.assertLessEqual(end, start + 100)

    def test_sliding_windows_agree_with_one_window_at_a_time(self):
        model = random_model(FULL)
        tokens = torch.randint(61, (118,))
        expected = 0.0
        with torch.no_grad():
            for start, first, end in train_example.scored_windows(117, 32, 9):
                logits = model(tokens[None, start:end], context_length=32)[0].double()
                losses = torch.nn.functional.cross_entropy(logits, tokens[start + 1 : end + 1], reduction="none")
                expected += float(losses[first - start :].sum())
        self.assertAlmostEqual(train_example.sliding_window_loss(model, tokens, 32, 9, 4), expected, places=2)


class ProgramTest(unittest.TestCase):
    def run_program(self, *arguments) -> int:
        with mock.patch.object(sys, "argv", ["train_example.py", *map(str, arguments)]):
            with contextlib.redirect_stdout(io.StringIO()):
                return train_example.main()

    def test_trains_scores_and_checks(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            replace(FULL, vocab_size=1024).save(folder / "small.json")
            golden = folder / "golden.safetensors"
            for optimiser in ("adamw", "muon"):
                self.assertEqual(0, self.run_program(
                    "--train", TINY / "text.txt", "--val", TINY / "text.bin", "--text", TINY / "text.bin",
                    "--tokenizer", TINY / "tokenizer.model", "--config", folder / "small.json", "--out", folder,
                    "--device", "cpu", "--steps", 6, "--batch", 4, "--length", 64, "--log-every", 3, "--warmup", 2,
                    "--eval-length", 64, "--optimiser", optimiser, "--dropout", 0.1, "--pt", "--export-golden", golden,
                ))  # fmt: skip
                model = folder / "model.safetensors"
                self.assertEqual(0, self.run_program("--check", model, golden, "--device", "cpu"))
            loaded = golf_gpt.load_checkpoint(model)
            loaded.lm_head.weight.data[5] += 1
            golf_gpt.save_checkpoint(loaded, model)
            self.assertEqual(3, self.run_program("--check", model, golden, "--device", "cpu"))

    def test_bundled_model_gives_its_golden_numbers(self):
        self.assertEqual(0, self.run_program("--check", TINY / "model.safetensors", TINY / "golden.safetensors"))


if __name__ == "__main__":
    unittest.main()
