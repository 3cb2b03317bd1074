// torch_tensors_test.cpp: tensors of a torch file: storages, views, parameters, and every way one can be wrong.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/quantizer/formats/torch_file_reader.h"

namespace thimble::torch_tensors_test {
namespace {

TEST(TorchTensors, ContiguousTensorsAreViewsOfTheFile) {
  ReadTorchFile file = read_pickle([](PickleBuilder& p) { one_tensor(p, 0, {3, 4}, {4, 1}); });
  EXPECT_EQ(file.at("w").dtype, DType::kF32);
  EXPECT_EQ(file.at("w").shape, (Shape{3, 4}));
  EXPECT_EQ(as_text(file.at("w").bytes), as_text(counting_floats(12)));
  EXPECT_GE(file.at("w").bytes.data(), file.file.data());
  EXPECT_LT(file.at("w").bytes.data(), file.file.data() + file.file.size());
  EXPECT_TRUE(file.contents.gathered.empty());
  EXPECT_FALSE(file.contents.config);
}

TEST(TorchTensors, EveryStorageClass) {
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
    ReadTorchFile file =
        read_pickle(named([type = type](PickleBuilder& p) { p.tensor(type, "k", 3, 1, {2}, {1}); }), {{"k", data}});
    EXPECT_EQ(file.at("w").dtype, dtype) << type;
    EXPECT_EQ(file.at("w").bytes.size(), 2 * dtype_bytes(dtype)) << type;
  }
}

TEST(TorchTensors, UntypedStorageTakesItsDtypeFromTheTensor) {
  auto rebuild_v3 = [](const char* dtype_module, const char* dtype, int64_t offset = 1) {
    return named([=](PickleBuilder& p) {
      p.global("torch._utils", "_rebuild_tensor_v3").op('(').storage("UntypedStorage", "0", 8);
      p.integer(offset).integers({3}).integers({1}).op(0x89).ordered_dict().global(dtype_module, dtype).ops("tR");
    });
  };
  TorchStorages storages = {{"0", bytes_of("\x01\x02\x03\x04\x05\x06\x07\x08")}};
  ReadTorchFile file = read_pickle(rebuild_v3("torch", "uint16"), storages);
  EXPECT_EQ(file.at("w").dtype, DType::kU16);
  EXPECT_EQ(as_text(file.at("w").bytes), "\x03\x04\x05\x06\x07\x08");
  expect_torch_error("shape [3], strides [1] and offset 2 reach 5 elements into a storage of 4",
                     rebuild_v3("torch", "uint16", 2), storages);
  expect_torch_error("tensor 'w': has no dtype that we know", rebuild_v3("torch", "FloatStorage"), storages);
  expect_torch_error("global 'float8_e4m3fn' of module 'torch' refused", rebuild_v3("torch", "float8_e4m3fn"),
                     storages);
  expect_torch_error("tensor 'w': has an untyped storage and no dtype",
                     named([](PickleBuilder& p) { p.tensor("UntypedStorage", "0", 8, 0, {8}, {1}); }), storages);
}

TEST(TorchTensors, ParametersAreTheirTensors) {
  auto wrapped = [](const char* module, const char* name) {
    return named([=](PickleBuilder& p) {
      p.global(module, name).op('(').tensor("FloatStorage", "0", 12, 0, {12}, {1}).op(0x88).ordered_dict().ops("tR");
    });
  };
  EXPECT_EQ(read_pickle(wrapped("torch._utils", "_rebuild_parameter")).floats("w").size(), 12u);
  EXPECT_EQ(read_pickle(wrapped("torch._utils", "_rebuild_parameter_with_state")).floats("w").size(), 12u);
  EXPECT_EQ(read_pickle(wrapped("torch.nn.parameter", "Parameter")).floats("w").size(), 12u);
  std::string part = "tensor 'w': is a parameter around something that is not a tensor";
  expect_torch_error(part, named([](PickleBuilder& p) { p.global("torch.nn.parameter", "Parameter").ops("N\x85R"); }));
  expect_torch_error(part, named([](PickleBuilder& p) {
                       p.global("torch.nn.parameter", "Parameter").global("torch.nn.parameter", "Parameter");
                       p.ops("N\x85R\x85R");
                     }));
  expect_torch_error("Parameter has 0 arguments, at least 1 expected",
                     named([](PickleBuilder& p) { p.global("torch.nn.parameter", "Parameter").ops(")R"); }));
}

TEST(TorchTensors, ShapesMayBeTorchSize) {
  ReadTorchFile file = read_pickle(named([](PickleBuilder& p) {
    p.global("torch._utils", "_rebuild_tensor").op('(').storage("FloatStorage", "0", 12).integer(0);
    p.global("torch", "Size").integers({3, 4}).ops("\x85R").integers({4, 1}).ops("tR");
  }));
  EXPECT_EQ(file.at("w").shape, (Shape{3, 4}));
}

TEST(TorchTensors, SharedStoragesAndOffsets) {
  ReadTorchFile file = read_pickle([](PickleBuilder& p) {
    p.op('}').op('(').text("a").tensor("FloatStorage", "0", 12, 0, {12}, {1});
    p.text("b").tensor("FloatStorage", "0", 12, 5, {2, 3}, {3, 1}).op('u');
  });
  EXPECT_EQ(file.floats("b"), (std::vector<float>{5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(file.at("b").bytes.data(), file.at("a").bytes.data() + 5 * sizeof(float));
}

TEST(TorchTensors, ScalarsEmptyTensorsAndDimensionsOfOne) {
  EXPECT_EQ(read_pickle([](PickleBuilder& p) { one_tensor(p, 7, {}, {}); }).floats("w"), std::vector<float>{7});
  EXPECT_EQ(read_pickle([](PickleBuilder& p) { one_tensor(p, 0, {0, 4}, {4, 1}); }).at("w").shape, (Shape{0, 4}));
  ReadTorchFile file = read_pickle([](PickleBuilder& p) {
    one_tensor(p, 2, {1, 3, 1}, {std::numeric_limits<int64_t>::max(), 1, 999});
  });
  EXPECT_EQ(file.floats("w"), (std::vector<float>{2, 3, 4}));
  EXPECT_TRUE(file.contents.gathered.empty());
  ReadTorchFile no_storage =
      read_pickle(named([](PickleBuilder& p) { p.tensor("FloatStorage", "e", 0, 0, {0}, {1}); }), {{"e", {}}});
  EXPECT_TRUE(no_storage.at("w").bytes.empty());
}

TEST(TorchTensors, ViewsThatAreNotContiguousAreGathered) {
  ReadTorchFile transposed = read_pickle([](PickleBuilder& p) { one_tensor(p, 0, {4, 3}, {1, 4}); });
  EXPECT_EQ(transposed.floats("w"), (std::vector<float>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
  ASSERT_EQ(transposed.contents.gathered.size(), 1u);
  ReadTorchFile columns = read_pickle([](PickleBuilder& p) { one_tensor(p, 1, {3, 2}, {4, 2}); });
  EXPECT_EQ(columns.floats("w"), (std::vector<float>{1, 3, 5, 7, 9, 11}));
  ReadTorchFile permuted = read_pickle([](PickleBuilder& p) { one_tensor(p, 0, {2, 1, 2, 3}, {1, 1000, 6, 2}); });
  EXPECT_EQ(permuted.floats("w"), (std::vector<float>{0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11}));
  ReadTorchFile expanded = read_pickle([](PickleBuilder& p) { one_tensor(p, 3, {2, 3}, {1, 0}); });
  EXPECT_EQ(expanded.floats("w"), (std::vector<float>{3, 3, 3, 4, 4, 4}));
}

TEST(TorchTensors, GatheredTensorsTogetherAreBoundedByTheFile) {
  expect_torch_error("tensor 'w': shape [1000000, 1000000] with strides [0, 0] needs 4000000000000 B in memory",
                     [](PickleBuilder& p) {
                       one_tensor(p, 0, {1000000, 1000000}, {0, 0});
                     });
  expect_torch_error("overflows 64 bits", [](PickleBuilder& p) {
    one_tensor(p, 0, {int64_t{1} << 32, int64_t{1} << 31}, {0, 0});
  });
  std::string message = format_error_of([] {
    read_pickle(
        [](PickleBuilder& p) {
          p.op('}');
          for (int i = 0; i < 200; ++i)
            p.text(fmt::format("w{}", i)).tensor("FloatStorage", "0", 1024, 0, {32, 32}, {1, 32}).op('s');
        },
        {{"0", counting_floats(1024)}});
  });
  EXPECT_THAT(message, ::testing::HasSubstr("B in memory"));
}

TEST(TorchTensors, TensorsStayInsideTheirStorage) {
  auto expect_reach = [](int64_t offset, const Shape& shape, const Shape& strides) {
    expect_torch_error("tensor 'w': shape", [&](PickleBuilder& p) { one_tensor(p, offset, shape, strides); });
  };
  expect_reach(0, {13}, {1});
  expect_reach(1, {12}, {1});
  expect_reach(12, {}, {});
  expect_reach(0, {3, 4}, {5, 1});
  expect_reach(0, {2}, {12});
  auto expect_overflow = [](int64_t offset, const Shape& shape, const Shape& strides) {
    expect_torch_error("overflows 64 bits", [&](PickleBuilder& p) { one_tensor(p, offset, shape, strides); });
  };
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  expect_overflow(0, {3, 3}, {kHuge, kHuge});
  expect_overflow(0, {kHuge, kHuge}, {0, 0});
  expect_overflow(0, {4}, {kHuge});
}

TEST(TorchTensors, SizesAreNonNegativeIntegersInTuples) {
  expect_torch_error("its storage offset is not an integer", [](PickleBuilder& p) { one_tensor(p, -1, {1}, {1}); });
  expect_torch_error("its shape is not an integer", [](PickleBuilder& p) { one_tensor(p, 0, {-1}, {1}); });
  expect_torch_error("its strides is not an integer", [](PickleBuilder& p) { one_tensor(p, 0, {1}, {-1}); });
  expect_torch_error("shape [2, 2] and strides [1] differ in length", [](PickleBuilder& p) {
    one_tensor(p, 0, {2, 2}, {1});
  });
  Shape deep(kMaxTorchRank + 1, 1);
  expect_torch_error("its shape is not a tuple of at most 32", [&](PickleBuilder& p) { one_tensor(p, 0, deep, deep); });
  expect_torch_error("its shape is not a tuple", named([](PickleBuilder& p) {
                       p.global("torch._utils", "_rebuild_tensor").op('(').storage("FloatStorage", "0", 12);
                       p.integer(0).ops("]").integers({1}).ops("tR");
                     }));
  expect_torch_error("_rebuild_tensor has 3 arguments, at least 4 expected", named([](PickleBuilder& p) {
                       p.global("torch._utils", "_rebuild_tensor").op('(').storage("FloatStorage", "0", 12);
                       p.integer(0).integers({1}).ops("tR");
                     }));
}

TEST(TorchTensors, TensorMetadataMustBeEmpty) {
  auto with_metadata = [](const char* metadata) {
    return named([=](PickleBuilder& p) {
      p.global("torch._utils", "_rebuild_tensor_v2").op('(').storage("FloatStorage", "0", 12);
      p.integer(0).integers({2}).integers({1}).op(0x89).ordered_dict().ops(metadata).ops("tR");
    });
  };
  EXPECT_EQ(read_pickle(with_metadata("N")).floats("w").size(), 2u);
  EXPECT_EQ(read_pickle(with_metadata("}")).floats("w").size(), 2u);
  expect_torch_error("tensor 'w': has metadata", with_metadata("}U\x03neg\x88s"));
  expect_torch_error("tensor 'w': has metadata", with_metadata("K\x01"));
}

TEST(TorchTensors, StorageReferencesAreChecked) {
  auto with_storage = [](const std::function<void(PickleBuilder&)>& push_storage) {
    return named([=](PickleBuilder& p) { p.tensor(push_storage, 0, {1}, {1}); });
  };
  expect_torch_error("its storage is not a persistent id", with_storage([](PickleBuilder& p) { p.op('N'); }));
  expect_torch_error("its storage id is not a tuple of 5", with_storage([](PickleBuilder& p) { p.ops("NQ"); }));
  expect_torch_error("its storage id is not a tuple of 5", with_storage([](PickleBuilder& p) { p.ops(")Q"); }));
  auto id = [&](const char* tag, const char* type, const std::string& key, int64_t count) {
    return with_storage([=](PickleBuilder& p) {
      p.op('(').text(tag).global("torch", type).text(key).text("cpu").integer(count).ops("tQ");
    });
  };
  EXPECT_EQ(read_pickle(id("storage", "FloatStorage", "0", 12)).floats("w").size(), 1u);
  expect_torch_error("does not start with 'storage'", id("module", "FloatStorage", "0", 12));
  expect_torch_error("names no storage class", id("storage", "float32", "0", 12));
  expect_torch_error("global 'ComplexFloatStorage' of module 'torch' refused",
                     id("storage", "ComplexFloatStorage", "0", 12));
  expect_torch_error("its storage key is not a text of at most 64 B",
                     id("storage", "FloatStorage", std::string(65, '0'), 1));
  expect_torch_error("its storage size is not an integer", id("storage", "FloatStorage", "0", -1));
  expect_torch_error("its storage needs 44 B, zip entry 'model/data/0' holds 48 B",
                     id("storage", "FloatStorage", "0", 11));
  expect_torch_error("overflows 64 bits", id("storage", "FloatStorage", "0", std::numeric_limits<int64_t>::max()));
  expect_torch_error("zip entry 'model/data/1' is missing", id("storage", "FloatStorage", "1", 12));
  expect_torch_error("names no storage class", with_storage([](PickleBuilder& p) {
                       p.op('(').text("storage").text("FloatStorage").text("0").text("cpu").integer(12).ops("tQ");
                     }));
  expect_torch_error(
      "its storage key is not a text", with_storage([](PickleBuilder& p) {
        p.op('(').text("storage").global("torch", "FloatStorage").integer(0).text("cpu").integer(12).ops("tQ");
      }));
}

}  // namespace
}  // namespace thimble::torch_tensors_test
