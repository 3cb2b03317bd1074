"""make_gguf_blocks.py: writes gguf_blocks.json, blocks of every quantized type of GGUF files that is read, and what the
Python package of llama.cpp (gguf 0.19.0) makes of them in float32.

    python3 tests/quantizer/formats/golden/make_gguf_blocks.py

Codes and packed scales are random bytes; scales in fp16 are random, negative, subnormal, zero and the largest.
"""

import json
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize

# Where fp16 numbers lie in a block.
HALVES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
SCALES = np.array([0.0123, -0.75, 3e-7, 65504.0, 0.0, -1e-4], dtype=np.float16)


def blocks_of(rng, name):
    size = GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]
    blocks = rng.integers(0, 256, (3 if size > 64 else len(SCALES), size), dtype=np.uint8)
    for i, block in enumerate(blocks):
        for at in HALVES[name]:
            block[at:at + 2] = np.frombuffer(SCALES[(i + at) % len(SCALES)].tobytes(), dtype=np.uint8)
    return blocks


def main():
    rng = np.random.default_rng(11)
    golden = {}
    for name in HALVES:
        blocks = blocks_of(rng, name)
        values = dequantize(blocks, GGMLQuantizationType[name])
        golden[name] = {"blocks": blocks.tobytes().hex(), "values": values.astype("<f4").tobytes().hex()}
    weights = (rng.standard_normal(160) * 0.05).astype(np.float32)
    weights[32:64] = 0
    weights[64:96] = np.arange(32) - 15.5  # halves between codes
    golden["quantized"] = {"values": weights.tobytes().hex(),
                           "Q8_0": quantize(weights.reshape(1, -1), GGMLQuantizationType.Q8_0).tobytes().hex()}
    Path(__file__).with_name("gguf_blocks.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
