"""example_tokens_test.py: scripts/example_tokens.py, and the files of examples/tiny against each other.

Run with python3 tests/python/run_file.py tests/python/example_tokens_test.py; skipped without numpy and sentencepiece.
"""

import json
import math
import struct
import sys
import tempfile
import unittest
from pathlib import Path

from needs import needs

needs("numpy", "sentencepiece")

import numpy as np  # noqa: E402
import sentencepiece  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "scripts"))
import example_tokens  # noqa: E402

TINY = REPOSITORY / "examples" / "tiny"


class DocumentTest(unittest.TestCase):
    def test_separators_are_whole_lines(self):
        text = "<|doc|>\n\none\n\ntwo\n<|doc|>\n\n<|doc|>\nthree <|doc|> four\n"
        self.assertEqual(example_tokens.split_documents(text), ["one\n\ntwo", "three <|doc|> four"])

    def test_no_document(self):
        self.assertEqual(example_tokens.split_documents("\n\n"), [])


class ShardTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "shard.bin"

    def test_round_trip(self):
        for tokens in ([], [7], [0, 65535, 1]):
            example_tokens.write_shard(self.path, np.array(tokens, np.uint16))
            self.assertEqual(example_tokens.read_shard(self.path).tolist(), tokens)

    def test_refuses_other_files(self):
        example_tokens.write_shard(self.path, np.arange(5, dtype=np.uint16))
        good = self.path.read_bytes()
        for bad in (b"", good[:1023], good[:-1], good + b"\0\0", b"\1" + good[1:], good[:4] + b"\2" + good[5:]):
            self.path.write_bytes(bad)
            with self.assertRaises(ValueError):
                example_tokens.read_shard(self.path)


class TinyTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(TINY / "tokenizer.model"))
        cls.config = json.loads((TINY / "config.json").read_text())
        cls.text = (TINY / "text.txt").read_text(encoding="utf-8")
        cls.shard = example_tokens.read_shard(TINY / "text.bin")

    def test_shard_is_the_text(self):
        self.assertTrue(np.array_equal(example_tokens.encode_text(self.text, self.tokenizer), self.shard))
        documents = example_tokens.split_documents(self.text)
        self.assertEqual(int((self.shard == self.tokenizer.bos_id()).sum()), len(documents))

    def test_bytes_are_those_of_the_normalised_text(self):
        # The text has single spaces only, so the normaliser just turns runs of line ends into one space.
        documents = example_tokens.split_documents(self.text)
        expected = sum(len(" ".join(document.split()).encode("utf-8")) for document in documents)
        self.assertEqual(example_tokens.ByteTable(self.tokenizer).count(self.shard), expected)

    def test_byte_pieces_count_one_byte_each(self):
        tokens = np.array([self.tokenizer.bos_id(), *self.tokenizer.encode("a \u20ac\u4e2d")])
        self.assertEqual(example_tokens.ByteTable(self.tokenizer).count(tokens), len("a \u20ac\u4e2d".encode()))

    def test_control_tokens_count_nothing(self):
        table = example_tokens.ByteTable(self.tokenizer)
        self.assertEqual(table.count(np.array([1, 0, 1, 2, 3])), 0)
        word = self.tokenizer.piece_to_id("\u2581the")
        self.assertEqual(table.count(np.array([1, word])), 3)
        self.assertEqual(table.count(np.array([word, word])), 4)

    def test_parameter_table_of_the_readme(self):
        with (TINY / "model.safetensors").open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        header.pop("__metadata__")
        total = sum(math.prod(tensor["shape"]) for tensor in header.values())
        self.assertIn(f"{total:,}", (REPOSITORY / "examples" / "README.md").read_text(encoding="utf-8"))
        self.assertEqual(header["tok_emb.weight"]["shape"], [self.config["vocab_size"], self.config["model_dim"]])
        self.assertEqual(self.tokenizer.get_piece_size(), self.config["vocab_size"])


if __name__ == "__main__":
    unittest.main()
