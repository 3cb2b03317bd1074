// families_test.cpp: which family a checkpoint is of, and the way of its tensors from a file to parameters and back.
#include <gtest/gtest.h>

#include "runtime/families/family.h"
#include "runtime/families/gpt2/gpt2_family.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/families/golf/random_model.h"
#include "tests/runtime/families/gpt2/random_gpt2.h"
#include "tests/runtime/families/llama/random_llama.h"

namespace thimble::families_test {
namespace {

const Family& family_named(std::string_view name) {
  for (const Family* family : families())
    if (family->name() == name) return *family;
  ADD_FAILURE() << "no family " << name;
  return *families()[0];
}

std::string found_name(const Json& config, const OwnedTensors& tensors) {
  const Family* family = find_family(config, views_of(tensors));
  return family ? std::string(family->name()) : "none";
}

const OwnedTensors kGolf = random_golf_tensors(small_golf_config());
const OwnedTensors kGpt2 = random_gpt2_tensors(small_gpt2_config());

const std::string kNames = "'golf-gpt', 'gpt2', 'llama', 'mistral', 'qwen2', 'qwen3' and 'gemma3_text'";

TEST(Families, AreNamed) {
  EXPECT_EQ(family_names(), kNames);
  EXPECT_EQ(families().size(), 7u);
}

TEST(Families, AConfigNamesItsFamily) {
  for (const OwnedTensors& tensors : {kGolf, kGpt2, OwnedTensors()}) {
    EXPECT_EQ(found_name(to_json(small_golf_config()), tensors), "golf-gpt");
    EXPECT_EQ(found_name(to_json(small_gpt2_config()), tensors), "gpt2");
    EXPECT_EQ(found_name({{"model_type", "gpt2"}}, tensors), "gpt2");
    EXPECT_EQ(found_name({{"architecture", "golf-gpt"}, {"model_type", "gpt2"}}, tensors), "golf-gpt");
    EXPECT_EQ(found_name({{"model_type", "bert"}}, tensors), "none");
    EXPECT_EQ(found_name({{"architecture", 5}}, tensors), "none");
  }
}

TEST(Families, WithoutANameTheTensorsTell) {
  for (const Json& config : {Json::object(), Json(), Json::array()}) {
    EXPECT_EQ(found_name(config, kGolf), "golf-gpt");
    EXPECT_EQ(found_name(config, with_banks(kGolf, 5)), "golf-gpt");
    EXPECT_EQ(found_name(config, kGpt2), "gpt2");
    EXPECT_EQ(found_name(config, {}), "none");
    EXPECT_EQ(found_name(config, {{"model.embed_tokens.weight", Tensor{DType::kF32, {1, 1}, ByteVector(4)}}}), "none");
  }
}

TEST(Families, WhatCannotBeRunIsNamed) {
  const std::string allowed = " cannot be run, allowed are " + kNames;
  EXPECT_EQ(cannot_be_run({{"model_type", "bert"}}), "model family \"bert\"" + allowed);
  EXPECT_EQ(cannot_be_run({{"architecture", "other"}, {"model_type", "bert"}}), "model family \"other\"" + allowed);
  EXPECT_EQ(cannot_be_run(Json::object()), "model family \"unknown\"" + allowed);
  EXPECT_EQ(cannot_be_run(Json()), "model family \"unknown\"" + allowed);
}

TEST(Families, ResolveConfigAndShapes) {
  const Where where{"config.json", "model.safetensors"};
  const Family &golf = family_named("golf-gpt"), &gpt2 = family_named("gpt2");
  const Spec golf_spec = golf.resolve(to_json(small_golf_config()), views_of(kGolf), where);
  EXPECT_EQ(golf_spec.family, &golf);
  EXPECT_EQ(golf_spec.config, to_json(small_golf_config()));
  EXPECT_FALSE(golf_spec.most_positions);
  EXPECT_EQ(golf_spec.vocabulary(), 29);
  EXPECT_EQ(golf_spec.network->layers, 5);
  const Spec gpt2_spec = gpt2.resolve(to_json(small_gpt2_config()), views_of(kGpt2), where);
  EXPECT_EQ(gpt2_spec.family, &gpt2);
  EXPECT_EQ(gpt2_spec.config, to_json(small_gpt2_config()));
  EXPECT_EQ(gpt2_spec.most_positions, 40);
  EXPECT_EQ(gpt2_spec.network->layers, 3);
  // What resolve() gives resolves again to the same.
  EXPECT_EQ(golf.resolve(golf_spec.config, views_of(kGolf), where).config, golf_spec.config);
  EXPECT_EQ(gpt2.resolve(gpt2_spec.config, views_of(kGpt2), where).config, gpt2_spec.config);
  expect_error<FormatError>([&] { golf.resolve(to_json(small_golf_config()), views_of(kGpt2), where); },
                            {"model.safetensors", "tok_emb.weight"});
  Json contradiction = to_json(small_gpt2_config());
  contradiction["n_embd"] = 21;
  expect_error<FormatError>([&] { gpt2.resolve(contradiction, views_of(kGpt2), where); }, {"config.json", "n_embd"});
}

TEST(Families, AContextMustFitThePositions) {
  Spec spec;
  EXPECT_NO_THROW(check_context(spec, int64_t{1} << 40, "model"));
  spec.most_positions = 40;
  EXPECT_NO_THROW(check_context(spec, 40, "model"));
  expect_error<UsageError>([&] { check_context(spec, 41, "model.thmb"); }, {"model.thmb", "41", "40"});
}

TEST(Families, TheUsualLengthKeepsToWhatAModelKnows) {
  Spec spec;
  EXPECT_EQ(spec.usual_length(2048), 2048);
  spec.most_positions = 1024;
  EXPECT_EQ(spec.usual_length(2048), 1024);
  EXPECT_EQ(spec.usual_length(512), 512);
  LlamaConfig config = small_llama_config("llama");
  const auto resolved = [&] {
    const OwnedTensors tensors = random_llama_tensors(config);
    return family_named("llama").resolve(to_json(config), views_of(tensors), {"config.json", "model.safetensors"});
  };
  EXPECT_EQ(resolved().usual_length(2048), 2048);
  config.max_positions = 600;
  EXPECT_EQ(resolved().usual_length(2048), 600);
  EXPECT_NO_THROW(check_context(resolved(), 2048, "model"));  // longer ones run
}

void expect_same_tensors(const TensorMap& found, const OwnedTensors& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(found.contains(name));
    EXPECT_EQ(found.at(name).dtype, tensor.dtype);
    EXPECT_EQ(found.at(name).shape, tensor.shape);
    EXPECT_TRUE(std::ranges::equal(found.at(name).bytes, tensor.bytes));
  }
}

// The file's tensors, through parameters, to a file again.
void expect_round_trip(const Family& family, const Json& config, const OwnedTensors& file,
                       const OwnedTensors& parameters, bool banked) {
  const TensorMap views = views_of(file);
  const MappedTensors mapped = family.from_file(views, Contents::kBytes, "model.safetensors");
  EXPECT_EQ(mapped.banked, banked);
  expect_same_tensors(mapped.tensors, parameters);
  const Spec spec = family.resolve(config, mapped.tensors, {"config.json", "model.safetensors"});
  const OwnedTensors again = family.to_file(spec, parameters, mapped.banked);
  expect_same_tensors(views_of(again), file);
  // Shapes alone cost no bytes, but are the same.
  const MappedTensors shapes = family.from_file(views, Contents::kShapes, "model.safetensors");
  EXPECT_EQ(shapes.banked, banked);
  ASSERT_EQ(shapes.tensors.size(), parameters.size());
  for (const auto& [name, tensor] : parameters) {
    EXPECT_EQ(shapes.tensors.at(name).shape, tensor.shape) << name;
    EXPECT_EQ(shapes.tensors.at(name).dtype, tensor.dtype) << name;
  }
  for (const ByteVector& bytes : shapes.storage) EXPECT_TRUE(bytes.empty());
}

TEST(Families, GolfBanksAreTakenApartAndPutTogether) {
  const Family& family = family_named("golf-gpt");
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const OwnedTensors parameters = random_golf_tensors(small_golf_config(), 2, dtype);
    const Json config = to_json(small_golf_config());
    expect_round_trip(family, config, parameters, parameters, /*banked=*/false);
    expect_round_trip(family, config, with_banks(parameters, 5), parameters, /*banked=*/true);
  }
}

TEST(Families, GolfCountersOfAveragesAreNoParameters) {
  OwnedTensors file = kGolf;
  file["n_averaged"] = {DType::kI64, {}, ByteVector(8)};
  const TensorMap views = views_of(file);
  expect_same_tensors(family_named("golf-gpt").from_file(views, Contents::kBytes, "model").tensors, kGolf);
}

// As Hugging Face stores them.
OwnedTensors with_turned_projections(OwnedTensors tensors) {
  for (auto& [name, tensor] : tensors)
    if (is_gpt2_projection(name)) tensor = transposed(tensor.view());
  return tensors;
}

TEST(Families, Gpt2ProjectionsAreTurned) {
  for (DType dtype : {DType::kF32, DType::kF16})
    for (bool tied : {false, true}) {
      Gpt2Config config = small_gpt2_config();
      config.tie_embeddings = tied;
      const OwnedTensors parameters = random_gpt2_tensors(config, 2, dtype);
      expect_round_trip(family_named("gpt2"), to_json(config), with_turned_projections(parameters), parameters,
                        /*banked=*/false);
    }
}

TEST(Families, Gpt2NamesGetTheirPrefix) {
  const Family& family = family_named("gpt2");
  OwnedTensors bare;
  for (const auto& [name, tensor] : with_turned_projections(kGpt2))
    bare[name.substr(std::string("transformer.").size())] = tensor;
  EXPECT_TRUE(family.has_tensors(views_of(bare)));
  const TensorMap views = views_of(bare);
  const MappedTensors mapped = family.from_file(views, Contents::kBytes, "model");
  expect_same_tensors(mapped.tensors, kGpt2);
  OwnedTensors both = with_turned_projections(kGpt2);
  both["wte.weight"] = both.at(kGpt2TokenEmbedding);
  expect_error<FormatError>([&] { family.from_file(views_of(both), Contents::kShapes, "model.bin"); },
                            {"model.bin", "'wte.weight'", "'transformer.wte.weight'"});
}

TEST(Families, Gpt2MasksAndARepeatedHeadAreLeftOut) {
  const Family& family = family_named("gpt2");
  OwnedTensors file = with_turned_projections(kGpt2);
  file["transformer.h.0.attn.bias"] = {DType::kU8, {1, 1, 40, 40}, ByteVector(1600)};
  file["h.1.attn.masked_bias"] = {DType::kF32, {}, ByteVector(4)};
  file[kGpt2Head] = file.at(kGpt2TokenEmbedding);
  const TensorMap views = views_of(file);
  const MappedTensors tied = family.from_file(views, Contents::kBytes, "model");
  expect_same_tensors(tied.tensors, kGpt2);
  // Another head stays, if it differs in one bit.
  file[kGpt2Head].bytes[0] ^= std::byte{1};
  const TensorMap untied = views_of(file);
  EXPECT_TRUE(family.from_file(untied, Contents::kBytes, "model").tensors.contains(kGpt2Head));
  EXPECT_TRUE(family.from_file(untied, Contents::kShapes, "model").tensors.contains(kGpt2Head));
}

// A projection that is no matrix is left for resolve() to refuse.
TEST(Families, Gpt2ProjectionsOfAnotherRankAreRefused) {
  OwnedTensors file = with_turned_projections(kGpt2);
  Tensor& projection = file.at(Gpt2LayerNames(1).up);
  projection.shape = {element_count(projection.shape)};
  const TensorMap views = views_of(file);
  const MappedTensors mapped = family_named("gpt2").from_file(views, Contents::kBytes, "model");
  expect_error<FormatError>(
      [&] {
        family_named("gpt2").resolve(to_json(small_gpt2_config()), mapped.tensors, {"config", "model.bin"});
      },
      {"model.bin", Gpt2LayerNames(1).up});
}

}  // namespace
}  // namespace thimble::families_test
