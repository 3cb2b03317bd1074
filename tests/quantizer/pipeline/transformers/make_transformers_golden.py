#!/usr/bin/env python3
"""Writes the folders beside it: tiny models of each family with random weights, as `transformers` saves them, and what
it computes of them on the CPU in fp32 with eager attention. transformers_golden_test.cpp compares the program with it.

  make_transformers_golden.py        writes into its own folder; torch and transformers 5

  <model>/config.json            as save_pretrained writes it
  <model>/config_4.json          the same model with the keys of transformers 4
  <model>/model.safetensors      BF16
  <model>/golden.safetensors     tokens (P), logits (P, V), loss (1, the mean over P - 1 targets), greedy (G: what
                                 follows the first PROMPT tokens, from generate() over a cache), and of each parameter
                                 the loss's gradient: I16 units of gradient_unit/<name>, a 32,767th of its largest
"""
import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).parent
POSITIONS, PROMPT, NEW_TOKENS = 20, 8, 12
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 40}
LINEAR = {"rope_type": "linear", "factor": 2.5}


def shape(vocabulary, width, layers, heads, kv_heads, head_dim, mlp, **others):
    return {"vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "head_dim": head_dim, "intermediate_size": mlp,
            "max_position_embeddings": 64, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, **others}


# name -> model_type, keys of transformers 5, keys of transformers 4 that replace theirs.
MODELS = {
    "llama_16_heads_of_one_key": ("llama", shape(
        61, 16, 2, 16, 1, 6, 37, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={**LLAMA3, "rope_theta": 500.0}), {"rope_theta": 500.0, "rope_scaling": LLAMA3}),
    "llama_heads_of_80_biases": ("llama", shape(
        53, 14, 2, 2, 1, 80, 29, rms_norm_eps=1e-6, tie_word_embeddings=False, attention_bias=True, mlp_bias=True,
        rope_parameters={**LINEAR, "rope_theta": 10000.0}),
        {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 2.5}}),
    "mistral_window_of_5": ("mistral", shape(
        59, 21, 3, 3, 3, 10, 33, rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=5,
        rope_parameters={"rope_type": "default", "rope_theta": 70.0}), {"rope_theta": 70.0}),
    "mistral_heads_of_128": ("mistral", shape(
        47, 12, 2, 2, 1, 128, 23, rms_norm_eps=1e-5, tie_word_embeddings=True, sliding_window=13,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0}), {"rope_theta": 1000.0, "rope_scaling": None}),
    "qwen2_late_windows": ("qwen2", shape(
        61, 24, 3, 4, 2, 14, 31, rms_norm_eps=1e-6, tie_word_embeddings=True, use_sliding_window=True,
        sliding_window=6, max_window_layers=1, rope_parameters={"rope_type": "default", "rope_theta": 300.0}),
        {"rope_theta": 300.0, "layer_types": None}),
    "qwen2_heads_of_64": ("qwen2", shape(
        57, 15, 2, 3, 1, 64, 35, rms_norm_eps=1e-6, tie_word_embeddings=False, use_sliding_window=False,
        sliding_window=3, max_window_layers=0, rope_parameters={**LINEAR, "rope_theta": 1e6}),
        {"rope_theta": 1e6, "rope_scaling": LINEAR, "sliding_window": 3}),
    "qwen3_heads_of_96_biases": ("qwen3", shape(
        61, 14, 2, 2, 1, 96, 25, rms_norm_eps=1e-6, tie_word_embeddings=True, attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}), {"rope_theta": 1e6, "rope_scaling": None}),
    "qwen3_windows": ("qwen3", shape(
        43, 24, 3, 8, 2, 8, 31, rms_norm_eps=1e-5, tie_word_embeddings=False, use_sliding_window=True,
        sliding_window=4, max_window_layers=1, rope_parameters={**LLAMA3, "rope_theta": 200.0}),
        {"rope_theta": 200.0, "rope_scaling": LLAMA3, "layer_types": None}),
    "gemma3_heads_of_256": ("gemma3_text", shape(
        61, 9, 2, 1, 1, 256, 19, rms_norm_eps=1e-6, tie_word_embeddings=True, sliding_window=5,
        query_pre_attn_scalar=24, layer_types=["sliding_attention", "full_attention"],
        rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 1e6},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}),
        {"rope_theta": 1e6, "rope_local_base_freq": 10000.0, "layer_types": None, "sliding_window_pattern": 2}),
    "gemma3_stretched_waves": ("gemma3_text", shape(
        55, 20, 4, 4, 1, 14, 27, rms_norm_eps=1e-5, tie_word_embeddings=True, sliding_window=3,
        query_pre_attn_scalar=10, layer_types=["sliding_attention", "sliding_attention", "full_attention"] +
        ["sliding_attention"],
        rope_parameters={"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 300.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 40.0}}),
        {"rope_theta": 300.0, "rope_local_base_freq": 40.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
         "layer_types": None, "sliding_window_pattern": 3}),
}


def randomize(model, generator):
    """Matrices keep the scale of their input; norms, biases and embeddings are large enough that each term matters."""
    gemma = model.config.model_type == "gemma3_text"
    for name, parameter in model.named_parameters():
        uniform = 2 * torch.rand(parameter.shape, generator=generator) - 1
        if name.endswith(".bias"):
            values = 0.1 + 0.5 * uniform
        elif parameter.dim() == 1:
            values = (-0.1 if gemma else 0.9) + 0.5 * uniform
        elif "embed_tokens" in name:
            values = (0.3 if gemma else 0.8) * uniform
        else:
            values = 1.2 * (3.0 / parameter.shape[1]) ** 0.5 * uniform
        parameter.data.copy_(values.bfloat16().float())


def old_config(folder, replacements):
    config = json.loads((folder / "config.json").read_text())
    for key in ["rope_parameters", "transformers_version", "layer_types"]:
        config.pop(key, None)
    config["torch_dtype"] = config.pop("dtype")
    for key, value in replacements.items():
        if key != "layer_types":
            config[key] = value
    return config


def load(folder, config):
    return AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32,
                                                attn_implementation="eager").eval()


def write(name, seed):
    model_type, keys, replacements = MODELS[name]
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    config = AutoConfig.for_model(model_type, **keys)
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomize(model, generator)
    model.bfloat16().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "config_4.json").write_text(json.dumps(old_config(folder, replacements), indent=2) + "\n")

    model = load(folder, AutoConfig.from_pretrained(folder))  # as a user of the folder gets it, in fp32
    tokens = torch.randint(keys["vocab_size"], (1, POSITIONS), generator=generator)
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits[0, :-1], tokens[0, 1:])
    loss.backward()
    with torch.no_grad():
        old = load(folder, AutoConfig.from_pretrained(folder / "config_4.json"))
        assert torch.equal(old(tokens).logits, logits), name
        prompt = tokens[:, :PROMPT]
        grown = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW_TOKENS,
                               do_sample=False, use_cache=True)
        top = model(grown).logits[0, PROMPT - 1:-1].topk(2)
        margin = (top.values[:, 0] - top.values[:, 1]).min().item()
    assert torch.equal(top.indices[:, 0], grown[0, PROMPT:]), name
    if margin < 0.01:  # too close for another order of sums
        return write(name, seed + 100)

    golden = {"tokens": tokens[0].int(), "logits": logits[0].detach(), "loss": loss.detach().reshape(1),
              "greedy": grown[0, PROMPT:].int()}
    for parameter_name, parameter in model.named_parameters():
        unit = parameter.grad.abs().max() / 32767
        golden["gradient/" + parameter_name] = (parameter.grad / unit).round().short()
        golden["gradient_unit/" + parameter_name] = unit.reshape(1)
    save_file({key: value.contiguous() for key, value in golden.items()}, folder / "golden.safetensors")
    bytes_written = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{name}: {bytes_written} B, loss {loss.item():.4f}, least margin {margin:.3f}, "
          f"largest logit {logits.abs().max().item():.2f}")
    return bytes_written


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    print("torch", torch.__version__, "transformers", transformers.__version__)
    print(sum(write(name, seed) for seed, name in enumerate(MODELS)), "B in all")
