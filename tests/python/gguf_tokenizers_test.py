"""gguf_tokenizers_test.py: `thimble export --to gguf` with tokenizers that have marks for spaces, and such files read again.

Trains small SentencePiece models on this repository's texts, as Llama's and Gemma's are made, writes the tokenizer.json that
stands for each, and compares: keys with what the gguf package reads, ids on mixed text with those of the SentencePiece
library, which are llama.cpp's too. Run with
python3 tests/python/run_file.py tests/python/gguf_tokenizers_test.py; skipped where a package is missing.
"""

import json
import random
import subprocess
import tempfile
import unittest
from pathlib import Path

from needs import needs, thimble_program

needs("numpy", "gguf", "sentencepiece")

import gguf  # noqa: E402
import numpy as np  # noqa: E402
import sentencepiece  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
MARK = "\u2581"
VOCAB, WIDTH, MLP, HEADS, HEAD = 1200, 32, 64, 2, 16
KINDS = {
    "llama": dict(user_defined_symbols=[]),
    "gemma": dict(add_dummy_prefix=False, user_defined_symbols=["\n\n", MARK * 2, MARK * 3, MARK * 4, "<table>"],
                  control_symbols=["<start_of_turn>"], pad_id=0, eos_id=1, bos_id=2, unk_id=3, bos_piece="<bos>",
                  eos_piece="<eos>"),
}


def mixed_text():
    """About 100 kB: prose, tables, code, scripts, emoji, runs of spaces, random code points; no tokens by name."""
    draw = random.Random(3)
    parts = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/method.md", "docs/tutorial.md")]
    parts.append((ROOT / "eval/tokenizers/text_pieces.cpp").read_text(encoding="utf-8"))
    parts += ["Море спокойно. 海は静かだった。 한국어 ไทย البحر हिन्दी ים e\u0301 \u212b \U0001f469\u200d\U0001f467 " * 20]
    parts += ["a" + " " * draw.randrange(1, 40) + "=" * draw.randrange(1, 40) for _ in range(100)]
    points = [draw.choice([draw.randrange(0x20, 0x3000), draw.randrange(0xE000, 0x11000), draw.randrange(0x1F000, 0x20000)])
              for _ in range(4000)]
    parts.append("".join(map(chr, points)))
    text = "x" + "\n".join(parts)
    text = text.replace(MARK, "_")  # of a text, the library takes it for a space
    for name in ("<unk>", "<s>", "</s>", "<bos>", "<eos>", "<|doc|>"):
        text = text.replace(name, name[1:])
    return text


def tokenizer_json(model, kind):
    """As transformers converts the model: every pair of pieces that makes a piece is a merge, by its score."""
    pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    merges = []
    for i, piece in enumerate(pieces):
        pairs = [(vocabulary[piece[:k]], vocabulary[piece[k:]]) for k in range(1, len(piece))
                 if piece[:k] in vocabulary and piece[k:] in vocabulary]
        merges += [(-model.get_score(i), [pieces[left], pieces[right]]) for left, right in sorted(pairs)]
    merges.sort(key=lambda merge: merge[0])
    defined = set(KINDS[kind]["user_defined_symbols"])
    added = [dict(id=i, content=piece, special=piece not in defined, normalized=False) for i, piece in enumerate(pieces)
             if piece in defined or model.is_control(i) or model.is_unknown(i)]
    space = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    front = [{"type": "Prepend", "prepend": MARK}] if kind == "llama" else []
    bos = [{"SpecialToken": {"id": model.id_to_piece(model.bos_id())}}, {"Sequence": {"id": "A"}}]
    return {"added_tokens": added, "normalizer": {"type": "Sequence", "normalizers": front + [space]},
            "post_processor": {"type": "TemplateProcessing", "single": bos},
            "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": vocabulary,
                      "merges": [merge for _, merge in merges]}}


def write_model(folder, kind):
    """A random model of one layer with its config."""
    draw = np.random.default_rng(1)
    shapes = {"embed_tokens": (VOCAB, WIDTH), "norm": (WIDTH,)}
    layer = {"self_attn.q_proj": (HEADS * HEAD, WIDTH), "self_attn.k_proj": (HEADS * HEAD, WIDTH),
             "self_attn.v_proj": (HEADS * HEAD, WIDTH), "self_attn.o_proj": (WIDTH, HEADS * HEAD),
             "mlp.gate_proj": (MLP, WIDTH), "mlp.up_proj": (MLP, WIDTH), "mlp.down_proj": (WIDTH, MLP),
             "input_layernorm": (WIDTH,), "post_attention_layernorm": (WIDTH,)}
    config = {"model_type": "llama", "num_attention_heads": HEADS, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2}
    if kind == "gemma":
        layer |= {"pre_feedforward_layernorm": (WIDTH,), "post_feedforward_layernorm": (WIDTH,),
                  "self_attn.q_norm": (HEAD,), "self_attn.k_norm": (HEAD,)}
        config |= {"model_type": "gemma3_text", "query_pre_attn_scalar": HEAD, "sliding_window": 64,
                   "bos_token_id": 2, "eos_token_id": 1}
    shapes |= {f"layers.0.{name}": shape for name, shape in layer.items()}
    header, data = {}, b""
    for name, shape in shapes.items():
        values = draw.standard_normal(shape).astype("<f4").tobytes()
        header[f"model.{name}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (folder / "config.json").write_text(json.dumps(config))


def read_shard(path):
    """Ids of a token shard; the header of 256 int32 tells how wide they are."""
    content = Path(path).read_bytes()
    return np.frombuffer(content[1024:], "<u2" if len(content) % 4 or VOCAB <= 65536 else "<u4").tolist()


class GgufTokenizersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.program = thimble_program()
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.root = Path(cls.folder.name)
        cls.text = mixed_text()
        (cls.root / "text.txt").write_text(cls.text, encoding="utf-8")
        corpus = cls.root / "corpus.txt"
        corpus.write_text("\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))),
                          encoding="utf-8")
        for kind, options in KINDS.items():
            folder = cls.root / kind
            folder.mkdir()
            sentencepiece.SentencePieceTrainer.train(
                input=str(corpus), model_prefix=str(folder / "tokenizer"), model_type="bpe", vocab_size=VOCAB,
                byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
                character_coverage=0.999, max_sentence_length=20000, minloglevel=2, **options)
            write_model(folder, kind)

    def run_thimble(self, *arguments):
        done = subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def ids_of(self, tokenizer):
        """Without BOS in front."""
        out = self.root / "ids.bin"
        out.unlink(missing_ok=True)
        self.run_thimble("tokenize", self.root / "text.txt", "-o", out, "--tokenizer", tokenizer)
        return read_shard(out)[1:]

    def export(self, kind, tokenizer):
        out = self.root / f"{kind}.gguf"
        self.run_thimble("export", self.root / kind, "--to", "gguf", "--tokenizer", tokenizer, "-o", out)
        return out

    def test_keys_are_those_of_the_pieces(self):
        for kind in KINDS:
            with self.subTest(kind=kind):
                file = self.root / kind / "tokenizer.model"
                model = sentencepiece.SentencePieceProcessor(model_file=str(file))
                fields = gguf.GGUFReader(self.export(kind, file)).fields
                found = {name: fields["tokenizer.ggml." + name].contents() for name in
                         ("model", "pre", "tokens", "scores", "token_type", "bos_token_id", "eos_token_id", "unknown_token_id",
                          "add_bos_token", "add_space_prefix")}
                self.assertEqual((found["model"], found["pre"]), ("llama", "default"))
                self.assertEqual((found["bos_token_id"], found["eos_token_id"], found["unknown_token_id"]),
                                 (model.bos_id(), model.eos_id(), model.unk_id()))
                self.assertEqual((found["add_bos_token"], found["add_space_prefix"]), (True, kind == "llama"))
                self.assertEqual(len(found["tokens"]), VOCAB)
                defined = KINDS[kind]["user_defined_symbols"]
                for i in range(VOCAB):
                    piece = model.id_to_piece(i)
                    wanted = (gguf.TokenType.UNKNOWN if model.is_unknown(i) else gguf.TokenType.CONTROL if model.is_control(i)
                              else gguf.TokenType.BYTE if model.is_byte(i) else gguf.TokenType.UNUSED if model.is_unused(i)
                              else gguf.TokenType.USER_DEFINED if piece in defined else gguf.TokenType.NORMAL)
                    self.assertEqual(found["token_type"][i], wanted, piece)
                    self.assertEqual(found["tokens"][i], piece.replace(MARK, " ") if piece in defined else piece)
                    self.assertEqual(found["scores"][i], model.get_score(i))

    def test_ids_are_those_of_sentencepiece(self):
        for kind in KINDS:
            model_file = self.root / kind / "tokenizer.model"
            json_file = self.root / f"{kind}.json"
            model = sentencepiece.SentencePieceProcessor(model_file=str(model_file))
            json_file.write_text(json.dumps(tokenizer_json(model, kind)), encoding="utf-8")
            expected = model.encode(self.text.strip("\n"))
            self.assertGreater(len(expected), 20_000)
            for tokenizer in (model_file, json_file):
                with self.subTest(kind=kind, tokenizer=tokenizer.name):
                    out = self.export(kind, tokenizer)
                    # Of pieces that texts are searched for, the tokenizers library finds none once spaces are marks.
                    if kind == "llama":
                        self.assertEqual(self.ids_of(tokenizer), expected)
                    self.assertEqual(self.ids_of(out), expected)


if __name__ == "__main__":
    unittest.main()
