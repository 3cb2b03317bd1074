// ops.h: how a family writes down its forward pass: each call appends one operation to a Network. The comments of
// network.h say what operations compute.
//   Value h = ops.rms_norm(x, {.epsilon = 1e-5f, .gain = ops.vector("norm.weight")});
//   x = ops.add(x, ops.linear(ops.gate(Activation::kSilu, ops.linear(h, "gate"), ops.linear(h, "up")), "down"), ...);
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/ops/network.h"

namespace thimble {

struct Value {
  ValueId id = kAbsent;
};

// No vector at all where an operation may do without.
struct Vector {
  VectorId id = kAbsent;
  operator VectorId() const { return id; }
};

class Ops {
 public:
  // `parameters`: all tensors of the model. Names given to the calls below are theirs.
  explicit Ops(std::vector<Parameter> parameters);

  // What follows belongs to this layer of the model; layers ascend.
  void begin_layer(int64_t layer);

  // Elements [first, first + count) of a small tensor, all of it by default.
  Vector vector(const std::string& parameter);
  Vector vector(const VectorRule& rule);
  // Row `row` of a small tensor of two dimensions.
  VectorRule row(const std::string& parameter, int64_t row) const;
  RotaryId rotary(RotaryRule rule);

  Value gather(const std::string& table, RowIndex index = {}, float factor = 1);
  Value linear(Value x, const std::string& weight, Vector bias = {});
  Value add(Value x, Value a, Sum sum, Vector scale = {});
  Value rms_norm(Value x, const op::RmsNorm& norm);
  Value layer_norm(Value x, Vector weight, Vector bias, float epsilon);
  Value heads(Value x, const op::Heads& heads);
  // A scale of 0 is 1 / sqrt(head_dim); the cache is given here.
  Value attention(Value q, Value k, Value v, op::Attention attention);
  Value activate(Activation activation, Value x);
  Value gate(Activation activation, Value x, Value a);
  Value mix(Value x, Vector first, Value a, Vector second);
  Value skip(Value x, Value a, Vector weight, Vector gate = {});
  Value smear(Value x, Vector gate);
  Value columns(Value x, int64_t first, int64_t count);

  // The end: logits from what the last norm gave; not from columns of a value.
  Network head(Value hidden, const std::string& weight, float softcap = 0) &&;

 private:
  Value append(Operation operation, std::vector<ValueId> inputs, int64_t width);
  MatrixId matrix(const std::string& name);
  int64_t width(Value value) const { return network_.width_of(value.id); }
  const Parameter& parameter(const std::string& name) const;

  Network network_;
  std::map<std::string, size_t> parameter_of_;
  int32_t layer_ = kAbsent;
};

}  // namespace thimble
