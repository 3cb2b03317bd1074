"""gguf_folder.py: folders of Hugging Face as GGUF files of float32 without a tokenizer, and back. Llama and GPT-2.

`thimble export --to gguf` needs a tokenizer that llama.cpp has; these files measure weights, and need none.
"""

import re

import numpy as np

from candidate import config_of, is_transposed, read_folder, write_folder

LAYER_NAMES = {
    "llama": {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
              "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
              "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"},
    "gpt2": {"ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
             "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
}
OTHER_NAMES = {
    "llama": {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"},
    "gpt2": {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "lm_head": "output"},
}


def family_of(config):
    family = config["model_type"]
    if family not in LAYER_NAMES:
        raise ValueError(f"model_type '{family}': this benchmark writes GGUF files of llama and gpt2")
    return family


def gguf_name(family, name):
    name = name.removeprefix("transformer.")
    stem, kind = name.rsplit(".", 1)
    layer = re.fullmatch(r"(?:model\.layers|h)\.(\d+)\.(.+)", stem)
    if layer:
        return f"blk.{layer[1]}.{LAYER_NAMES[family][layer[2]]}.{kind}"
    return f"{OTHER_NAMES[family][stem]}.{kind}"


def heads_of(config, name):
    """Heads whose rotary rows GGUF has in pairs, where Hugging Face has halves; 0 for other tensors."""
    if name.endswith("q_proj.weight"):
        return config["num_attention_heads"]
    return config.get("num_key_value_heads", config["num_attention_heads"]) if name.endswith("k_proj.weight") else 0


def in_pairs(rows, heads):
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def in_halves(rows, heads):
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def add_keys(writer, family, config):
    if family == "gpt2":
        width, heads = config["n_embd"], config["n_head"]
        writer.add_context_length(config["n_positions"])
        writer.add_block_count(config["n_layer"])
        writer.add_feed_forward_length(config.get("n_inner") or 4 * width)
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    else:
        width, heads = config["hidden_size"], config["num_attention_heads"]
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if rope.get("rope_type", rope.get("type", "default")) != "default":
            raise ValueError(f"rope_type '{rope['rope_type']}': this benchmark writes GGUF files of default only")
        head_dim = config.get("head_dim") or width // heads
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_head_count_kv(config.get("num_key_value_heads", heads))
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        writer.add_rope_dimension_count(head_dim)
        writer.add_rope_freq_base(float(rope.get("rope_theta") or config.get("rope_theta", 10000.0)))
    writer.add_embedding_length(width)
    writer.add_head_count(heads)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")


def write_gguf(folder, out):
    import gguf

    config = config_of(folder)
    family = family_of(config)
    writer = gguf.GGUFWriter(out, family)
    add_keys(writer, family, config)
    for name, tensor in read_folder(folder).items():
        values = tensor.numpy().astype(np.float32)
        if values.ndim == 2 and is_transposed(name):
            values = values.T
        heads = heads_of(config, name)
        writer.add_tensor(gguf_name(family, name), np.ascontiguousarray(in_pairs(values, heads) if heads else values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_folder_of(path, original, out):
    """A folder with the tensors of a GGUF file in float32 that began as write_gguf of the original."""
    import gguf
    import torch

    config = config_of(original)
    family = family_of(config)
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    tensors = {}
    for name, before in read_folder(original).items():
        tensor = found[gguf_name(family, name)]
        values = np.array(tensor.data, np.float32).reshape([int(n) for n in reversed(tensor.shape)])
        heads = heads_of(config, name)
        if heads:
            values = in_halves(values, heads)
        if values.ndim == 2 and is_transposed(name):
            values = values.T
        tensors[name] = torch.from_numpy(np.ascontiguousarray(values)).reshape(before.shape)
    return write_folder(original, tensors, out)
