// checkpoint_folder_test.cpp: folders and indices of shards: what is read, and hundreds of damaged ones that are not.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "quantizer/checkpoints/model_source.h"
#include "runtime/base/file.h"
#include "tests/quantizer/checkpoints/checkpoint_folder_builder.h"
#include "tests/quantizer/formats/reader_asserts.h"
#include "tests/runtime/base/temporary_folder.h"

namespace thimble::checkpoint_folder_test {
namespace {

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kPointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 268\n";

// Seven tensors of different sizes and dtypes, each with bytes of its own.
class CheckpointFolder : public ::testing::Test {
 protected:
  CheckpointFolder() {
    const DType dtypes[] = {DType::kF32, DType::kBF16, DType::kF16};
    for (int64_t i = 0; i < 7; ++i) {
      const std::vector<float> values(static_cast<size_t>(i + 1), static_cast<float>(i) + 0.5F);
      owned_["layer." + std::to_string(i)] = {dtypes[i % 3], {1, i + 1}, from_float32(dtypes[i % 3], values)};
    }
    for (const auto& [name, tensor] : owned_) tensors_[name] = tensor.view();
  }

  std::string file(const std::string& name) const { return folder_.file(name); }
  void write(const std::string& name, std::string_view text) const { write_file_atomically(file(name), text); }
  void clear() const {
    for (const std::string& name : folder_.names()) std::filesystem::remove_all(file(name));
  }
  // A whole folder of three shards, and its index.
  Json three_shards() const {
    clear();
    const Json index = write_shards(folder_.path(), tensors_, 3);
    write_index(folder_.path(), index);
    return index;
  }
  void expect_same(const Checkpoint& opened) const {
    ASSERT_EQ(opened.tensors().size(), tensors_.size());
    for (const auto& [name, tensor] : tensors_) {
      const TensorView& found = opened.tensors().at(name);
      EXPECT_EQ(found.dtype, tensor.dtype) << name;
      EXPECT_EQ(found.shape, tensor.shape) << name;
      EXPECT_TRUE(as_text(found.bytes) == as_text(tensor.bytes)) << name;
    }
  }
  void expect_refused(const std::vector<std::string>& parts) const {
    const std::string message = format_error_of([&] { open_checkpoint(folder_.path()); });
    for (const std::string& part : parts) EXPECT_THAT(message, ::testing::HasSubstr(part));
  }

  TemporaryFolder folder_;
  std::map<std::string, Tensor> owned_;
  TensorMap tensors_;
};

TEST_F(CheckpointFolder, AnyNumberOfShardsIsOneCheckpoint) {
  for (size_t count = 1; count <= tensors_.size(); ++count) {
    SCOPED_TRACE(count);
    clear();
    write_sharded_folder(folder_.path(), tensors_, count);
    uint64_t bytes = 0;
    for (size_t i = 1; i <= count; ++i) bytes += file_size_bytes(file(shard_name(i, count)));
    for (const std::string& path : {folder_.path(), folder_.path() + "/", file(kIndex)}) {
      const Checkpoint opened = open_checkpoint(path);
      expect_same(opened);
      EXPECT_EQ(opened.path(), path);
      EXPECT_EQ(opened.format_name(), "safetensors");
      EXPECT_EQ(opened.file_bytes(), bytes);
      EXPECT_EQ(opened.files().weights.size(), count);
    }
  }
}

TEST_F(CheckpointFolder, ASingleFileIsTheFileItself) {
  write_safetensors(file("model.safetensors"), tensors_);
  const Checkpoint opened = open_checkpoint(folder_.path()), alone = open_checkpoint(file("model.safetensors"));
  expect_same(opened);
  EXPECT_EQ(opened.content_hash(), alone.content_hash());
  EXPECT_EQ(opened.file_bytes(), alone.file_bytes());
}

TEST_F(CheckpointFolder, AnIndexIsReadUnderAnyName) {
  three_shards();
  std::filesystem::rename(file(kIndex), file("index"));
  expect_same(open_checkpoint(file("index")));
}

// Stores of downloaded models keep the files elsewhere.
TEST_F(CheckpointFolder, LinksAreFollowed) {
  three_shards();
  const TemporaryFolder blobs;
  for (const std::string& name : folder_.names()) {
    std::filesystem::rename(file(name), blobs.file(name));
    std::filesystem::create_symlink(blobs.file(name), file(name));
  }
  expect_same(open_checkpoint(folder_.path()));
}

TEST_F(CheckpointFolder, OtherFilesAreIgnored) {
  three_shards();
  write("generation_config.json", "{broken");
  write("README.md", "");
  write("pytorch_model.bin", "nothing");
  write("model-00004-of-00004.safetensors", kPointer);
  expect_same(open_checkpoint(folder_.path()));
}

TEST_F(CheckpointFolder, ViewsSurviveAMove) {
  three_shards();
  Checkpoint opened = open_checkpoint(folder_.path());
  const Checkpoint moved = std::move(opened);
  expect_same(moved);
}

TEST_F(CheckpointFolder, TheHashCoversEveryFile) {
  Json index = three_shards();
  const uint64_t whole = open_checkpoint(folder_.path()).content_hash();
  EXPECT_EQ(open_checkpoint(file(kIndex)).content_hash(), whole);
  for (size_t i = 1; i <= 3; ++i) {
    three_shards();
    std::string shard(as_text(MappedFile(file(shard_name(i, 3))).bytes()));
    shard.back() = static_cast<char>(shard.back() ^ 1);  // a weight
    write(shard_name(i, 3), shard);
    EXPECT_NE(open_checkpoint(folder_.path()).content_hash(), whole) << i;
  }
  three_shards();
  EXPECT_EQ(open_checkpoint(folder_.path()).content_hash(), whole);
  index["other"] = 1;
  write_index(folder_.path(), index);
  EXPECT_NE(open_checkpoint(folder_.path()).content_hash(), whole);
}

TEST_F(CheckpointFolder, ConfigAndTokenizerAreThoseOfTheFolder) {
  three_shards();
  write("config.json", R"({"model_type":"other"})");
  EXPECT_EQ(find_checkpoint_files(folder_.path()).tokenizer_path(), "");
  write("spiece.model", "x");
  EXPECT_EQ(find_checkpoint_files(file(kIndex)).tokenizer_path(), file("spiece.model"));
  write("tokenizer.model", "x");
  EXPECT_EQ(find_checkpoint_files(folder_.path()).tokenizer_path(), file("tokenizer.model"));
  const OpenedCheckpoint opened(folder_.path(), "");
  EXPECT_EQ(opened.config_path(), file("config.json"));
  EXPECT_EQ(opened.config_json().at("model_type"), "other");
  EXPECT_EQ(OpenedCheckpoint(file(kIndex), "").config_path(), file("config.json"));
  // Index, three shards, config, tokenizer.
  EXPECT_EQ(files_of_folder(folder_.path()).size(), 6u);
  write("tokenizer_config.json", "{}");
  EXPECT_EQ(files_of_folder(folder_.path()).size(), 7u);
  EXPECT_TRUE(files_of_folder(file(shard_name(1, 3))).empty());
  EXPECT_TRUE(files_of_folder(file("missing")).empty());
}

TEST_F(CheckpointFolder, WithoutTensorsItSaysWhatIsThere) {
  expect_refused({"is a folder without 'model.safetensors' and without 'model.safetensors.index.json'"});
  for (const char* name : {"b.gguf", "a.bin", "d.pth", "c.pt"}) write(name, "x");
  expect_refused({"it has 'a.bin', 'b.gguf', 'c.pt' and 1 more"});
  EXPECT_THROW(open_checkpoint(file("missing")), IoError);
  EXPECT_THROW(open_checkpoint(file("missing.index.json")), IoError);
}

TEST_F(CheckpointFolder, TwoCheckpointsInOneAreRefused) {
  three_shards();
  write_safetensors(file("model.safetensors"), tensors_);
  expect_refused({"which may differ"});
  expect_same(open_checkpoint(file("model.safetensors")));
  expect_same(open_checkpoint(file(kIndex)));
  // An index of that one file says nothing else.
  clear();
  Json index = {{"weight_map", Json::object()}};
  for (const auto& [name, tensor] : tensors_) index["weight_map"][name] = "model.safetensors";
  write_safetensors(file("model.safetensors"), tensors_);
  write_index(folder_.path(), index);
  expect_same(open_checkpoint(folder_.path()));
}

TEST_F(CheckpointFolder, AMissingShardIsCounted) {
  for (size_t i = 1; i <= 3; ++i) {
    three_shards();
    std::filesystem::remove(file(shard_name(i, 3)));
    expect_refused({kIndex, "1 shard of 3 missing", "'" + shard_name(i, 3) + "'"});
  }
  std::filesystem::remove(file(shard_name(1, 3)));
  expect_refused({"2 shards of 3 missing", "'" + shard_name(1, 3) + "'"});
}

TEST_F(CheckpointFolder, AnUndownloadedFileIsNamed) {
  for (size_t i = 1; i <= 3; ++i) {
    three_shards();
    write(shard_name(i, 3), kPointer);
    expect_refused({shard_name(i, 3), "is a Git LFS pointer", "git lfs pull"});
  }
  three_shards();
  write(kIndex, kPointer);
  expect_refused({kIndex, "is a Git LFS pointer, not the index of a checkpoint", "git lfs pull"});
  clear();
  write("model.safetensors", kPointer);
  expect_refused({"model.safetensors", "is a Git LFS pointer", "git lfs pull"});
}

TEST_F(CheckpointFolder, OneShardAloneIsRefused) {
  three_shards();
  expect_format_error("is part 2 of 3 of a checkpoint", [&] { open_checkpoint(file(shard_name(2, 3))); });
}

TEST_F(CheckpointFolder, ShardsOfOtherKindsAreRefused) {
  for (const auto& [text, part] : {std::pair<std::string, std::string>{"", "is empty"},
                                   {"GGUF\x03", "is a GGUF file"},
                                   {"{}", "is a JSON text"},
                                   {"words and words", "is not a safetensors file"},
                                   {std::string("PK\x03\x04", 4), "is a zip archive"},
                                   {"\x1F\x8B\x08\x01", "is a gzip file"}}) {
    three_shards();
    write(shard_name(2, 3), text);
    expect_refused({shard_name(2, 3), part});
  }
  three_shards();
  std::filesystem::remove(file(shard_name(2, 3)));
  std::filesystem::create_directory(file(shard_name(2, 3)));
  EXPECT_THROW(open_checkpoint(folder_.path()), IoError);
}

// Every way to move, double, rename or leave out one of the seven tensors, in the index and in the shards.
TEST_F(CheckpointFolder, IndexAndShardsMustAgree) {
  for (const auto& [name, tensor] : tensors_) {
    SCOPED_TRACE(name);
    const std::string quoted = "tensor '" + name + "'";
    Json index = three_shards();
    const std::string home = index["weight_map"][name];
    for (size_t i = 1; i <= 3; ++i) {
      if (shard_name(i, 3) == home) continue;
      three_shards();
      Json moved = index;
      moved["weight_map"][name] = shard_name(i, 3);
      write_index(folder_.path(), moved);
      expect_refused({home, quoted + " lies here", "'" + shard_name(i, 3) + "'"});
      // A second copy in another shard.
      three_shards();
      MappedFile file_of_shard(file(shard_name(i, 3)));
      TensorMap held = read_safetensors(file_of_shard.bytes(), "shard").tensors;
      held[name] = tensor;
      write_safetensors(file(shard_name(i, 3)), held);
      expect_refused({shard_name(i, 3), quoted + " lies here", "'" + home + "'"});
    }
    three_shards();
    Json fewer = index;
    fewer["weight_map"].erase(name);
    write_index(folder_.path(), fewer);
    expect_refused({quoted + " lies here", "it is nowhere"});
    Json more = index;
    more["weight_map"][name + ".bias"] = home;
    write_index(folder_.path(), more);
    expect_refused({home, "tensor '" + name + ".bias' is missing"});
    three_shards();
    MappedFile of_home(file(home));
    TensorMap held = read_safetensors(of_home.bytes(), "shard").tensors;
    held.erase(name);
    write_safetensors(file(home), held);
    expect_refused({home, quoted + " is missing"});
  }
}

TEST_F(CheckpointFolder, NamesThatLeaveTheFolderAreRefused) {
  const Json index = three_shards();
  for (const std::string& name : std::vector<std::string>{
           "../model.safetensors", "/etc/model.safetensors", "a/b.safetensors", "..\\m.safetensors", "", ".", "..",
           ".safetensors", "model.bin", "model.safetensors/", "model.safetensors ", "~/model.safetensors",
           std::string("m\0.safetensors", 14), "file:///model.safetensors", "./model-00001-of-00003.safetensors",
           std::string(300, 'm') + ".safetensors"}) {
    Json hostile = index;
    hostile["weight_map"]["layer.3"] = name;
    write_index(folder_.path(), hostile);
    expect_refused({kIndex, "tensor 'layer.3': lies in", "allowed are names of .safetensors files in the folder"});
  }
}

TEST_F(CheckpointFolder, IndicesOfAnotherFormAreRefused) {
  three_shards();
  for (const auto& [text, part] : {
           std::pair<std::string, std::string>{"{}", "no 'weight_map'"},
           {R"({"weights":{}})", "no 'weight_map'"},
           {R"({"weight_map":{}})", "must be a JSON object with a shard for each tensor"},
           {R"({"weight_map":[]})", "must be a JSON object"},
           {R"({"weight_map":null})", "must be a JSON object"},
           {R"({"weight_map":"model.safetensors"})", "must be a JSON object"},
           {R"({"weight_map":{"a":1}})", "tensor 'a': its shard is not a text"},
           {R"({"weight_map":{"a":["m.safetensors"]}})", "its shard is not a text"},
           {R"({"weight_map":{"a":"m.safetensors","a":"n.safetensors"}})", "JSON key 'a' appears twice"},
           {R"({"weight_map":{"a":"model-00001-of-00002.safetensors"}})", "names 1 shard, the name of"},
           {R"({"weight_map":{"a":"m.safetensors"},"weight_map":{"a":"n.safetensors"}})", "appears twice"},
           {"[]", "not the index of a checkpoint"},
           {"", "is empty, not the index of a checkpoint"},
           {"   ", "is not the index of a checkpoint"},
           {"<!doctype html><html>", "is an HTML page"},
           {"GGUF", "is a GGUF file"},
           {"{\"weight_map\":{\"\xFF\":\"m.safetensors\"}}", kIndex},
           {"{\"weight_map\":" + std::string(1000, '{'), kIndex},
           {"{\"a\":" + std::string(100, '[') + std::string(100, ']') + ",\"weight_map\":{}}", kIndex},
       }) {
    write(kIndex, text);
    expect_refused({kIndex, part});
  }
}

TEST_F(CheckpointFolder, TooManyShardsAreRefused) {
  Json index = {{"weight_map", Json::object()}};
  for (size_t i = 0; i <= kMostShards; ++i)
    index["weight_map"]["t" + std::to_string(i)] = "s" + std::to_string(i) + ".safetensors";
  expect_format_error("more than 4096 shards", [&] { parse_checkpoint_index(as_bytes_of(index.dump()), "index"); });
  index["weight_map"].erase("t0");
  EXPECT_EQ(parse_checkpoint_index(as_bytes_of(index.dump()), "index").shards.size(), kMostShards);
  const std::string huge = "{" + std::string(kMaxIndexBytes, ' ');
  expect_format_error("an index may have at most", [&] { parse_checkpoint_index(as_bytes_of(huge), "index"); });
}

// Each file cut at every length, or with a byte of its header changed: an error, or, where the change is harmless, the
// same weights elsewhere.
TEST_F(CheckpointFolder, EveryCutIsAnError) {
  size_t cuts = 0;
  for (const std::string& name : {std::string(kIndex), shard_name(1, 3), shard_name(2, 3), shard_name(3, 3)}) {
    three_shards();
    const std::string whole(as_text(MappedFile(file(name)).bytes()));
    for (size_t length = 0; length < whole.size(); length += 1 + whole.size() / 97, ++cuts) {
      write(name, whole.substr(0, length));
      EXPECT_THAT(format_error_of([&] { open_checkpoint(folder_.path()); }), ::testing::HasSubstr(name)) << length;
    }
  }
  EXPECT_GT(cuts, 300u);
}

TEST_F(CheckpointFolder, EveryChangedByteOfAHeaderIsAnErrorOrLeavesTensorsThatFit) {
  size_t refused = 0;
  for (const std::string& name : {std::string(kIndex), shard_name(1, 3), shard_name(3, 3)}) {
    three_shards();
    const std::string whole(as_text(MappedFile(file(name)).bytes()));
    for (size_t at = 0; at < whole.size(); at += 2) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x15);
      write(name, damaged);
      try {
        const Checkpoint opened = open_checkpoint(folder_.path());
        EXPECT_EQ(opened.tensors().size(), tensors_.size()) << name << " " << at;
        for (const auto& [tensor_name, tensor] : opened.tensors())
          EXPECT_EQ(tensor.bytes.size(), tensor_bytes_or_throw(tensor.dtype, tensor.shape, tensor_name));
      } catch (const FormatError& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr(folder_.path()));
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 200u);
}

TEST_F(CheckpointFolder, QuantizedCheckpointsAreRefusedByName) {
  three_shards();
  for (const auto& [config, part] :
       {std::pair{R"({"quantization_config":{"quant_method":"gptq","bits":4}})", "gptq"},
        {R"({"quantization_config":{"quant_method":"fp8"}})", "fp8"},
        {R"({"quantization_config":{"quant_method":7}})", "quant_method '7'"},
        {R"({"quantization_config":true})", "config key 'quantization_config' is there"},
        {R"({"compression_config":{"format":"pack-quantized"}})", "config key 'compression_config' is there"}}) {
    write("config.json", config);
    EXPECT_THAT(format_error_of([&] { OpenedCheckpoint(folder_.path(), ""); }),
                ::testing::AllOf(::testing::HasSubstr("config.json"), ::testing::HasSubstr(part),
                                 ::testing::HasSubstr("give the one that it was made from")));
  }
  write("config.json", R"({"quantization_config":null})");
  EXPECT_NO_THROW(OpenedCheckpoint(folder_.path(), ""));
  std::filesystem::remove(file("config.json"));
  const Tensor codes = {DType::kU8, {2, 2}, ByteVector(4)};
  for (const char* name : {"q_proj.qweight", "q_proj.weight_packed", "q_proj.weight.absmax",
                           "q_proj.weight.quant_state.bitsandbytes__nf4", "q_proj.weight_scale_inv"}) {
    TensorMap packed = tensors_;
    packed[name] = codes.view();
    write_sharded_folder(folder_.path(), packed, 3);
    expect_format_error(std::string("tensor '") + name + "' of dtype U8 is of packed codes",
                        [&] { OpenedCheckpoint(folder_.path(), ""); });
  }
}

TEST_F(CheckpointFolder, EightBitFloatsAreRefusedByName) {
  for (const char* dtype : {"F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3"}) {
    three_shards();
    std::string header = fmt::format(R"({{"layer.1":{{"dtype":"{}","shape":[2],"data_offsets":[0,2]}}}})", dtype);
    ByteVector bytes;
    append_little_endian(bytes, uint64_t{header.size()});
    append_bytes(bytes, as_bytes_of(header + "xx"));
    write_file_atomically(file(shard_name(2, 3)), bytes);
    expect_refused({shard_name(2, 3), "tensor 'layer.1'", "dtype '" + std::string(dtype) + "'", "quantized already"});
  }
}

}  // namespace
}  // namespace thimble::checkpoint_folder_test
