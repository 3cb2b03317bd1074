// llama_cpp.cpp: what llama-imatrix and llama-quantize of llama.cpp do, through its library, on tokens instead of a
// text. bench/rivals/llama_cpp.py compiles it against the headers and libraries that are given to bench/rivals.py.
//   llama_cpp MODEL.gguf TOKENS LENGTH (FILE_TYPE OUT.gguf)...
// TOKENS: int32 values, whole sequences of LENGTH. FILE_TYPE: a number of llama_ftype. The importance matrix is the
// mean of the squared inputs of each matrix over all tokens, each sequence read from its start.
#include <ggml-backend.h>
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
using Importance = std::map<std::string, Means>;

[[noreturn]] void fail(const std::string& what) {
  fprintf(stderr, "llama_cpp: %s\n", what.c_str());
  exit(1);
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
  Means& means = (*static_cast<Importance*>(user))[name];
  const auto columns = static_cast<size_t>(input->ne[0]);
  means.sums.resize(columns);
  for (size_t i = 0; i < values.size(); ++i) means.sums[i % columns] += static_cast<double>(values[i]) * values[i];
  means.rows += static_cast<double>(values.size() / columns);
  return true;
}

Importance importance_of(const char* path, const std::vector<llama_token>& tokens, int length) {
  llama_model* model = llama_model_load_from_file(path, llama_model_default_params());
  if (!model) fail(std::string("cannot read ") + path);
  Importance importance;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = static_cast<uint32_t>(length);
  params.cb_eval = collect;
  params.cb_eval_user_data = &importance;
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
  return importance;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 4 || count % 2 != 0) fail("usage: llama_cpp MODEL.gguf TOKENS LENGTH (FILE_TYPE OUT.gguf)...");
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level >= GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
      },
      nullptr);
  ggml_backend_load_all();
  llama_backend_init();
  std::ifstream file(arguments[2], std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  std::vector<llama_token> tokens(bytes.size() / sizeof(llama_token));
  std::copy_n(bytes.data(), tokens.size() * sizeof(llama_token), reinterpret_cast<char*>(tokens.data()));
  const Importance importance = importance_of(arguments[1], tokens, atoi(arguments[3]));

  std::vector<std::vector<float>> values;
  std::vector<llama_model_imatrix_data> entries;
  for (const auto& [name, means] : importance) {
    values.emplace_back();
    for (double sum : means.sums) values.back().push_back(static_cast<float>(sum / means.rows));
  }
  size_t i = 0;
  for (const auto& [name, means] : importance) {
    entries.push_back({name.c_str(), values[i].data(), values[i].size()});
    ++i;
  }
  entries.push_back({nullptr, nullptr, 0});
  printf("importance of %zu matrices\n", importance.size());
  for (int a = 4; a < count; a += 2) {
    llama_model_quantize_params params = llama_model_quantize_default_params();
    params.ftype = static_cast<llama_ftype>(atoi(arguments[a]));
    params.imatrix = entries.data();
    if (llama_model_quantize(arguments[1], arguments[a + 1], &params)) fail(std::string("no ") + arguments[a + 1]);
  }
}
