// checkpoint_test.cpp: choosing the format by content, wrapper prefixes, configs, and the real checkpoints.
#include "quantizer/checkpoints/checkpoint.h"

#include <gtest/gtest.h>

#include "quantizer/formats/safetensors.h"
#include "quantizer/formats/torch_checkpoint.h"
#include "quantizer/formats/zip_archive.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/hash.h"
#include "tests/quantizer/formats/reader_asserts.h"
#include "tests/quantizer/formats/torch_file_builder.h"
#include "tests/support/test_files.h"

namespace thimble::checkpoint_test {
namespace {

Tensor floats(const std::vector<float>& values) {
  return {DType::kF32, {static_cast<int64_t>(values.size())}, from_float32(DType::kF32, values)};
}

// A safetensors file of float vectors under these names.
void write_names(const std::string& path, const std::vector<std::string>& names,
                 const std::map<std::string, std::string>& metadata = {}) {
  Tensor tensor = floats({1, 2});
  TensorMap tensors;
  for (const std::string& name : names) tensors[name] = tensor.view();
  write_safetensors(path, tensors, metadata);
}

ByteVector torch_bytes(const std::vector<std::string>& names) {
  PickleBuilder pickle;
  pickle.op('}');
  for (const std::string& name : names) pickle.text(name).tensor("FloatStorage", "0", 4, 0, {2, 2}, {1, 2}).op('s');
  pickle.text("config").op('}').text("layers").integer(2).ops("ss");
  return build_zip(torch_parts(pickle.stop(), {{"0", from_float32(DType::kF32, std::vector<float>{1, 2, 3, 4})}}))
      .bytes;
}

TEST(StripWrapperPrefixes, InAnyOrderAndOnlyInFront) {
  for (auto [name, stripped] : {std::pair{"a.module.b", "a.module.b"},
                                {"module.a", "a"},
                                {"_orig_mod.module.a", "a"},
                                {"module._orig_mod.module._orig_mod.a", "a"},
                                {"module", "module"},
                                {"modules.a", "modules.a"},
                                {"", ""}})
    EXPECT_EQ(strip_wrapper_prefixes(name), stripped);
}

TEST(Checkpoint, FormatIsChosenByContent) {
  ScratchFile safetensors("is_safetensors.pt"), torch("is_torch.safetensors");
  write_names(safetensors.path(), {"w"}, {{"format", "pt"}});
  ByteVector bytes = torch_bytes({"w"});
  write_file_atomically(torch.path(), bytes);

  Checkpoint first = open_checkpoint(safetensors.path());
  EXPECT_EQ(first.format_name(), "safetensors");
  EXPECT_EQ(first.path(), safetensors.path());
  EXPECT_EQ(first.metadata().at("format"), "pt");
  EXPECT_EQ(to_float32(first.tensors().at("w")), (std::vector<float>{1, 2}));

  Checkpoint second = open_checkpoint(torch.path());
  EXPECT_EQ(second.format_name(), "torch");
  EXPECT_EQ(second.file_bytes(), bytes.size());
  EXPECT_EQ(second.content_hash(), xxh3(bytes));
  EXPECT_TRUE(second.metadata().empty());
  EXPECT_EQ(canonical_json(*second.config()), R"({"layers":2})");
}

TEST(Checkpoint, ViewsSurviveAMove) {
  ScratchFile path("moved");
  write_file_atomically(path.path(), torch_bytes({"w"}));
  Checkpoint opened = open_checkpoint(path.path());
  Checkpoint moved = std::move(opened);
  EXPECT_EQ(to_float32(moved.tensors().at("w")), (std::vector<float>{1, 3, 2, 4}));  // gathered: a transposed view
}

TEST(Checkpoint, WrapperPrefixesAreStrippedPerName) {
  ScratchFile path("prefixes");
  write_names(path.path(), {"module._orig_mod.a.weight", "_orig_mod.b", "n_averaged"});
  Checkpoint checkpoint = open_checkpoint(path.path());
  EXPECT_EQ(checkpoint.tensors().size(), 3u);
  for (const char* name : {"a.weight", "b", "n_averaged"}) EXPECT_TRUE(checkpoint.tensors().contains(name)) << name;

  write_names(path.path(), {"_orig_mod.a", "module.a"});
  expect_format_error("tensors '_orig_mod.a' and 'module.a' are both 'a' without wrapper prefixes",
                      [&] { open_checkpoint(path.path()); });
  write_file_atomically(path.path(), torch_bytes({"module.w", "w"}));
  expect_format_error("tensors 'module.w' and 'w' are both 'w'", [&] { open_checkpoint(path.path()); });
}

TEST(Checkpoint, ConfigInSafetensorsMetadata) {
  ScratchFile path("config");
  write_names(path.path(), {"w"}, {{"config", R"({"layers": 3})"}});
  EXPECT_EQ(canonical_json(*open_checkpoint(path.path()).config()), R"({"layers":3})");
  for (const char* other : {"", "some text", "[1]", "{\"a\":", "3"}) {
    write_names(path.path(), {"w"}, {{"config", other}});
    EXPECT_FALSE(open_checkpoint(path.path()).config()) << other;
  }
  write_names(path.path(), {"w"}, {{"config", R"({"a":1,"a":2})"}});
  expect_format_error("metadata 'config': JSON key 'a' appears twice", [&] { open_checkpoint(path.path()); });
}

TEST(Checkpoint, OtherFilesAreRefused) {
  ScratchFile path("other");
  std::string part = "not a checkpoint (.safetensors, .gguf, a zip file of torch.save, or .bin of llm.c)";
  for (const char* text : {"", "short", "some text that is long enough"}) {
    write_file_atomically(path.path(), std::string_view(text));
    expect_format_error(part, [&] { open_checkpoint(path.path()); });
  }
  write_file_atomically(path.path(), std::string_view("\x80\x02}q\0.", 6));
  expect_format_error("is a bare pickle or a file of PyTorch before 1.6", [&] { open_checkpoint(path.path()); });
  EXPECT_THROW(open_checkpoint(path.path() + ".missing"), IoError);
}

// What torch.save wrote and its bfloat16 rounding as safetensors.
TEST(RealCheckpoints, TorchFileEqualsItsSafetensorsRounding) {
  if (!file_exists(shared_data("tiny/final_model.pt"))) GTEST_SKIP() << "no shared data";
  Checkpoint torch = open_checkpoint(shared_data("tiny/final_model.pt"));
  Checkpoint rounded = open_checkpoint(shared_data("tiny/model.safetensors"));
  ASSERT_EQ(torch.tensors().size(), rounded.tensors().size());
  size_t compared = 0;
  for (const auto& [name, expected] : rounded.tensors()) {
    ASSERT_TRUE(torch.tensors().contains(name)) << name;
    const TensorView& found = torch.tensors().at(name);
    ASSERT_EQ(found.shape, expected.shape) << name;
    ByteVector bytes = from_float32(expected.dtype, to_float32(found));
    EXPECT_TRUE(as_text(bytes) == as_text(expected.bytes)) << name;
    compared += static_cast<size_t>(element_count(expected.shape));
  }
  EXPECT_EQ(compared, 2781972u);
}

TEST(RealCheckpoints, TruncatedTorchFilesAreErrors) {
  if (!file_exists(shared_data("tiny/final_model.pt"))) GTEST_SKIP() << "no shared data";
  MappedFile file(shared_data("tiny/final_model.pt"));
  Bytes bytes = file.bytes();
  std::vector<size_t> cuts = {0, 4, bytes.size() - 1, bytes.size() - 22, bytes.size() - 42, bytes.size() - 98};
  ZipArchive archive(bytes, file.path());
  for (const auto& [name, entry] : archive.entries()) {
    auto data_at = static_cast<size_t>(entry.bytes.data() - bytes.data());
    cuts.push_back(data_at);
    cuts.push_back(data_at + entry.bytes.size());
    cuts.push_back(data_at + entry.bytes.size() + 16);  // behind the data descriptor
  }
  for (size_t cut : cuts) EXPECT_THROW(read_torch_checkpoint(bytes.first(cut), "cut.pt"), FormatError) << cut;
}

TEST(RealCheckpoints, TruncatedSafetensorsFilesAreErrors) {
  size_t seen = 0;
  for (const char* name : {"tiny", "golf30m", "llama-small", "gpt2-small"}) {
    std::string path = shared_data(std::string(name) + "/model.safetensors");
    if (!file_exists(path)) continue;
    ++seen;
    MappedFile file(path);
    Bytes bytes = file.bytes();
    std::vector<size_t> cuts = {0, 7, 8, 9, bytes.size() - 1};
    CheckpointContents contents = read_safetensors(bytes, path);
    for (const auto& [tensor_name, tensor] : contents.tensors)
      cuts.push_back(static_cast<size_t>(tensor.bytes.data() - bytes.data()));
    for (size_t cut : cuts) EXPECT_THROW(read_safetensors(bytes.first(cut), "cut"), FormatError) << name << " " << cut;
  }
  if (seen == 0) GTEST_SKIP() << "no shared data";
}

TEST(RealCheckpoints, WritingWhatWasReadGivesTheSameTensors) {
  if (!file_exists(shared_data("tiny/final_model.pt"))) GTEST_SKIP() << "no shared data";
  Checkpoint torch = open_checkpoint(shared_data("tiny/final_model.pt"));
  ScratchFile path("rewritten");
  write_safetensors(path.path(), torch.tensors());
  Checkpoint rewritten = open_checkpoint(path.path());
  ASSERT_EQ(rewritten.tensors().size(), torch.tensors().size());
  for (const auto& [name, tensor] : torch.tensors())
    EXPECT_TRUE(as_text(rewritten.tensors().at(name).bytes) == as_text(tensor.bytes)) << name;
}

}  // namespace
}  // namespace thimble::checkpoint_test
