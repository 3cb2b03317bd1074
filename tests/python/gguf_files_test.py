"""gguf_files_test.py: GGUF files as llama.cpp's own Python package writes and reads them, beside thimble.

Names, order of rows and values of tensors follow llama.cpp's converter. Run with
python3 tests/python/run_file.py tests/python/gguf_files_test.py; skipped where numpy or gguf is missing.
"""

import json
import unittest
from pathlib import Path

from needs import needs
from program import ProgramTest

needs("numpy", "gguf")

import gguf  # noqa: E402
import numpy as np  # noqa: E402
from gguf import GGMLQuantizationType as Type  # noqa: E402

TOKENIZER = Path(__file__).resolve().parents[1] / "eval" / "tokenizers" / "golden" / "byte_level.json"
VOCAB, WIDTH, MLP, HEADS, KV_HEADS, HEAD, LAYERS = 400, 64, 96, 4, 2, 16, 2
MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}


def permute(weights, heads):
    """As LlamaModel.permute of the converter."""
    return weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def parameters(architecture):
    """Names of Hugging Face, names of llama.cpp, shapes."""
    yield "model.embed_tokens.weight", "token_embd.weight", (VOCAB, WIDTH)
    yield "model.norm.weight", "output_norm.weight", (WIDTH,)
    if architecture == "qwen3":
        yield "lm_head.weight", "output.weight", (VOCAB, WIDTH)
    for i in range(LAYERS):
        ours, theirs = f"model.layers.{i}.", f"blk.{i}."
        for a, b, shape in (("self_attn.q_proj", "attn_q", (HEADS * HEAD, WIDTH)),
                            ("self_attn.k_proj", "attn_k", (KV_HEADS * HEAD, WIDTH)),
                            ("self_attn.v_proj", "attn_v", (KV_HEADS * HEAD, WIDTH)),
                            ("self_attn.o_proj", "attn_output", (WIDTH, HEADS * HEAD)),
                            ("mlp.gate_proj", "ffn_gate", (MLP, WIDTH)), ("mlp.up_proj", "ffn_up", (MLP, WIDTH)),
                            ("mlp.down_proj", "ffn_down", (WIDTH, MLP))):
            yield ours + a + ".weight", theirs + b + ".weight", shape
            if architecture == "qwen2" and b in ("attn_q", "attn_k", "attn_v"):
                yield ours + a + ".bias", theirs + b + ".bias", shape[:1]
        norms = [("input_layernorm", "attn_norm", WIDTH), ("post_attention_layernorm", "ffn_norm", WIDTH)]
        if architecture == "gemma3":
            norms[1:] = [("post_attention_layernorm", "post_attention_norm", WIDTH),
                         ("pre_feedforward_layernorm", "ffn_norm", WIDTH),
                         ("post_feedforward_layernorm", "post_ffw_norm", WIDTH)]
        if architecture in ("qwen3", "gemma3"):
            norms += [("self_attn.q_norm", "attn_q_norm", HEAD), ("self_attn.k_norm", "attn_k_norm", HEAD)]
        for a, b, width in norms:
            yield ours + a + ".weight", theirs + b + ".weight", (width,)


def stored(architecture, name, values):
    """What the converter writes for a tensor of Hugging Face."""
    if architecture == "llama" and ".q_proj" in name:
        return permute(values, HEADS)
    if architecture == "llama" and ".k_proj" in name:
        return permute(values, KV_HEADS)
    return values + np.float32(1) if architecture == "gemma3" and name.endswith("norm.weight") else values


def read_safetensors(path):
    content = Path(path).read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    tensors = {}
    for name, entry in json.loads(content[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            assert entry["dtype"] == "F32"
            tensors[name] = np.frombuffer(content[start + begin:start + end], "<f4").reshape(entry["shape"])
    return tensors


class GgufFilesTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.random = np.random.default_rng(4)

    def write_gguf(self, path, architecture, type_of):
        """A random model; returns what its weights are for Hugging Face."""
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_block_count(LAYERS)
        writer.add_context_length(128)
        writer.add_embedding_length(WIDTH)
        writer.add_feed_forward_length(MLP)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_key_length(HEAD)
        writer.add_value_length(HEAD)
        writer.add_rope_freq_base(5000.0)
        writer.add_layer_norm_rms_eps(1e-6)
        if architecture == "gemma3":
            writer.add_sliding_window(8)
        if architecture == "llama":
            writer.add_rope_dimension_count(HEAD)
            writer.add_vocab_size(VOCAB)
        expected = {}
        for ours, theirs, shape in parameters(architecture):
            values = (self.random.standard_normal(shape) * 0.1).astype(np.float32)
            kind = Type.F32 if len(shape) == 1 else type_of(theirs)
            raw = gguf.quants.quantize(stored(architecture, ours, values), kind)
            writer.add_tensor(theirs, raw, raw_dtype=kind)
            kept = gguf.quants.dequantize(raw, kind).reshape(shape)
            if architecture == "llama" and (".q_proj" in ours or ".k_proj" in ours):
                heads = HEADS if ".q_proj" in ours else KV_HEADS
                kept = kept.reshape(heads, HEAD // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
            elif architecture == "gemma3" and len(shape) == 1:
                kept = kept - np.float32(1)
            expected[ours] = kept
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return expected

    def test_files_of_llama_cpp_are_read_bit_for_bit(self):
        kinds = [Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.F16, Type.BF16, Type.F32]
        for architecture, model_type in MODEL_TYPES.items():
            with self.subTest(architecture=architecture):
                expected = self.write_gguf(self.path("a.gguf"), architecture, lambda name: kinds[len(name) % len(kinds)])
                out = self.path(architecture)
                self.thimble("export", self.path("a.gguf"), "--to", "hf", "--dtype", "F32", "-o", out)
                found = read_safetensors(out + "/model.safetensors")
                self.assertEqual(set(found), set(expected))
                for name, values in expected.items():
                    np.testing.assert_array_equal(found[name], values, err_msg=name)
                config = json.loads(Path(out + "/config.json").read_text())
                self.assertEqual((config["model_type"], config["rms_norm_eps"], config["rope_theta"], config["head_dim"]),
                                 (model_type, 1e-6, 5000.0, HEAD))

    def test_what_thimble_writes_is_what_the_converter_would(self):
        for architecture in MODEL_TYPES:
            with self.subTest(architecture=architecture):
                expected = self.write_gguf(self.path("a.gguf"), architecture, lambda name: Type.F32)
                for kind in (Type.F32, Type.F16, Type.BF16, Type.Q8_0):
                    self.thimble("export", self.path("a.gguf"), "--to", "gguf", "--dtype", kind.name, "--tokenizer",
                                 str(TOKENIZER), "-o", self.path("b.gguf"))
                    reader = gguf.GGUFReader(self.path("b.gguf"))
                    tensors = {tensor.name: tensor for tensor in reader.tensors}
                    names = {theirs: ours for ours, theirs, _ in parameters(architecture)}
                    self.assertEqual(set(tensors), set(names))
                    for name, tensor in tensors.items():
                        values = stored(architecture, names[name], expected[names[name]])
                        wanted = kind if values.ndim > 1 else Type.F32
                        self.assertEqual(tensor.tensor_type, wanted)
                        np.testing.assert_array_equal(
                            np.array(tensor.data).view(np.uint8).ravel(),
                            np.ascontiguousarray(gguf.quants.quantize(values, wanted)).view(np.uint8).ravel(), err_msg=name)
                    self.assertEqual(reader.fields["general.architecture"].contents(), architecture)
                    self.assertEqual(reader.fields[architecture + ".block_count"].contents(), LAYERS)
                    vocabulary = json.loads(TOKENIZER.read_text())["model"]["vocab"]
                    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
                    self.assertEqual(len(tokens), VOCAB)
                    self.assertTrue(all(tokens[i] == token for token, i in vocabulary.items()))
                    self.assertEqual(reader.fields["tokenizer.ggml.pre"].contents(), "gpt-2")


if __name__ == "__main__":
    unittest.main()
