// torch_checkpoint_test.cpp: state dicts and configs as torch.save nests them, and damaged archives.
#include "quantizer/formats/torch_checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/quantizer/formats/torch_file_reader.h"

namespace thimble::torch_checkpoint_test {
namespace {

// {"a": ..., key: {"w": tensor}}
void nested(PickleBuilder& p, const std::vector<std::string>& keys) {
  p.op('}').text("epoch").integer(3).op('s');
  for (const std::string& key : keys) p.text(key).op('}');
  p.text("w").tensor("FloatStorage", "0", 12, 0, {12}, {1}).op('s');
  for (size_t i = 0; i < keys.size(); ++i) p.op('s');
}

TEST(TorchCheckpoint, StateDictIsFoundWhereTrainersPutIt) {
  for (const char* key :
       {"model", "state_dict", "model_state_dict", "module", "model_ema", "ema", "ema_state_dict", "weights"})
    EXPECT_TRUE(read_pickle([&](PickleBuilder& p) { nested(p, {key}); }).contents.tensors.contains("w")) << key;
  EXPECT_TRUE(read_pickle([](PickleBuilder& p) {
                nested(p, {"ema", "module", "state_dict"});
              }).contents.tensors.contains("w"));
  EXPECT_TRUE(read_pickle([](PickleBuilder& p) { nested(p, {}); }).contents.tensors.contains("w"));
}

TEST(TorchCheckpoint, TheFirstKeyOfTheListWinsOverTensorsBesideIt) {
  ReadTorchFile file = read_pickle([](PickleBuilder& p) {
    p.op('}').op('(');
    p.text("ema").op('}').text("from_ema").tensor("FloatStorage", "0", 12, 0, {1}, {1}).op('s');
    p.text("best_loss").tensor("FloatStorage", "0", 12, 1, {}, {});
    p.text("state_dict").op('}').text("from_state_dict").tensor("FloatStorage", "0", 12, 0, {1}, {1}).op('s');
    p.text("model").op('}').text("no_tensors").op('N').op('s');
    p.op('u');
  });
  EXPECT_EQ(file.contents.tensors.size(), 1u);
  EXPECT_TRUE(file.contents.tensors.contains("from_state_dict"));
}

TEST(TorchCheckpoint, OtherValuesBesideTheTensorsAreIgnored) {
  ReadTorchFile file = read_pickle([](PickleBuilder& p) {
    p.ordered_dict().op('(');
    p.text("step").integer(1).text("lr").ops(std::string_view("G?\xf0\0\0\0\0\0\0", 9)).text("none").op('N');
    p.text("list")
        .ops(
            "](K\x01K\x02"
            "e")
        .text("device")
        .global("torch", "device")
        .text("cpu")
        .ops("\x85R");
    p.text("dtype").global("torch", "bfloat16").integer(7).text("integer key");
    p.text("w").tensor("FloatStorage", "0", 12, 0, {12}, {1}).op('u');
    p.op('}').text("_metadata").ordered_dict().op('s').op('b');  // the attribute of module.state_dict()
  });
  EXPECT_EQ(file.contents.tensors.size(), 1u);
}

TEST(TorchCheckpoint, WithoutTensorsTheErrorListsTheKeys) {
  expect_torch_error("m.pt: holds no state dict with tensors: the top-level dict has the keys 'model', (not a text)",
                     [](PickleBuilder& p) { p.op('}').text("model").op('N').op('s').integer(1).op('N').op('s'); });
  expect_torch_error("the top-level dict has the keys (none)", [](PickleBuilder& p) { p.op('}'); });
  expect_torch_error("the top level is not a dict",
                     [](PickleBuilder& p) { p.tensor("FloatStorage", "0", 12, 0, {12}, {1}); });
  expect_torch_error("'k19', ...", [](PickleBuilder& p) {
    p.op('}');
    for (int i = 0; i < 30; ++i) p.text(fmt::format("k{}", i)).op('N').op('s');
  });
  std::vector<std::string> too_deep(20, "model");
  expect_torch_error("holds no state dict", [&](PickleBuilder& p) { nested(p, too_deep); });
}

TEST(TorchCheckpoint, CyclesAndSharedDictsEnd) {
  expect_torch_error("holds no state dict with tensors", [](PickleBuilder& p) {
    p.ops(std::string_view("}q\0", 3));
    for (const char* key : {"model", "state_dict", "module", "config"}) p.text(key).ops(std::string_view("h\0s", 3));
  });
}

TEST(TorchCheckpoint, TensorNamesAreUniqueTexts) {
  expect_torch_error("tensor 'w' appears twice", [](PickleBuilder& p) {
    p.op('}');
    for (int i = 0; i < 2; ++i) p.text("w").tensor("FloatStorage", "0", 12, 0, {12}, {1}).op('s');
  });
  expect_torch_error("a tensor whose name is not a text", [](PickleBuilder& p) {
    p.op('}').integer(0).tensor("FloatStorage", "0", 12, 0, {12}, {1}).op('s');
  });
}

void push_config(PickleBuilder& p, const char* key) {
  p.text(key).op('}').op('(');
  p.text("layers").integer(4).text("tied").op(0x88).text("none").op('N').text("name").text("golf-gpt");
  p.text("base").ops(std::string_view("G@\xc3\x88\0\0\0\0\0", 9));
  p.text("ve").integers({2, 3}).text("deep").op('}').text("x").ops("]").ops("s");
  p.text("dtype").global("torch", "bfloat16").integer(1).text("integer key").ops("us");
}

TEST(TorchCheckpoint, ConfigBesideTheStateDict) {
  for (const char* key : {"config", "model_config", "model_args", "args"}) {
    ReadTorchFile file = read_pickle([&](PickleBuilder& p) {
      nested(p, {"model"});
      push_config(p, key);
    });
    ASSERT_TRUE(file.contents.config) << key;
    EXPECT_EQ(canonical_json(*file.contents.config),
              R"({"base":10000.0,"deep":{"x":[]},"layers":4,"name":"golf-gpt","none":null,"tied":true,"ve":[2,3]})");
  }
  ReadTorchFile other_key = read_pickle([](PickleBuilder& p) {
    nested(p, {"model"});
    push_config(p, "other");
  });
  EXPECT_FALSE(other_key.contents.config);
  ReadTorchFile not_a_dict = read_pickle([](PickleBuilder& p) {
    nested(p, {"model"});
    p.text("config").text("some text").op('s').text("args").op('}').op('s');
  });
  EXPECT_EQ(canonical_json(*not_a_dict.contents.config), "{}");
}

TEST(TorchCheckpoint, ConfigsAreBounded) {
  auto with_config = [](const std::function<void(PickleBuilder&)>& push) {
    return [=](PickleBuilder& p) {
      nested(p, {"model"});
      p.text("config").op('}').text("x");
      push(p);
      p.ops("ss");
    };
  };
  EXPECT_EQ(canonical_json(*read_pickle(with_config([](PickleBuilder& p) { p.op('N'); })).contents.config),
            R"({"x":null})");
  expect_torch_error("m.pt: 'config': nested deeper than 64",
                     with_config([](PickleBuilder& p) { p.ops(std::string(80, ']') + std::string(79, 'a')); }));
  expect_torch_error("m.pt: 'config': nested deeper than 64",
                     with_config([](PickleBuilder& p) { p.ops(std::string_view("]q\0h\0a", 6)); }));
  // Thirty lists, each holding the one before twice: 2^30 values.
  expect_torch_error("m.pt: 'config': is larger than 1048576 B", with_config([](PickleBuilder& p) {
                       p.op(']');
                       for (int i = 0; i < 30; ++i)
                         p.ops(
                             std::string_view("q\0"
                                              "0](h\0h\0e",
                                              10));
                     }));
  expect_torch_error("'config': is larger than 1048576 B", with_config([](PickleBuilder& p) {
                       p.op(']').text(std::string(1000, 't')).ops(std::string_view("q\0a", 3)).op('(');
                       for (int i = 0; i < 1100; ++i) p.ops(std::string_view("h\0", 2));
                       p.op('e');
                     }));
  expect_torch_error("m.pt: 'config': ", with_config([](PickleBuilder& p) { p.text("\xff"); }));
}

TEST(TorchCheckpoint, ArchivePartsAreChecked) {
  PickleBuilder pickle;
  one_tensor(pickle, 0, {12}, {1});
  const ByteVector stream = pickle.stop();
  const TorchStorages storages = {{"0", counting_floats(12)}};
  auto with = [&](const std::string& name, const std::string& text) {
    std::vector<ZipPart> parts = torch_parts(stream, storages);
    std::erase_if(parts, [&](const ZipPart& part) { return part.name == name; });
    parts.push_back({name, bytes_of(text)});
    return parts;
  };
  auto expect_part_error = [](const std::string& part, const std::vector<ZipPart>& parts) {
    expect_format_error(part, [&] { read_parts(parts); });
  };
  expect_part_error("byteorder is 'big', must be 'little'", with("model/byteorder", "big"));
  expect_part_error("archive version 'x', must be 1 to 10", with("model/version", "x"));
  for (const char* bad : {"0", "11", "-1", "3.0", "", "99999999999999999999"})
    expect_part_error("must be 1 to 10", with("model/version", bad));
  EXPECT_EQ(read_parts(with("model/version", "3")).contents.tensors.size(), 1u);
  expect_part_error("is a TorchScript archive", with("model/constants.pkl", ""));
  expect_part_error("holds several data.pkl", with("other/data.pkl", ""));
  expect_part_error("without <prefix>/data.pkl", {{"data.pkl", stream}, {"a/b/data.pkl", stream}});
  expect_part_error("m.pt: 'model/data.pkl': truncated at byte 0", with("model/data.pkl", ""));
  EXPECT_EQ(read_parts({{"x/data.pkl", stream}, {"x/data/0", counting_floats(12)}}).contents.tensors.size(), 1u);
}

TEST(TorchCheckpoint, DamagedStoragesAreNamed) {
  PickleBuilder pickle;
  one_tensor(pickle, 0, {12}, {1});
  BuiltZip zip = build_zip(torch_parts(pickle.stop(), {{"0", counting_floats(12)}}));
  ByteVector file = zip.bytes;
  file[zip.local["model/version"] - 20] ^= std::byte{1};  // inside the storage, before its 16 B descriptor
  expect_format_error("m.pt: zip entry 'model/data/0': CRC-32", [&] { read_torch_checkpoint(file, "m.pt"); });
  EXPECT_EQ(read_torch_checkpoint(file, "m.pt", CrcCheck::kSkip).tensors.size(), 1u);
}

TEST(TorchCheckpoint, DamageAtEveryByteIsAnErrorOrHarmless) {
  PickleBuilder pickle;
  pickle.op('}').op('(').text("a").tensor("FloatStorage", "0", 12, 0, {4, 3}, {1, 4});
  pickle.text("b").tensor("HalfStorage", "1", 2, 0, {2}, {1}).op('u');
  const ByteVector file =
      build_zip(torch_parts(pickle.stop(), {{"0", counting_floats(12)}, {"1", bytes_of("half")}})).bytes;
  const CheckpointContents expected = read_torch_checkpoint(file, "m.pt");
  for (size_t at = 0; at < file.size(); ++at)
    for (int mask : {0x01, 0xff}) {
      ByteVector damaged = file;
      damaged[at] ^= static_cast<std::byte>(mask);
      try {
        CheckpointContents contents = read_torch_checkpoint(damaged, "m.pt");
        ASSERT_EQ(contents.tensors.size(), 2u) << at;
        for (const auto& [name, tensor] : expected.tensors)
          EXPECT_EQ(as_text(contents.tensors.at(name).bytes), as_text(tensor.bytes)) << at << " " << name;
      } catch (const FormatError&) {
      }
    }
}

TEST(TorchCheckpoint, LegacyFilesAreExplained) {
  std::string tar(512, '\0');
  tar.replace(257, 5, "ustar");
  for (const std::string& legacy :
       {std::string("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20j\xa8P\x19."), std::string("\x80\x04N."), tar})
    expect_format_error("m.pt: is a bare pickle or a file of PyTorch before 1.6, only zip files are read",
                        [&] { read_torch_checkpoint(as_bytes_of(legacy), "m.pt"); });
  EXPECT_FALSE(looks_like_legacy_torch({}));
  EXPECT_FALSE(looks_like_legacy_torch(as_bytes_of("PK\x03\x04")));
  expect_format_error("no end of a zip archive found",
                      [&] { read_torch_checkpoint(as_bytes_of("PK\x03\x04"), "m.pt"); });
}

}  // namespace
}  // namespace thimble::torch_checkpoint_test
