// torch_checkpoint_test.cpp: state dicts as torch.save nests them, views, and every way a tensor can be wrong.
#include "quantizer/torch_checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "quantizer/torch_tensors.h"
#include "runtime/file.h"
#include "tests/quantizer/reader_asserts.h"
#include "tests/quantizer/torch_file_builder.h"

namespace thimble {
namespace {

using Storages = std::map<std::string, ByteVector>;

// 0, 1, 2, ... in float32
ByteVector counting_floats(size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0f);
  return from_float32(DType::kF32, values);
}

// A file and what was read from it; the views point into the file.
struct Read {
  ByteVector file;
  TorchContents contents;
  const TensorView& at(const std::string& name) const { return contents.tensors.at(name); }
  std::vector<float> floats(const std::string& name) const { return to_float32(at(name)); }
};

Read read_parts(const std::vector<ZipPart>& parts) {
  Read result;
  result.file = build_zip(parts).bytes;
  result.contents = read_torch_checkpoint(result.file, "m.pt");
  return result;
}

// Reads a file whose pickle is built by `build` after PROTO 2; storage "0" holds 12 floats.
Read read(const std::function<void(PickleBuilder&)>& build, const Storages& storages = {{"0", counting_floats(12)}}) {
  PickleBuilder pickle;
  build(pickle);
  return read_parts(torch_parts(pickle.stop(), storages));
}

void expect_error(const std::string& part, const std::function<void(PickleBuilder&)>& build,
                  const Storages& storages = {{"0", counting_floats(12)}}) {
  expect_format_error(part, [&] { read(build, storages); });
}

// {"w": _rebuild_tensor_v2(FloatStorage "0" of 12, offset, shape, strides)}
void one_tensor(PickleBuilder& pickle, int64_t offset, const Shape& shape, const Shape& strides) {
  pickle.op('}').text("w").tensor("FloatStorage", "0", 12, offset, shape, strides).op('s');
}

// The same around whatever `push_value` pushes.
std::function<void(PickleBuilder&)> named(const std::function<void(PickleBuilder&)>& push_value) {
  return [=](PickleBuilder& pickle) {
    pickle.op('}').text("w");
    push_value(pickle);
    pickle.op('s');
  };
}

TEST(TorchCheckpoint, ContiguousTensorsAreViewsOfTheFile) {
  Read file = read([](PickleBuilder& p) { one_tensor(p, 0, {3, 4}, {4, 1}); });
  EXPECT_EQ(file.at("w").dtype, DType::kF32);
  EXPECT_EQ(file.at("w").shape, (Shape{3, 4}));
  EXPECT_EQ(as_text(file.at("w").bytes), as_text(counting_floats(12)));
  EXPECT_GE(file.at("w").bytes.data(), file.file.data());
  EXPECT_LT(file.at("w").bytes.data(), file.file.data() + file.file.size());
  EXPECT_TRUE(file.contents.gathered.empty());
  EXPECT_FALSE(file.contents.config);
}

TEST(TorchCheckpoint, EveryStorageClass) {
  for (auto [type, dtype] : {std::pair{"DoubleStorage", DType::kF64},
                             {"FloatStorage", DType::kF32},
                             {"HalfStorage", DType::kF16},
                             {"BFloat16Storage", DType::kBF16},
                             {"LongStorage", DType::kI64},
                             {"IntStorage", DType::kI32},
                             {"ShortStorage", DType::kI16},
                             {"CharStorage", DType::kI8},
                             {"ByteStorage", DType::kU8},
                             {"BoolStorage", DType::kBool}}) {
    ByteVector data = bytes_of(std::string(3 * dtype_bytes(dtype), '\x01'));
    Read file = read(named([&](PickleBuilder& p) { p.tensor(type, "k", 3, 1, {2}, {1}); }), {{"k", data}});
    EXPECT_EQ(file.at("w").dtype, dtype) << type;
    EXPECT_EQ(file.at("w").bytes.size(), 2 * dtype_bytes(dtype)) << type;
  }
}

TEST(TorchCheckpoint, UntypedStorageTakesItsDtypeFromTheTensor) {
  auto rebuild_v3 = [](const char* dtype_module, const char* dtype, int64_t offset = 1) {
    return named([=](PickleBuilder& p) {
      p.global("torch._utils", "_rebuild_tensor_v3").op('(').storage("UntypedStorage", "0", 8);
      p.integer(offset).integers({3}).integers({1}).op(0x89).ordered_dict().global(dtype_module, dtype).ops("tR");
    });
  };
  Storages storages = {{"0", bytes_of("\x01\x02\x03\x04\x05\x06\x07\x08")}};
  Read file = read(rebuild_v3("torch", "uint16"), storages);
  EXPECT_EQ(file.at("w").dtype, DType::kU16);
  EXPECT_EQ(as_text(file.at("w").bytes), "\x03\x04\x05\x06\x07\x08");
  expect_error("shape [3], strides [1] and offset 2 reach 5 elements into a storage of 4",
               rebuild_v3("torch", "uint16", 2), storages);
  expect_error("tensor 'w': has no dtype that we know", rebuild_v3("torch", "FloatStorage"), storages);
  expect_error("global 'float8_e4m3fn' of module 'torch' refused", rebuild_v3("torch", "float8_e4m3fn"), storages);
  expect_error("tensor 'w': has an untyped storage and no dtype",
               named([](PickleBuilder& p) { p.tensor("UntypedStorage", "0", 8, 0, {8}, {1}); }), storages);
}

TEST(TorchCheckpoint, ParametersAreTheirTensors) {
  auto wrapped = [](const char* module, const char* name) {
    return named([=](PickleBuilder& p) {
      p.global(module, name).op('(').tensor("FloatStorage", "0", 12, 0, {12}, {1}).op(0x88).ordered_dict().ops("tR");
    });
  };
  EXPECT_EQ(read(wrapped("torch._utils", "_rebuild_parameter")).floats("w").size(), 12u);
  EXPECT_EQ(read(wrapped("torch._utils", "_rebuild_parameter_with_state")).floats("w").size(), 12u);
  EXPECT_EQ(read(wrapped("torch.nn.parameter", "Parameter")).floats("w").size(), 12u);
  std::string part = "tensor 'w': is a parameter around something that is not a tensor";
  expect_error(part, named([](PickleBuilder& p) { p.global("torch.nn.parameter", "Parameter").ops("N\x85R"); }));
  expect_error(part, named([](PickleBuilder& p) {
                 p.global("torch.nn.parameter", "Parameter").global("torch.nn.parameter", "Parameter");
                 p.ops("N\x85R\x85R");
               }));
  expect_error("Parameter has 0 arguments, at least 1 expected",
               named([](PickleBuilder& p) { p.global("torch.nn.parameter", "Parameter").ops(")R"); }));
}

TEST(TorchCheckpoint, ShapesMayBeTorchSize) {
  Read file = read(named([](PickleBuilder& p) {
    p.global("torch._utils", "_rebuild_tensor").op('(').storage("FloatStorage", "0", 12).integer(0);
    p.global("torch", "Size").integers({3, 4}).ops("\x85R").integers({4, 1}).ops("tR");
  }));
  EXPECT_EQ(file.at("w").shape, (Shape{3, 4}));
}

TEST(TorchCheckpoint, SharedStoragesAndOffsets) {
  Read file = read([](PickleBuilder& p) {
    p.op('}').op('(').text("a").tensor("FloatStorage", "0", 12, 0, {12}, {1});
    p.text("b").tensor("FloatStorage", "0", 12, 5, {2, 3}, {3, 1}).op('u');
  });
  EXPECT_EQ(file.floats("b"), (std::vector<float>{5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(file.at("b").bytes.data(), file.at("a").bytes.data() + 5 * sizeof(float));
}

TEST(TorchCheckpoint, ScalarsEmptyTensorsAndDimensionsOfOne) {
  EXPECT_EQ(read([](PickleBuilder& p) { one_tensor(p, 7, {}, {}); }).floats("w"), std::vector<float>{7});
  EXPECT_EQ(read([](PickleBuilder& p) { one_tensor(p, 0, {0, 4}, {4, 1}); }).at("w").shape, (Shape{0, 4}));
  Read file = read([](PickleBuilder& p) {
    one_tensor(p, 2, {1, 3, 1}, {std::numeric_limits<int64_t>::max(), 1, 999});
  });
  EXPECT_EQ(file.floats("w"), (std::vector<float>{2, 3, 4}));
  EXPECT_TRUE(file.contents.gathered.empty());
  Read no_storage = read(named([](PickleBuilder& p) { p.tensor("FloatStorage", "e", 0, 0, {0}, {1}); }), {{"e", {}}});
  EXPECT_TRUE(no_storage.at("w").bytes.empty());
}

TEST(TorchCheckpoint, ViewsThatAreNotContiguousAreGathered) {
  Read transposed = read([](PickleBuilder& p) { one_tensor(p, 0, {4, 3}, {1, 4}); });
  EXPECT_EQ(transposed.floats("w"), (std::vector<float>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
  ASSERT_EQ(transposed.contents.gathered.size(), 1u);
  Read columns = read([](PickleBuilder& p) { one_tensor(p, 1, {3, 2}, {4, 2}); });
  EXPECT_EQ(columns.floats("w"), (std::vector<float>{1, 3, 5, 7, 9, 11}));
  Read permuted = read([](PickleBuilder& p) { one_tensor(p, 0, {2, 1, 2, 3}, {1, 1000, 6, 2}); });
  EXPECT_EQ(permuted.floats("w"), (std::vector<float>{0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11}));
  Read expanded = read([](PickleBuilder& p) { one_tensor(p, 3, {2, 3}, {1, 0}); });
  EXPECT_EQ(expanded.floats("w"), (std::vector<float>{3, 3, 3, 4, 4, 4}));
}

TEST(TorchCheckpoint, GatheredTensorsTogetherAreBoundedByTheFile) {
  expect_error("tensor 'w': shape [1000000, 1000000] with strides [0, 0] needs 4000000000000 B in memory",
               [](PickleBuilder& p) {
                 one_tensor(p, 0, {1000000, 1000000}, {0, 0});
               });
  expect_error("overflows 64 bits", [](PickleBuilder& p) {
    one_tensor(p, 0, {int64_t{1} << 32, int64_t{1} << 31}, {0, 0});
  });
  std::string message = format_error_of([] {
    read(
        [](PickleBuilder& p) {
          p.op('}');
          for (int i = 0; i < 200; ++i)
            p.text(fmt::format("w{}", i)).tensor("FloatStorage", "0", 1024, 0, {32, 32}, {1, 32}).op('s');
        },
        {{"0", counting_floats(1024)}});
  });
  EXPECT_THAT(message, testing::HasSubstr("B in memory"));
}

TEST(TorchCheckpoint, TensorsStayInsideTheirStorage) {
  auto expect_reach = [](int64_t offset, const Shape& shape, const Shape& strides) {
    expect_error("tensor 'w': shape", [&](PickleBuilder& p) { one_tensor(p, offset, shape, strides); });
  };
  expect_reach(0, {13}, {1});
  expect_reach(1, {12}, {1});
  expect_reach(12, {}, {});
  expect_reach(0, {3, 4}, {5, 1});
  expect_reach(0, {2}, {12});
  auto expect_overflow = [](int64_t offset, const Shape& shape, const Shape& strides) {
    expect_error("overflows 64 bits", [&](PickleBuilder& p) { one_tensor(p, offset, shape, strides); });
  };
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  expect_overflow(0, {3, 3}, {kHuge, kHuge});
  expect_overflow(0, {kHuge, kHuge}, {0, 0});
  expect_overflow(0, {4}, {kHuge});
}

TEST(TorchCheckpoint, SizesAreNonNegativeIntegersInTuples) {
  expect_error("its storage offset is not an integer", [](PickleBuilder& p) { one_tensor(p, -1, {1}, {1}); });
  expect_error("its shape is not an integer", [](PickleBuilder& p) { one_tensor(p, 0, {-1}, {1}); });
  expect_error("its strides is not an integer", [](PickleBuilder& p) { one_tensor(p, 0, {1}, {-1}); });
  expect_error("shape [2, 2] and strides [1] differ in length", [](PickleBuilder& p) {
    one_tensor(p, 0, {2, 2}, {1});
  });
  Shape deep(kMaxTorchRank + 1, 1);
  expect_error("its shape is not a tuple of at most 32", [&](PickleBuilder& p) { one_tensor(p, 0, deep, deep); });
  expect_error("its shape is not a tuple", named([](PickleBuilder& p) {
                 p.global("torch._utils", "_rebuild_tensor").op('(').storage("FloatStorage", "0", 12);
                 p.integer(0).ops("]").integers({1}).ops("tR");
               }));
  expect_error("_rebuild_tensor has 3 arguments, at least 4 expected", named([](PickleBuilder& p) {
                 p.global("torch._utils", "_rebuild_tensor").op('(').storage("FloatStorage", "0", 12);
                 p.integer(0).integers({1}).ops("tR");
               }));
}

TEST(TorchCheckpoint, TensorMetadataMustBeEmpty) {
  auto with_metadata = [](const char* metadata) {
    return named([=](PickleBuilder& p) {
      p.global("torch._utils", "_rebuild_tensor_v2").op('(').storage("FloatStorage", "0", 12);
      p.integer(0).integers({2}).integers({1}).op(0x89).ordered_dict().ops(metadata).ops("tR");
    });
  };
  EXPECT_EQ(read(with_metadata("N")).floats("w").size(), 2u);
  EXPECT_EQ(read(with_metadata("}")).floats("w").size(), 2u);
  expect_error("tensor 'w': has metadata", with_metadata("}U\x03neg\x88s"));
  expect_error("tensor 'w': has metadata", with_metadata("K\x01"));
}

TEST(TorchCheckpoint, StorageReferencesAreChecked) {
  auto with_storage = [](const std::function<void(PickleBuilder&)>& push_storage) {
    return named([=](PickleBuilder& p) { p.tensor(push_storage, 0, {1}, {1}); });
  };
  expect_error("its storage is not a persistent id", with_storage([](PickleBuilder& p) { p.op('N'); }));
  expect_error("its storage id is not a tuple of 5", with_storage([](PickleBuilder& p) { p.ops("NQ"); }));
  expect_error("its storage id is not a tuple of 5", with_storage([](PickleBuilder& p) { p.ops(")Q"); }));
  auto id = [&](const char* tag, const char* type, const std::string& key, int64_t count) {
    return with_storage([=](PickleBuilder& p) {
      p.op('(').text(tag).global("torch", type).text(key).text("cpu").integer(count).ops("tQ");
    });
  };
  EXPECT_EQ(read(id("storage", "FloatStorage", "0", 12)).floats("w").size(), 1u);
  expect_error("does not start with 'storage'", id("module", "FloatStorage", "0", 12));
  expect_error("names no storage class", id("storage", "float32", "0", 12));
  expect_error("global 'ComplexFloatStorage' of module 'torch' refused", id("storage", "ComplexFloatStorage", "0", 12));
  expect_error("its storage key is not a text of at most 64 B", id("storage", "FloatStorage", std::string(65, '0'), 1));
  expect_error("its storage size is not an integer", id("storage", "FloatStorage", "0", -1));
  expect_error("its storage needs 44 B, zip entry 'model/data/0' holds 48 B", id("storage", "FloatStorage", "0", 11));
  expect_error("overflows 64 bits", id("storage", "FloatStorage", "0", std::numeric_limits<int64_t>::max()));
  expect_error("zip entry 'model/data/1' is missing", id("storage", "FloatStorage", "1", 12));
  expect_error("names no storage class", with_storage([](PickleBuilder& p) {
                 p.op('(').text("storage").text("FloatStorage").text("0").text("cpu").integer(12).ops("tQ");
               }));
  expect_error("its storage key is not a text", with_storage([](PickleBuilder& p) {
                 p.op('(').text("storage").global("torch", "FloatStorage").integer(0).text("cpu").integer(12).ops("tQ");
               }));
}

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
    EXPECT_TRUE(read([&](PickleBuilder& p) { nested(p, {key}); }).contents.tensors.contains("w")) << key;
  EXPECT_TRUE(read([](PickleBuilder& p) {
                nested(p, {"ema", "module", "state_dict"});
              }).contents.tensors.contains("w"));
  EXPECT_TRUE(read([](PickleBuilder& p) { nested(p, {}); }).contents.tensors.contains("w"));
}

TEST(TorchCheckpoint, TheFirstKeyOfTheListWinsOverTensorsBesideIt) {
  Read file = read([](PickleBuilder& p) {
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
  Read file = read([](PickleBuilder& p) {
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
  expect_error("m.pt: holds no state dict with tensors: the top-level dict has the keys 'model', (not a text)",
               [](PickleBuilder& p) { p.op('}').text("model").op('N').op('s').integer(1).op('N').op('s'); });
  expect_error("the top-level dict has the keys (none)", [](PickleBuilder& p) { p.op('}'); });
  expect_error("the top level is not a dict",
               [](PickleBuilder& p) { p.tensor("FloatStorage", "0", 12, 0, {12}, {1}); });
  expect_error("'k19', ...", [](PickleBuilder& p) {
    p.op('}');
    for (int i = 0; i < 30; ++i) p.text(fmt::format("k{}", i)).op('N').op('s');
  });
  std::vector<std::string> too_deep(20, "model");
  expect_error("holds no state dict", [&](PickleBuilder& p) { nested(p, too_deep); });
}

TEST(TorchCheckpoint, CyclesAndSharedDictsEnd) {
  expect_error("holds no state dict with tensors", [](PickleBuilder& p) {
    p.ops(std::string_view("}q\0", 3));
    for (const char* key : {"model", "state_dict", "module", "config"}) p.text(key).ops(std::string_view("h\0s", 3));
  });
}

TEST(TorchCheckpoint, TensorNamesAreUniqueTexts) {
  expect_error("tensor 'w' appears twice", [](PickleBuilder& p) {
    p.op('}');
    for (int i = 0; i < 2; ++i) p.text("w").tensor("FloatStorage", "0", 12, 0, {12}, {1}).op('s');
  });
  expect_error("a tensor whose name is not a text",
               [](PickleBuilder& p) { p.op('}').integer(0).tensor("FloatStorage", "0", 12, 0, {12}, {1}).op('s'); });
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
    Read file = read([&](PickleBuilder& p) {
      nested(p, {"model"});
      push_config(p, key);
    });
    ASSERT_TRUE(file.contents.config) << key;
    EXPECT_EQ(canonical_json(*file.contents.config),
              R"({"base":10000.0,"deep":{"x":[]},"layers":4,"name":"golf-gpt","none":null,"tied":true,"ve":[2,3]})");
  }
  Read other_key = read([](PickleBuilder& p) {
    nested(p, {"model"});
    push_config(p, "other");
  });
  EXPECT_FALSE(other_key.contents.config);
  Read not_a_dict = read([](PickleBuilder& p) {
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
  EXPECT_EQ(canonical_json(*read(with_config([](PickleBuilder& p) { p.op('N'); })).contents.config), R"({"x":null})");
  expect_error("m.pt: 'config': nested deeper than 64",
               with_config([](PickleBuilder& p) { p.ops(std::string(80, ']') + std::string(79, 'a')); }));
  expect_error("m.pt: 'config': nested deeper than 64",
               with_config([](PickleBuilder& p) { p.ops(std::string_view("]q\0h\0a", 6)); }));
  // Thirty lists, each holding the one before twice: 2^30 values.
  expect_error("m.pt: 'config': is larger than 1048576 B", with_config([](PickleBuilder& p) {
                 p.op(']');
                 for (int i = 0; i < 30; ++i)
                   p.ops(
                       std::string_view("q\0"
                                        "0](h\0h\0e",
                                        10));
               }));
  expect_error("'config': is larger than 1048576 B", with_config([](PickleBuilder& p) {
                 p.op(']').text(std::string(1000, 't')).ops(std::string_view("q\0a", 3)).op('(');
                 for (int i = 0; i < 1100; ++i) p.ops(std::string_view("h\0", 2));
                 p.op('e');
               }));
  expect_error("m.pt: 'config': ", with_config([](PickleBuilder& p) { p.text("\xff"); }));
}

TEST(TorchCheckpoint, ArchivePartsAreChecked) {
  PickleBuilder pickle;
  one_tensor(pickle, 0, {12}, {1});
  const ByteVector stream = pickle.stop();
  const Storages storages = {{"0", counting_floats(12)}};
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
  const TorchContents expected = read_torch_checkpoint(file, "m.pt");
  for (size_t at = 0; at < file.size(); ++at)
    for (int mask : {0x01, 0xff}) {
      ByteVector damaged = file;
      damaged[at] ^= static_cast<std::byte>(mask);
      try {
        TorchContents contents = read_torch_checkpoint(damaged, "m.pt");
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
}  // namespace thimble
