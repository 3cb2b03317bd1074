// pass_plan.h: what a pass over a network does, step by step, and where everything lies meanwhile. Made from the
// description alone, so that devices that run a network and plans of their memory agree to the byte.
//
// Memory is cut into slots of (rows of the batch) x (width) elements, which values and gradients use one after another.
// A backward pass goes through the transposes of the operations in reverse. Outputs of products, lookups and attention
// are kept for it, and what crosses from layer to layer; all else is cheap, and computed again where it is read. Where
// memory asks, nothing is kept but what crosses (Chen et al., arXiv 1604.06174): one layer's values at a time are there
// again, for a forward pass more. Where there is plenty, all is kept, which is fastest. Bits are the same.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/ops/network.h"

namespace thimble {

// Columns [first_column, first_column + width) of what lies in a slot with `stride` elements a row.
struct Place {
  int32_t slot = kAbsent;  // kAbsent: nowhere
  int64_t first_column = 0, width = 0, stride = 0;
  // Only the rows whose output is needed, the last ones of a sequence, are computed. The others hold nothing.
  bool needed_rows_only = false;

  explicit operator bool() const { return slot != kAbsent; }
};

// A gradient with respect to an input. `adds`: to what other operations have left there, or this one through a later
// input, for they come last first.
struct GradientPlace {
  Place place;
  bool adds = false;
};

struct Instruction {
  enum class Kind {
    kForward,   // runs an operation
    kZero,      // fills output_gradient
    kBackward,  // runs its transpose: from output_gradient to those of the inputs
  };
  Kind kind = Kind::kForward;
  size_t node = 0;
  // Backwards only those that the transpose reads have a place. The output may lie where the first input does.
  std::vector<Place> inputs;
  Place output;
  Place output_gradient;
  std::vector<GradientPlace> input_gradients;  // without a place where nothing depends on the input
};

struct PassPlan {
  std::vector<int64_t> slot_widths;
  std::vector<Instruction> forward;   // one for each node, in the network's order
  std::vector<Instruction> backward;  // empty unless asked for
  Place hidden;                       // the head's input, there after the forward pass
  Place hidden_gradient;              // what the head leaves there for the backward pass
};

// Which values a backward pass finds where the forward pass left them. The others are computed again.
enum class Keeps {
  kCrossing,  // what crosses from layer to layer
  kCostly,    // and outputs of products, lookups and attention
  kAll,
};

struct PassOptions {
  bool has_backward = false;
  bool reads_linear_outputs = false;     // transposes of products find their outputs in place
  bool reads_head_output = false;        // and who looks on that of the output head
  bool has_vector_gradients = false;     // transposes find what gradients of vectors are made of
  bool reads_linear_inputs = false;      // transposes of products find their inputs, for gradients of matrices
  bool reads_attention_outputs = false;  // and those of attention what it gave
  Keeps keeps = Keeps::kCostly;
};

PassPlan plan_pass(const Network& network, const PassOptions& options = {});

// By value: of which rows whose output nobody needs are needed by nobody. Needed are the last rows of each sequence.
std::vector<bool> short_values(const Network& network);

// A value that is there between two nodes, and where.
struct LiveValue {
  ValueId value;
  Place place;
};
// Of a plan without a backward pass: what later instructions read when node `node` is next.
std::vector<LiveValue> live_values(const Network& network, const PassPlan& plan, size_t node);

}  // namespace thimble
