# What text_model.cpp is made of besides the decoder (packer/embed/sources.cmake): the program's own sources of families,
# the CPU's forward pass, sampling and tokenizers, serial. THIMBLE_TEXT_KERNELS is where the time goes.
include(${CMAKE_CURRENT_LIST_DIR}/../../../packer/embed/sources.cmake)
set(THIMBLE_TEXT_SOURCES
    eval/tokenizers/charsmap.cpp
    eval/tokenizers/protobuf_fields.cpp
    eval/tokenizers/sentencepiece_bpe.cpp
    eval/tokenizers/sentencepiece_normalizer.cpp
    eval/tokenizers/sentencepiece_pieces.cpp
    eval/tokenizers/tokenizer_check.cpp
    eval/tokenizers/tokenizer_model.cpp
    eval/tokenizers/utf8.cpp
    examples/browser/module/text_model.cpp
    runtime/base/json.cpp
    runtime/base/parallel_chunks.cpp
    runtime/base/parallel_serial.cpp
    runtime/base/random.cpp
    runtime/cpu/cpu_pass.cpp
    runtime/cpu/cpu_rows.cpp
    runtime/cpu/cpu_text.cpp
    runtime/cpu/gemm.cpp
    runtime/cpu/portable_kernels.cpp
    runtime/families/config_reader.cpp
    runtime/families/description.cpp
    runtime/families/golf/golf_config.cpp
    runtime/families/golf/golf_layout.cpp
    runtime/families/golf/golf_network.cpp
    runtime/families/gpt2/gpt2_config.cpp
    runtime/families/gpt2/gpt2_network.cpp
    runtime/families/llama/llama_config.cpp
    runtime/families/llama/llama_network.cpp
    runtime/ops/generator.cpp
    runtime/ops/network.cpp
    runtime/ops/numeric_policy.cpp
    runtime/ops/ops.cpp
    runtime/ops/pass_plan.cpp
    runtime/ops/slot_plan.cpp
    runtime/ops/token_batch.cpp
    runtime/ops/vector_sums.cpp
    runtime/ops/weights.cpp
    runtime/tensor/stored_matrix.cpp
    runtime/tensor/tensor.cpp)
set(THIMBLE_TEXT_KERNELS runtime/cpu/cpu_kernels.cpp)
list(TRANSFORM THIMBLE_TEXT_SOURCES PREPEND ${THIMBLE_ROOT}/)
list(TRANSFORM THIMBLE_TEXT_KERNELS PREPEND ${THIMBLE_ROOT}/)
