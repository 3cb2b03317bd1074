// llama_cpp.cpp: what llama-imatrix and llama-quantize of llama.cpp do, through its library, on tokens instead of a
// text. bench/rivals/llama_cpp.py compiles it against the headers and libraries that are given to bench/rivals.py.
//   llama_cpp importance MODEL.gguf TOKENS LENGTH THREADS OUT      TOKENS: int32, whole sequences of LENGTH
//   llama_cpp quantize MODEL.gguf IMPORTANCE FILE_TYPE THREADS OUT.gguf      FILE_TYPE: a number of llama_ftype
//   llama_cpp float32 MODEL.gguf OUT.gguf      the same tensors, dequantized by ggml
// The importance matrix is the mean of the squared inputs of each matrix over all tokens, each sequence read from its
// start. `quantize` prints what llama.cpp says of fallbacks to other types than it wanted.
#include <ggml-backend.h>
#include <ggml.h>
#include <gguf.h>
#include <llama.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace {

struct Means {
  std::vector<double> sums;  // of squares, by column
  double rows = 0;
};

[[noreturn]] void fail(const std::string& what) {
  fprintf(stderr, "llama_cpp: %s\n", what.c_str());
  exit(1);
}

void show_errors(ggml_log_level level, const char* text, void*) {
  const bool is_fallback = std::string(text).find("fallback") != std::string::npos;
  if (level >= GGML_LOG_LEVEL_ERROR && level != GGML_LOG_LEVEL_CONT) fputs(text, stderr);
  if (is_fallback) fputs(text, stdout);
}

// ggml_backend_sched_eval_callback: first asks whether the tensor is wanted, then shows it.
bool collect(ggml_tensor* tensor, bool ask, void* user) {
  const ggml_tensor *weight = tensor->src[0], *input = tensor->src[1];
  const std::string name = weight ? weight->name : "";
  // As llama-imatrix: the layers' matrices, and not the output head's.
  if (tensor->op != GGML_OP_MUL_MAT || !name.starts_with("blk.") || !name.ends_with(".weight")) return false;
  if (ask) return true;
  if (input->type != GGML_TYPE_F32 || !ggml_is_contiguous(input)) fail("an input of " + name + " is not float32");
  std::vector<float> values(static_cast<size_t>(ggml_nelements(input)));
  ggml_backend_tensor_get(input, values.data(), 0, values.size() * sizeof(float));
  Means& means = (*static_cast<std::map<std::string, Means>*>(user))[name];
  const auto columns = static_cast<size_t>(input->ne[0]);
  means.sums.resize(columns);
  for (size_t i = 0; i < values.size(); ++i) means.sums[i % columns] += static_cast<double>(values[i]) * values[i];
  means.rows += static_cast<double>(values.size() / columns);
  return true;
}

void importance(char** arguments) {
  std::ifstream file(arguments[1], std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  std::vector<llama_token> tokens(bytes.size() / sizeof(llama_token));
  std::copy_n(bytes.data(), tokens.size() * sizeof(llama_token), reinterpret_cast<char*>(tokens.data()));
  const int length = atoi(arguments[2]);
  llama_model* model = llama_model_load_from_file(arguments[0], llama_model_default_params());
  if (!model) fail(std::string("cannot read ") + arguments[0]);
  std::map<std::string, Means> all;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = static_cast<uint32_t>(length);
  params.n_threads = params.n_threads_batch = atoi(arguments[3]);
  params.cb_eval = collect;
  params.cb_eval_user_data = &all;
  llama_context* context = llama_init_from_model(model, params);
  if (!context) fail("no context of this length");
  for (size_t first = 0; first + static_cast<size_t>(length) <= tokens.size(); first += static_cast<size_t>(length)) {
    llama_memory_clear(llama_get_memory(context), true);
    std::vector<llama_token> sequence(tokens.begin() + static_cast<long>(first),
                                      tokens.begin() + static_cast<long>(first) + length);
    if (llama_decode(context, llama_batch_get_one(sequence.data(), length))) fail("the model does not run");
  }
  llama_free(context);
  llama_model_free(model);

  std::ofstream out(arguments[4], std::ios::binary);
  out.precision(9);
  for (const auto& [name, means] : all) {
    out << name << ' ' << means.sums.size();
    for (double sum : means.sums) out << ' ' << static_cast<float>(sum / means.rows);
    out << '\n';
  }
  if (!out.flush() || all.empty()) fail(std::string("cannot write ") + arguments[4]);
  printf("importance of %zu matrices, %zu tokens\n", all.size(), tokens.size());
}

void quantize(char** arguments) {
  std::ifstream file(arguments[1]);
  std::map<std::string, std::vector<float>> all;
  std::string name;
  for (size_t columns = 0; file >> name >> columns;) {
    all[name].resize(columns);
    for (float& value : all[name]) file >> value;
  }
  if (all.empty()) fail(std::string(arguments[1]) + ": no importance of any matrix");
  std::vector<llama_model_imatrix_data> entries;
  for (const auto& [key, values] : all) entries.push_back({key.c_str(), values.data(), values.size()});
  entries.push_back({nullptr, nullptr, 0});
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.ftype = static_cast<llama_ftype>(atoi(arguments[2]));
  params.nthread = atoi(arguments[3]);
  params.imatrix = entries.data();
  if (llama_model_quantize(arguments[0], arguments[4], &params)) fail(std::string("cannot make ") + arguments[4]);
}

void to_float32(char** arguments) {
  ggml_context* tensors = nullptr;
  gguf_context* in = gguf_init_from_file(arguments[0], {.no_alloc = false, .ctx = &tensors});
  if (!in) fail(std::string("cannot read ") + arguments[0]);
  const int64_t count = gguf_get_n_tensors(in);
  size_t bytes = 0;
  for (int64_t i = 0; i < count; ++i)
    bytes +=
        static_cast<size_t>(ggml_nelements(ggml_get_tensor(tensors, gguf_get_tensor_name(in, i)))) * sizeof(float) +
        ggml_tensor_overhead() + GGUF_DEFAULT_ALIGNMENT;
  ggml_context* values = ggml_init({.mem_size = bytes, .mem_buffer = nullptr, .no_alloc = false});
  gguf_context* out = gguf_init_empty();
  gguf_set_kv(out, in);
  for (int64_t i = 0; i < count; ++i) {
    const ggml_tensor* from = ggml_get_tensor(tensors, gguf_get_tensor_name(in, i));
    ggml_tensor* to = ggml_new_tensor(values, GGML_TYPE_F32, GGML_MAX_DIMS, from->ne);
    ggml_set_name(to, from->name);
    const int64_t elements = ggml_nelements(from);
    const ggml_to_float_t convert = ggml_get_type_traits(from->type)->to_float;
    if (from->type == GGML_TYPE_F32)
      std::copy_n(static_cast<const float*>(from->data), elements, static_cast<float*>(to->data));
    else if (convert)
      convert(from->data, static_cast<float*>(to->data), elements);
    else
      fail(std::string(from->name) + ": ggml does not dequantize " + ggml_type_name(from->type));
    if (ggml_n_dims(from) > 1) printf("%s %lld\n", ggml_type_name(from->type), static_cast<long long>(elements));
    gguf_add_tensor(out, to);
  }
  if (!gguf_write_to_file(out, arguments[1], false)) fail(std::string("cannot write ") + arguments[1]);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string command = count > 1 ? arguments[1] : "";
  llama_log_set(show_errors, nullptr);
  ggml_backend_load_all();
  llama_backend_init();
  if (command == "importance" && count == 7)
    importance(arguments + 2);
  else if (command == "quantize" && count == 7)
    quantize(arguments + 2);
  else if (command == "float32" && count == 4)
    to_float32(arguments + 2);
  else
    fail("usage: see the head of llama_cpp.cpp");
}
