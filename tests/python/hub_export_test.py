"""hub_export_test.py: `thimble export --to hf` writes folders that transformers loads, with the same weights and logits.

For every family a small random model that transformers makes, exported from its folder and through an artifact. Run with
python3 tests/python/run_file.py tests/python/hub_export_test.py; skipped where torch or transformers is missing.
"""

import unittest
from pathlib import Path

from needs import needs
from program import ProgramTest

needs("torch", "transformers")

import torch  # noqa: E402
import transformers  # noqa: E402

COMMON = dict(vocab_size=61, hidden_size=32, intermediate_size=56, num_hidden_layers=3, num_attention_heads=4,
              num_key_value_heads=2, head_dim=12, max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32, "rope_theta": 500.0}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**COMMON, rope_parameters=LLAMA3, attention_bias=True, mlp_bias=True,
                                              tie_word_embeddings=False),
    "llama_linear": lambda: transformers.LlamaConfig(
        **COMMON, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 900.0}, tie_word_embeddings=True),
    "mistral": lambda: transformers.MistralConfig(**COMMON, sliding_window=7),
    "mistral_wide": lambda: transformers.MistralConfig(**COMMON, sliding_window=None),
    "qwen2": lambda: transformers.Qwen2Config(
        **{k: v for k, v in COMMON.items() if k != "head_dim"}, use_sliding_window=True, sliding_window=7,
        max_window_layers=1),
    "qwen3": lambda: transformers.Qwen3Config(**COMMON, tie_word_embeddings=True),
    "gemma3_text": lambda: transformers.Gemma3TextConfig(**COMMON, sliding_window=7, query_pre_attn_scalar=20,
                                                         sliding_window_pattern=2),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64,
                                            bos_token_id=1, eos_token_id=2),
}
TOKENS = torch.randint(0, 61, (2, 40), generator=torch.Generator().manual_seed(5))


def logits_of(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(TOKENS).logits, model


class HubExportTest(ProgramTest):
    def make_model(self, name):
        torch.manual_seed(3)
        config = CONFIGS[name]()
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        model.to(torch.bfloat16).save_pretrained(self.path(name))

    def test_every_family_comes_back_with_equal_bits(self):
        for name in CONFIGS:
            with self.subTest(family=name):
                self.make_model(name)
                self.thimble("export", self.path(name), "--to", "hf", "-o", self.path(name + "_out"))
                expected, model = logits_of(self.path(name))
                found, again = logits_of(self.path(name + "_out"))
                self.assertEqual(set(again.state_dict()), set(model.state_dict()))
                for key, value in model.state_dict().items():
                    self.assertTrue(torch.equal(value, again.state_dict()[key]), key)
                self.assertTrue(torch.equal(expected, found))

    def test_shards_are_read_as_one(self):
        self.make_model("llama")
        report = self.thimble("export", self.path("llama"), "--to", "hf", "-o", self.path("out"), "--shard-size", "20KB")
        self.assertGreater(report["shards"], 2)
        self.assertTrue((Path(self.path("out")) / "model.safetensors.index.json").exists())
        self.assertTrue(torch.equal(logits_of(self.path("llama"))[0], logits_of(self.path("out"))[0]))

    def test_weights_of_an_artifact_are_those_that_thimble_scores(self):
        for name in ("llama", "gemma3_text"):
            with self.subTest(family=name):
                self.make_model(name)
                self.thimble("quantize", self.path(name), "-o", self.path("a.thmb"), "--bits", "6",
                             "--min-elements", "100", "--calibration-sequences", "2", "--calibration-length", "32",
                             "--method", "trace")
                self.thimble("export", self.path("a.thmb"), "--to", "hf", "-o", self.path(name + "_a"), "--dtype", "F32")
                self.thimble("export", self.path("a.thmb"), "-o", self.path("a.safetensors"))
                from safetensors.torch import load_file
                exported = load_file(self.path("a.safetensors"))
                model = logits_of(self.path(name + "_a"))[1]
                for key, value in exported.items():
                    self.assertTrue(torch.equal(value, model.state_dict()[key]), key)


if __name__ == "__main__":
    unittest.main()
