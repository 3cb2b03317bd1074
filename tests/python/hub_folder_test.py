"""hub_folder_test.py: folders of `thimble export --to hf-thimble`, which transformers loads where the package thimble is.

For models of random weights that transformers makes, quantized by the program: equal logits to the folder that
`--to hf` writes, memory, saving again, generation, and what is wrong with a folder. Skipped where thimble, torch or
transformers is missing.
"""

import json
import subprocess
import sys
import unittest
from pathlib import Path

from needs import needs
from program import ProgramTest

needs("thimble", "torch", "transformers")

import thimble  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

TOKENIZER = Path(__file__).resolve().parents[1] / "eval" / "tokenizers" / "golden" / "byte_level.json"
VOCABULARY = 363
COMMON = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, head_dim=12, max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**COMMON, tie_word_embeddings=False),
    "qwen3": lambda: transformers.Qwen3Config(**COMMON, tie_word_embeddings=True),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64,
                                            bos_token_id=1, eos_token_id=2),
}
QUICK = ["--bits", "5", "--min-elements", "100", "--calibration-sequences", "2", "--calibration-length", "32",
         "--method", "trace"]
TOKENS = torch.randint(0, VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(5))

# Prints the most memory that loading the second folder took beyond what was in use before it, and the bytes of the
# model. A first one has all modules imported.
MEASURE = """
import sys
import thimble, torch, transformers
from transformers import LlamaForCausalLM
LlamaForCausalLM.from_pretrained(sys.argv[1])
def status(key):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(key))
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
model = LlamaForCausalLM.from_pretrained(sys.argv[2])
print(status("VmHWM") - before, sum(p.nbytes for p in model.parameters()))
"""


def logits_of(folder, **arguments):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **arguments).eval()
    with torch.no_grad():
        return model(TOKENS.to(model.device)).logits, model


class HubFolderTest(ProgramTest):
    def artifact(self, name, config=None):
        """Of a model of random weights; the path without its ending."""
        torch.manual_seed(3)
        model = transformers.AutoModelForCausalLM.from_config(config or CONFIGS[name]())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        model.to(torch.bfloat16).save_pretrained(self.path(name))
        report = self.thimble("quantize", self.path(name), "-o", self.path(name + ".thmb"), *QUICK)
        Path(self.path(name + ".json")).write_text(json.dumps(report))
        return self.path(name)

    def folder_of(self, name, *options):
        made = self.artifact(name)
        self.thimble("export", made + ".thmb", "--to", "hf-thimble", "-o", made + "_t", "--tokenizer", str(TOKENIZER),
                     *options)
        return made

    def damaged(self, folder, change):
        path = Path(folder) / "model.thmb"
        data = bytearray(path.read_bytes())
        change(data)
        path.write_bytes(data)

    def assert_refused(self, folder, kind, *words):
        with self.assertRaises(kind) as caught:
            transformers.AutoModelForCausalLM.from_pretrained(folder)
        for word in words:
            self.assertIn(word, str(caught.exception))

    def test_every_family_gives_the_logits_of_the_exported_folder(self):
        for name in CONFIGS:
            with self.subTest(family=name):
                made = self.folder_of(name, "--report", self.path(name + ".json"))
                self.thimble("export", made + ".thmb", "--to", "hf", "-o", made + "_hf")
                self.assertEqual(sorted(file.name for file in Path(made + "_t").iterdir()),
                                 ["README.md", "config.json", "model.thmb", "tokenizer.json"])
                expected, model = logits_of(made + "_hf")
                found, loaded = logits_of(made + "_t")
                self.assertEqual(loaded.dtype, torch.bfloat16)
                self.assertTrue(torch.equal(expected, found))
                for key, value in model.state_dict().items():
                    self.assertTrue(torch.equal(value, loaded.state_dict()[key]), key)
                exact = thimble.state_dict(made + ".thmb", device="cpu")
                wide = logits_of(made + "_t", dtype=torch.float32)[1].state_dict()
                for key, value in exact.items():
                    self.assertTrue(torch.equal(value, wide[key]), key)
                if torch.cuda.is_available():
                    there = logits_of(made + "_t", device_map="cuda")[1].state_dict()
                    for key, value in model.state_dict().items():
                        self.assertTrue(torch.equal(value, there[key].cpu()), key)

    def test_a_saved_folder_loads_again(self):
        made = self.folder_of("llama")
        expected, model = logits_of(made + "_t")
        model.save_pretrained(made + "_again")
        self.assertEqual(Path(made + "_again/model.thmb").read_bytes(), Path(made + ".thmb").read_bytes())
        self.assertEqual(sorted(file.name for file in Path(made + "_again").iterdir()),
                         ["README.md", "config.json", "generation_config.json", "model.thmb"])
        self.assertTrue(torch.equal(logits_of(made + "_again")[0], expected))
        model.save_pretrained(made + "_again")  # over itself
        with torch.no_grad():
            model.lm_head.weight += 1
        with self.assertRaisesRegex(thimble.UsageError, "'lm_head.weight' has been changed since"):
            model.save_pretrained(made + "_changed")
        dense = model.dequantize()
        dense.save_pretrained(made + "_dense")
        self.assertTrue(Path(made + "_dense/model.safetensors").exists())
        with torch.no_grad():
            self.assertTrue(torch.equal(logits_of(made + "_dense")[0], dense(TOKENS).logits))

    def test_a_pipeline_generates_text(self):
        made = self.folder_of("llama")
        Path(made + "_t/tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        pipeline = transformers.pipeline("text-generation", model=made + "_t")
        text = pipeline("some words", max_new_tokens=5, do_sample=False)[0]["generated_text"]
        self.assertTrue(text.startswith("some words"))

    def test_the_model_card_says_what_was_measured(self):
        made = self.artifact("qwen3")
        text = self.path("text.txt")
        Path(text).write_text("some words, and some more of them: words upon words. " * 20)
        report = self.thimble("quantize", made, "-o", made + ".thmb", *QUICK, "--text", text, "--tokenizer",
                              str(TOKENIZER), "--context", "32", "--stride", "16")
        Path(made + ".json").write_text(json.dumps(report))
        self.thimble("export", made + ".thmb", "--to", "hf-thimble", "-o", made + "_t", "--report", made + ".json")
        card = Path(made + "_t/README.md").read_text()
        for side in ("before", "after"):
            self.assertIn(f"{report['evaluation'][side]['bits_per_byte']:.6f}", card)
        self.assertIn(f"| this artifact | {report['artifact_bytes']:,} |", card)
        self.assertIn("context 32, stride 16", card)
        self.assertNotIn(self.folder.name, card)

    def test_what_is_wrong_is_named(self):
        made = self.folder_of("llama")
        folder = made + "_t"
        good = Path(folder, "model.thmb").read_bytes()
        for change, words in (
            (lambda data: data.__delitem__(slice(1000, None)), ["model.thmb: the file has 1000 B"]),
            (lambda data: data.__setitem__(8, 99), ["model.thmb: ", "version"]),
            (lambda data: data.__setitem__(-9, data[-9] ^ 1), ["model.thmb: ", "checksum"]),
            (lambda data: data.__setitem__(slice(0, None), b"not an artifact" * 9), ["model.thmb: "]),
        ):
            self.damaged(folder, change)
            self.assert_refused(folder, thimble.FormatError, *words)
            Path(folder, "model.thmb").write_bytes(good)
        config = json.loads(Path(folder, "config.json").read_text())
        newer = dict(config, quantization_config={"quant_method": "thimble", "format_version": 99})
        Path(folder, "config.json").write_text(json.dumps(newer))
        self.assert_refused(folder, thimble.FormatError, "'format_version' of 'quantization_config' is 99", "1 to 3")
        Path(folder, "config.json").write_text(json.dumps(dict(config, num_hidden_layers=3)))
        self.assert_refused(folder, thimble.FormatError, "model.thmb: tensor 'model.layers.2.", "is missing")
        Path(folder, "config.json").write_text(json.dumps(config))
        Path(folder, "model.thmb").unlink()
        self.assert_refused(folder, thimble.IoError, "model.thmb: there is no such file")

    def test_memory_of_loading(self):
        # Some versions of transformers make a float32 copy of each tensor for a moment: here that is 4 % of the model.
        config = transformers.LlamaConfig(vocab_size=1000, hidden_size=1024, intermediate_size=2048, num_hidden_layers=10,
                                          num_attention_heads=8, tie_word_embeddings=True)
        made = self.artifact("large", config)
        self.thimble("export", made + ".thmb", "--to", "hf-thimble", "-o", made + "_t")
        command = [sys.executable, "-c", MEASURE, self.folder_of("llama") + "_t", made + "_t"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peak, model = map(int, done.stdout.split())
        self.assertGreater(model, 70e6)
        self.assertLess(peak, 1.2 * model)


if __name__ == "__main__":
    unittest.main()
