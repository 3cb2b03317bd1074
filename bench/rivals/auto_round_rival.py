"""auto_round_rival.py: AutoRound (sign-gradient rounding), calibrated on the same tokens."""

from importlib.metadata import version

from candidate import Candidate, is_layer_matrix, read_folder, weight_files, write_folder

SETTINGS = {f"{bits} bits, groups of {group}": (bits, group) for bits, group in ((2, 64), (2, 128), (3, 128), (4, 128))}


def versions(_options):
    return f"auto-round {version('auto-round')}"


def settings(_options):
    return list(SETTINGS)


def tokenizer_of(size):
    """AutoRound asks for one, and does not read it where samples are tokens."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = models.WordLevel({str(i): i for i in range(size)}, unk_token="0")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words))


def make(options, setting, folder):
    import numpy as np
    import torch
    from auto_round import AutoRound
    from transformers import AutoModelForCausalLM

    bits, group = SETTINGS[setting]
    length = options.calibration_length
    ids = torch.from_numpy(np.fromfile(options.calibration_int32, "<i4").astype("int64")).reshape(-1, length)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    tuner = AutoRound(model, tokenizer_of(model.config.vocab_size), bits=bits, group_size=group, sym=False,
                      dataset=[{"input_ids": row[None]} for row in ids], seqlen=length, nsamples=len(ids),
                      iters=options.auto_round_iterations, amp=torch.cuda.is_available(),
                      enable_torch_compile=False)
    tuner.quantize()
    # Its weights in memory are the dequantized ones by now; a second save would repeat the first's format.
    names = set(read_folder(options.model))
    tensors = {name: tensor.detach().float().cpu().clone() for name, tensor in tuner.model.state_dict().items()
               if name in names}
    weights = write_folder(options.model, tensors, folder / "weights")
    for name, parameter in tuner.model.named_parameters():
        if not is_layer_matrix(name, parameter):
            parameter.data = parameter.data.to(torch.bfloat16)
    tuner.save_quantized(str(folder / "packed"), format="auto_round", inplace=True)
    iterations = f"{options.auto_round_iterations} iterations"
    return Candidate(weight_files(folder / "packed"), weights, f"embedding in bf16, {iterations}")
