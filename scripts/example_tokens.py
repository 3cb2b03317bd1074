#!/usr/bin/env python3
"""example_tokens.py: the text side of the bundled example: tokenizer, token shards, byte counts.

  example_tokens.py tokenizer train.txt tokenizer.model     train a SentencePiece BPE tokenizer
  example_tokens.py shard tokenizer.model text.txt text.bin  tokenise a text into a shard

In:  plain UTF-8 text whose documents are separated by lines holding only `<|doc|>`.
Out: a SentencePiece model; shards: 256 little-endian int32 (magic 20240520, version 1, token
     count, zeros), then the tokens as little-endian uint16.
train_example.py and tests import the functions below. Needs numpy and sentencepiece.
"""

import argparse
import io
import sys
from pathlib import Path

import numpy as np
import sentencepiece

DOCUMENT_SEPARATOR = "<|doc|>"
SHARD_MAGIC = 20240520
SHARD_VERSION = 1
HEADER_INTS = 256


def split_documents(text: str) -> list[str]:
    """Documents between separator lines, stripped of newlines at both ends; empty ones dropped."""
    documents, lines = [], []
    for line in text.split("\n") + [DOCUMENT_SEPARATOR]:
        if line != DOCUMENT_SEPARATOR:
            lines.append(line)
            continue
        document = "\n".join(lines).strip("\n")
        if document:
            documents.append(document)
        lines = []
    return documents


def train_tokenizer(text_path: Path, model_path: Path, vocab_size: int) -> None:
    """Train a BPE model of `vocab_size` pieces on every line of the text that is no separator.

    Ids 0-3 are <pad>, <s>, </s>, <unk>; 4-259 the byte pieces. The normaliser (nmt_nfkc) turns line
    ends into spaces and joins runs of spaces. Lines over 16 KiB do not take part.
    """
    documents = split_documents(text_path.read_text(encoding="utf-8"))
    model = io.BytesIO()  # a writer, so that no file name ends up inside the model
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for document in documents for line in document.split("\n") if line),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        character_coverage=0.999,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="nmt_nfkc",
        add_dummy_prefix=False,
        hard_vocab_limit=False,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        max_sentence_length=16384,
        num_threads=1,  # the result does not depend on it, but one thread is the simplest promise
        minloglevel=1,
    )
    model_path.write_bytes(model.getvalue())


def encode_text(text: str, tokenizer: sentencepiece.SentencePieceProcessor) -> np.ndarray:
    """uint16 tokens of all documents, each preceded by the beginning-of-sequence token."""
    ids: list[int] = []
    for document in split_documents(text):
        ids.append(tokenizer.bos_id())
        ids.extend(tokenizer.encode(document))
    return np.array(ids, dtype="<u2")


def write_shard(path: Path, tokens: np.ndarray) -> None:
    header = np.zeros(HEADER_INTS, dtype="<i4")
    header[:3] = SHARD_MAGIC, SHARD_VERSION, len(tokens)
    path.write_bytes(header.tobytes() + tokens.astype("<u2").tobytes())


def read_shard(path: Path) -> np.ndarray:
    """The tokens (uint16) of a shard. Raises ValueError when the file is not exactly one shard."""
    data = path.read_bytes()
    if len(data) < 4 * HEADER_INTS:
        raise ValueError(f"{path}: {len(data)} bytes, a shard header alone has {4 * HEADER_INTS}")
    magic, version, count = (int(value) for value in np.frombuffer(data, "<i4", count=3))
    if (magic, version) != (SHARD_MAGIC, SHARD_VERSION):
        raise ValueError(
            f"{path}: magic {magic} version {version}, expected {SHARD_MAGIC} and {SHARD_VERSION}"
        )
    if len(data) != 4 * HEADER_INTS + 2 * count:
        raise ValueError(f"{path}: {len(data)} bytes do not hold a header and {count} tokens")
    return np.frombuffer(data, "<u2", offset=4 * HEADER_INTS)


def load_tokens(path: Path, tokenizer: sentencepiece.SentencePieceProcessor) -> np.ndarray:
    """Tokens of a shard (.bin), or of any other file read as text."""
    if path.suffix == ".bin":
        return read_shard(path)
    return encode_text(path.read_text(encoding="utf-8"), tokenizer)


class ByteTable:
    """How many bytes of text each target token stands for.

    A byte piece is 1 byte; control, unknown and unused tokens are 0; any other piece is its UTF-8
    length without the leading U+2581, plus 1 for that mark unless the previous token is a control,
    unknown or unused one (then there is no space to write).
    """

    def __init__(self, tokenizer: sentencepiece.SentencePieceProcessor):
        size = tokenizer.get_piece_size()
        self.piece_bytes = np.zeros(size, np.int64)
        self.has_mark = np.zeros(size, bool)
        self.is_boundary = np.zeros(size, bool)
        for token in range(size):
            if tokenizer.is_control(token) or tokenizer.is_unknown(token) or tokenizer.is_unused(token):
                self.is_boundary[token] = True
            elif tokenizer.is_byte(token):
                self.piece_bytes[token] = 1
            else:
                piece = tokenizer.id_to_piece(token)
                self.has_mark[token] = piece.startswith("\u2581")
                self.piece_bytes[token] = len(piece.removeprefix("\u2581").encode("utf-8"))

    def count(self, tokens: np.ndarray) -> int:
        """Bytes of the targets tokens[1:], each with its predecessor."""
        previous, target = tokens[:-1], tokens[1:]
        space = self.has_mark[target] & ~self.is_boundary[previous]
        return int((self.piece_bytes[target] + space).sum())


def main() -> int:
    parser = argparse.ArgumentParser(description="Tokenizer and token shards of the bundled example.")
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("tokenizer", help="train a SentencePiece BPE tokenizer on a text")
    train.add_argument("text", type=Path)
    train.add_argument("model", type=Path, help="file to write")
    train.add_argument("--vocab-size", type=int, default=1024)
    shard = commands.add_parser("shard", help="tokenise a text into a shard")
    shard.add_argument("model", type=Path)
    shard.add_argument("text", type=Path)
    shard.add_argument("shard", type=Path)
    options = parser.parse_args()

    if options.command == "tokenizer":
        train_tokenizer(options.text, options.model, options.vocab_size)
        print(f"{options.model}: {options.model.stat().st_size} bytes")
        return 0
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(options.model))
    tokens = encode_text(options.text.read_text(encoding="utf-8"), tokenizer)
    write_shard(options.shard, tokens)
    print(f"{options.shard}: {len(tokens)} tokens, {ByteTable(tokenizer).count(tokens)} bytes of text")
    return 0


if __name__ == "__main__":
    sys.exit(main())
