#!/usr/bin/env python3
"""Writes the small tokenizer files of this folder and, with the `tokenizers` library as the reference, the ids that
they give for texts (ids.json). Needs tokenizers 0.23.

  make_golden.py        writes into its own folder
"""
import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent
MARK = "\u2581"
CORPUS = [
    "The sea was calm, and the sailors said that they'd seen the light of the other shore since 1987.",
    "the other sailors' songs weren't heard; they were singing for the sea, the sea and the shore.",
    "def light(shore):\n    return [sea for sea in shore if sea > 10]\n\n\nprint(light([1, 12, 123]))\n",
    "Das Meer war ruhig, die K\u00fcste sch\u00f6n. \u041c\u043e\u0440\u0435 \u0431\u044b\u043b\u043e \u0441\u043f\u043e\u043a\u043e\u0439\u043d\u043e. \u6d77\u306f\u9759\u304b\u3060\u3063\u305f\u3002",
]
TEXTS = [
    "", " ", "The sea", " the  shore\n\n\n   light\t12345 and 9", "They'd said: 'the SEA'S light' isn\u2019t K\u00fcste\u2026",
    "\u041c\u043e\u0440\u0435 \u6d77\u306f \ud55c\uad6d\uc5b4 \u0e44\u0e17\u0e22 \u0627\u0644\u0628\u062d\u0631 \u0939\u093f\u0928\u094d\u0926\u0940 \u05d9\u05dd \u1f600",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f", "e\u0301 \u212b \ufb01 \u00bd \u0663 \u2167", "\u0000\u007f\u0085\u00a0\u180e\u2028\u3000x",
    "<s>the sea</s> the <s> shore", "a<word> <word> b <word>", "the  <left>  sea  <right>  shore", "x\r\n  \r\ny   ",
    MARK + "the" + MARK * 3 + "sea", "if sea > 10:\n        return\n", "thethethethe" * 12, "1" * 30 + " " * 40 + "a",
    # Newer than some version of Unicode in use: letters, digits, marks that normal forms reorder, compositions.
    "x\U00011f02\U000acc0b \U00014066\U000821d0 9 \U00016d75\u0897 \ua7da<word> \U00011de0\U00010d41\U00016ff4",
    "a\u1ac6\u0323\u09fe\u1ab7 \ua7f2\U00010781 \u32ff \U00011935\U00011930\U00011938 \U0001fbf1 e\u0897\u0301",
]
LLAMA = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
QWEN = LLAMA.replace("{1,3}", "")
# Words by their case, and several splits one after another, with ranges of characters.
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}"
          r"\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
            r"|\s*[\r\n]+|\s+(?!\S)|\s+"]
ADDED = [AddedToken("<word>", single_word=True), AddedToken("<left>", lstrip=True, normalized=False),
         AddedToken("<right>", rstrip=True, normalized=False)]
BOS = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])


def byte_level(steps, normalizer=None, ignore_merges=False, post_processor=None):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=360, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False, special_tokens=["<|endoftext|>", "<s>", "</s>"])
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(ADDED)
    if post_processor:
        tokenizer.post_processor = post_processor
    return tokenizer


def characters(normalizer, pre_tokenizer, byte_fallback, strips, fuse):
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Replace(" ", MARK)
    trained.pre_tokenizer = pre_tokenizers.Split(MARK, "merged_with_next")
    special = ["<unk>", "<s>", "</s>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)] if byte_fallback else []
    trained.train_from_iterator(CORPUS[:3], trainers.BpeTrainer(vocab_size=400, show_progress=False,
                                                               special_tokens=special + bytes_))
    parts = json.loads(trained.to_str())
    parts["model"].update(byte_fallback=byte_fallback, fuse_unk=fuse)
    for length in (2, 4):
        parts["model"]["vocab"].setdefault(MARK * length, len(parts["model"]["vocab"]))
        parts["model"]["merges"].append([MARK * (length // 2)] * 2)
    parts["added_tokens"] = parts["added_tokens"][: len(special)]
    parts["normalizer"] = parts["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(parts))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strips else []))
    tokenizer.add_tokens(ADDED)
    tokenizer.post_processor = BOS
    return tokenizer


def main():
    pre, norm = pre_tokenizers, normalizers
    plain = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    marks = norm.Replace(" ", MARK)
    tokenizers = {
        "byte_level": byte_level([pre.ByteLevel(add_prefix_space=False)]),
        "prefix_space": byte_level([pre.ByteLevel(add_prefix_space=True)]),
        "digits": byte_level([pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)]),
        "split": byte_level([pre.Split(Regex(LLAMA), "isolated"), plain], ignore_merges=True, post_processor=BOS),
        "nfc": byte_level([pre.Split(Regex(QWEN), "removed", invert=True), plain], norm.NFC()),
        "nfkc": byte_level([pre.Split("e", "merged_with_previous"), pre.Split(Regex("[aou]"), "merged_with_next"),
                            pre.Split(Regex("[st]"), "contiguous"), plain], norm.NFKC()),
        "tekken": byte_level([pre.Split(Regex(TEKKEN), "isolated"), plain], ignore_merges=True),
        "deepseek": byte_level([pre.Split(Regex(part), "isolated") for part in DEEPSEEK] + [plain]),
        "prepend": characters(norm.Sequence([norm.Prepend(MARK), marks]), None, True, True, True),
        "metaspace": characters(None, pre.Metaspace(MARK, prepend_scheme="first", split=False), True, True, True),
        "always": characters(None, pre.Metaspace(MARK, prepend_scheme="always", split=True), True, True, True),
        "marks": characters(marks, pre.Split(" ", "merged_with_previous"), True, False, True),
        "unknown": characters(marks, None, False, False, False),
        "fused": characters(marks, None, False, False, True),
    }
    ids = {}
    for name, tokenizer in tokenizers.items():
        text = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
        (HERE / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        ids[name] = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    lines = [f'"texts": {json.dumps(TEXTS)}'] + [f'"{name}": {json.dumps(rows)}' for name, rows in ids.items()]
    (HERE / "ids.json").write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")


main()
