// section_cache_test.cpp: sections that are known are not packed again, those that were begun are waited for, and what
// was used longest ago is forgotten.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

#include "packer/artifact.h"
#include "tests/packer/sample_models.h"

namespace thimble::section_cache_test {
namespace {

class CountingProgress final : public Progress {
 public:
  void begin(std::string_view, int64_t total, std::string_view) override { total_ = total; }
  void advance(int64_t units) override { done_ += units; }
  void end() override { ended_ = true; }
  bool complete() const { return ended_ && done_ == total_ && total_ > 0; }

 private:
  int64_t total_ = 0;
  std::atomic<int64_t> done_ = 0;
  bool ended_ = false;
};

TEST(SectionCacheTest, ProgressAddsUp) {
  SectionCache cache;
  CountingProgress progress;
  encode_artifact(sample_model(), {}, cache, progress);
  EXPECT_TRUE(progress.complete());
}

TEST(SectionCacheTest, CacheHoldsOnlyWhatChanged) {
  SectionCache cache;
  SilentProgress progress;
  QuantizedModel model = sample_model();
  ByteVector first = encode_artifact(model, {}, cache, progress);
  EXPECT_EQ(count_artifact_bytes(model, {}, cache, progress), first.size());
  const size_t sections = cache.size();
  EXPECT_EQ(encode_artifact(model, {}, cache, progress), first);
  EXPECT_EQ(cache.size(), sections);

  std::get<RowScaledCodes>(model.tensors[0].data).codes[3] ^= 1;
  ByteVector changed = encode_artifact(model, {}, cache, progress);
  EXPECT_EQ(cache.size(), sections + 1);
  EXPECT_EQ(changed, encode(model));
  EXPECT_NE(changed, first);

  // Another codec, and the same bytes in another shape, are other sections.
  EXPECT_EQ(encode_artifact(model, encode_options_from("zstd"), cache, progress),
            encode(model, encode_options_from("zstd")));
  model.tensors[0].shape = {7, 5};
  auto& coded = std::get<RowScaledCodes>(model.tensors[0].data);
  coded.row_scales.resize(7, 0x3c00);
  EXPECT_EQ(encode_artifact(model, {}, cache, progress), encode(model));
}

TEST(SectionCacheTest, CacheForgetsWhatWasUsedLongestAgo) {
  SilentProgress progress;
  QuantizedModel model = sample_model();
  SectionCache cache(nullptr, /*most_bytes=*/0);
  auto encode_changed = [&](int8_t change) {
    std::get<RowScaledCodes>(model.tensors[0].data).codes[3] ^= change;
    EXPECT_EQ(encode_artifact(model, {}, cache, progress), encode(model));
  };
  encode_changed(0);
  const size_t sections = cache.size();
  encode_changed(1);
  EXPECT_EQ(cache.size(), sections + 1) << "what the last two models were made of";
  encode_changed(3);
  EXPECT_EQ(cache.size(), sections + 1) << "the first model's is gone, what all share is not";
  encode_changed(2);  // the first again
  EXPECT_EQ(cache.size(), sections + 1);
}

// Counts what is packed, by key.
class CountingStore final : public SectionCache::Store {
 public:
  std::shared_ptr<const PackedSection> find(uint64_t) const override {
    on_find();
    return nullptr;
  }
  void insert(uint64_t key, const PackedSection&) const override {
    std::lock_guard lock(mutex);
    ++packed[key];
    if (fails) throw std::runtime_error("no room");
  }
  size_t count() const { return packed.size(); }
  bool each_once() const {
    return std::ranges::all_of(packed, [](const auto& item) { return item.second == 1; });
  }

  std::function<void()> on_find = [] {};
  bool fails = false;
  mutable std::mutex mutex;
  mutable std::map<uint64_t, int> packed;
};

QuantizedModel many_matrices() {
  QuantizedModel model = mixed_model();
  for (int i = 0; i < 30; ++i) model.tensors.push_back(stepped_tensor("i" + std::to_string(100 + i), 60 + i, 80, 3));
  return model;
}

TEST(SectionCacheTest, EqualSectionsArePackedOnce) {
  QuantizedModel model = sample_model();
  for (const char* name : {"f.weight", "g.weight"}) model.tensors.push_back(stepped_tensor(name, 6, 5, 3));
  CountingStore store;
  SectionCache cache(&store);
  CountingProgress progress;
  EXPECT_EQ(encode_artifact(model, {}, cache, progress), encode(model));
  EXPECT_TRUE(progress.complete());
  EXPECT_TRUE(store.each_once());
}

TEST(SectionCacheTest, CodesPackedAheadAreFound) {
  const QuantizedModel model = many_matrices();
  const EncodeOptions options{CodecId::kRans};
  const ByteVector file = encode(model, options);
  const std::vector<PlannedSection> sections = plan_artifact(model, "test").sections;
  const auto codes = static_cast<size_t>(std::ranges::count_if(
      sections, [](const PlannedSection& section) { return section.shape.kind == SectionKind::kCodes; }));
  for (bool waits : {true, false}) {
    CountingStore store;
    SectionCache cache(&store);
    BackgroundTasks tasks;
    for (const QuantizedTensor& tensor : model.tensors) pack_codes_ahead(tensor, options, cache, tasks);
    if (waits) {
      tasks.wait();
      EXPECT_EQ(store.count(), codes);
    }
    SilentProgress progress;
    EXPECT_EQ(encode_artifact(model, options, cache, progress), file);
    tasks.wait();
    EXPECT_EQ(store.count(), sections.size());
    EXPECT_TRUE(store.each_once());
  }
}

TEST(SectionCacheTest, WhatFailedAheadIsPackedAgain) {
  const QuantizedModel model = many_matrices();
  const EncodeOptions options{CodecId::kRans};
  CountingStore store;
  store.fails = true;
  SectionCache cache(&store);
  BackgroundTasks tasks;
  for (const QuantizedTensor& tensor : model.tensors) pack_codes_ahead(tensor, options, cache, tasks);
  EXPECT_THROW(tasks.wait(), std::runtime_error);
  SilentProgress progress;
  EXPECT_THROW(encode_artifact(model, options, cache, progress), std::runtime_error);
  store.fails = false;
  store.on_find = [] { throw std::runtime_error("unreadable"); };
  EXPECT_THROW(encode_artifact(model, options, cache, progress), std::runtime_error);
  store.on_find = [] {};
  EXPECT_EQ(encode_artifact(model, options, cache, progress), encode(model, options));
}

TEST(SectionCacheTest, NoMoreIsPackedAheadThanThereIsRoomFor) {
  const ContentShape shape{SectionKind::kCodes, 4, 4, sizeof(int32_t), 0, 3};
  CountingStore store;
  SectionCache cache(&store, SectionCache::kMostBytes, /*working_bytes=*/1);
  auto pack_ahead = [&](uint64_t hash) {
    cache.pack_ahead(shape, {[&](size_t) { return ByteVector(shape.content_bytes()); }, [=](size_t) { return hash; }},
                     {CodecId::kRans});
  };
  int found = 0;
  store.on_find = [&] {
    if (++found == 1) pack_ahead(2);  // while the first is under way
  };
  pack_ahead(1);
  EXPECT_EQ(store.count(), 1);
  pack_ahead(2);
  EXPECT_EQ(store.count(), 2);
}

}  // namespace
}  // namespace thimble::section_cache_test
