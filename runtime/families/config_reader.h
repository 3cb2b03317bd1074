// config_reader.h: what reading the config of any model family has in common: keys of a JSON object that tensors prove
// or cannot, bounds on dimensions, and the check of every tensor against the shapes that a config asks for.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/ops/network.h"
#include "runtime/ops/token_sequences.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

// Bounds on dimensions: far above any real model, low enough that products of two never overflow.
constexpr int64_t kMaxDimension = int64_t{1} << 24;
constexpr int64_t kMaxLayers = 1024;

// Looks keys up in the given JSON, compares them with what tensors prove, and words the errors.
class ConfigReader {
 public:
  // `within`: what errors put before a key, "rope_scaling." of an object in the config.
  ConfigReader(const Json& given, const std::string& path, const std::string& within = {})
      : given_(given), path_(path), within_(within) {
    if (!given.is_object())
      throw FormatError(path, within.empty() ? "the model config must be a JSON object"
                                             : "config key '" + within.substr(0, within.size() - 1) + "' is " +
                                                   canonical_json(given) + ", allowed is an object");
  }

  // A key that only the config can tell.
  template <typename T>
  T required(const std::string& key, const std::string& why) const {
    if (!given_.contains(key))
      throw FormatError(path_, "config key '" + within_ + key + "' is missing; " + why + ", tensors cannot prove it");
    return get<T>(key);
  }

  // A key that a tensor proves: the proven value, after checking that the config does not contradict it.
  template <typename T>
  T proven(const std::string& key, T value, const std::string& tensor) const {
    if (given_.contains(key) && get<T>(key) != value)
      throw FormatError(path_, "config key '" + within_ + key + "' is " + canonical_json(given_.at(key)) +
                                   ", but tensor '" + tensor + "' proves " + canonical_json(value));
    return value;
  }

  template <typename T>
  T optional(const std::string& key, T fallback) const {
    return given_.contains(key) ? get<T>(key) : fallback;
  }

  [[noreturn]] void reject(const std::string& key, const std::string& allowed) const {
    throw FormatError(path_, "config key '" + within_ + key + "' is " +
                                 (given_.contains(key) ? canonical_json(given_.at(key)) : "absent") + ", allowed is " +
                                 allowed);
  }

 private:
  template <typename T>
  T get(const std::string& key) const {
    const Json& value = given_.at(key);
    if constexpr (std::is_same_v<T, bool>) {
      if (!value.is_boolean()) reject(key, "true or false");
    } else if constexpr (std::is_same_v<T, int64_t>) {
      if (!value.is_number_integer()) reject(key, "an integer");
      if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})
        reject(key, "an integer below 2^63");
    } else if constexpr (std::is_same_v<T, double>) {
      if (!value.is_number()) reject(key, "a number");
      if (!std::isfinite(value.get<double>())) reject(key, "a finite number");
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (!value.is_string()) reject(key, "a string");
    } else {
      if (!value.is_array()) reject(key, "an array of integers");
      for (const Json& item : value)
        if (!item.is_number_integer()) reject(key, "an array of integers");
    }
    return value.get<T>();
  }

  const Json& given_;
  const std::string& path_;
  const std::string within_;
};

// The tensor of this name, checked for its rank and kMaxDimension. FormatErrors(path) name it and the `family`.
const TensorView& find_tensor(const TensorMap& tensors, const std::string& name, size_t rank, const std::string& path,
                              const std::string& family);

// Does the tensor `head` repeat the `table` byte for byte, as files of tied heads may?
bool is_tied_copy(const TensorMap& tensors, const std::string& head, const std::string& table);

// A FormatError(path) when the vocabulary that `tensor` proves is above kMostTokens.
void check_vocabulary(int64_t vocab_size, const std::string& tensor, const std::string& path);

// Are the tensors those of `expected`, by name and shape, all floating, and no others? Else a FormatError(path).
void check_every_tensor(std::span<const Parameter> expected, const TensorMap& tensors, const std::string& path,
                        const std::string& family);

}  // namespace thimble
