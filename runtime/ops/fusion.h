// fusion.h: a network's forward pass as fewer, larger steps for a device that can do several operations at once: a
// product with what follows it, a lookup with what surrounds it. In: Network.  Out: Fusion: composites in their order,
// each covering nodes of the network, and where the values between them lie. Nothing here knows a family, nor a device:
// rules match operations and their readers. Results per row are those of the nodes, up to the rounding of values that
// are no longer stored.
//
// A value whose readers all lie in its own composite has no place. Norms are deferred: rms(u) is u times one number per
// row, so products read u, and what wrote u leaves the squares of its rows. A norm's gain multiplies the columns of the
// matrices that read it, instead.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "runtime/ops/network.h"
#include "runtime/ops/pass_plan.h"

namespace thimble {

// Heads are stored in 32, 64, 128 or 256 columns; 0 where that is too few.
constexpr int64_t padded_head_width(int64_t head_dim) {
  for (int64_t width = 32; width <= 256; width *= 2)
    if (head_dim <= width) return width;
  return 0;
}

// What a product reads: a value, or its deferred norm factor * gain * x / sqrt(mean(x^2) + epsilon).
struct FusedInput {
  ValueId value = kAbsent;
  bool is_normed = false;
  float factor = 1, epsilon = 0;
  VectorId gain = kAbsent;  // in Fusion::column_gains of the product's matrices
};

// Rows [first_row, first_row + rows) of a matrix that makes heads, and its bias.
struct HeadSource {
  MatrixId weight = kAbsent;
  int64_t first_row = 0, rows = 0;
  VectorId bias = kAbsent;
};

// table (., N) = scale * rows of `table` times product^T: one lookup instead of a product per token.
struct ProductTable {
  MatrixId table = kAbsent, product = kAbsent;
  RowIndex index;
  VectorId scale = kAbsent;  // of one element
  int64_t head_dim = 0;      // columns are heads of this width; 0: they are not
};

namespace fused {

// One node as it is.
struct Single {
  size_t node = 0;
};
// start = smear(rms(tokens[.] + pairs[.])), stream = first * start + second * start.
struct Embed {
  MatrixId tokens = kAbsent;
  int32_t pairs = kAbsent;  // in Fusion::tables
  float epsilon = 0;
  VectorId smear_gate = kAbsent, first = kAbsent, second = kAbsent;
  ValueId start = kAbsent, stream = kAbsent;
};
// Queries, keys and values of an attention: one product, then norms and rotations of heads, the head gains of queries,
// and value_scale * (a row of a table) added to values. Queries are left as a value of padded heads, the others in the
// cache.
struct Project {
  FusedInput input;
  HeadSource query, key, value;
  float norm_epsilon = 0;  // 0: no norms
  RotaryId rotary = kAbsent;
  VectorId query_gain = kAbsent;
  int32_t value_table = kAbsent;  // in Fusion::tables
  VectorId value_scale = kAbsent;
  op::Attention attention;
  ValueId queries = kAbsent;

  bool has_bias() const { return query.bias != kAbsent || key.bias != kAbsent || value.bias != kAbsent; }
};
// Attention without scores in memory, in every network but for heads that are too wide. `is_projected`: over the
// queries that a Project left. Otherwise it places heads of its three inputs by itself, queries in `scratch` where
// heads must be padded.
struct Attend {
  op::Attention attention;
  bool is_projected = false;
  ValueId query = kAbsent, key = kAbsent, value = kAbsent, output = kAbsent;
};
// output = residual + scale * (input weight^T + bias), in the residual's place. With `mix_first` the layer's end:
//   sum = the above;  x = sum, or with `skip_weight` skip(sum, skipped);  output = mix_first * x + mix_second * start
struct LinearAdd {
  ValueId input = kAbsent, residual = kAbsent;
  MatrixId weight = kAbsent;
  VectorId bias = kAbsent, scale = kAbsent;
  ValueId sum = kAbsent;  // kAbsent: nobody else reads it
  ValueId skipped = kAbsent;
  VectorId skip_weight = kAbsent, skip_gate = kAbsent;
  ValueId start = kAbsent;
  VectorId mix_first = kAbsent, mix_second = kAbsent;
  ValueId output = kAbsent;
};
// output = f(input weight^T + bias).
struct LinearActivate {
  FusedInput input;
  MatrixId weight = kAbsent;
  VectorId bias = kAbsent;
  Activation activation = Activation::kSilu;
  ValueId output = kAbsent;
};

// output = f(input gate^T) * (input up^T).
struct LinearGate {
  FusedInput input;
  MatrixId gate = kAbsent, up = kAbsent;
  Activation activation = Activation::kSilu;
  ValueId output = kAbsent;
};

}  // namespace fused

using FusedWork = std::variant<fused::Single, fused::Embed, fused::Project, fused::Attend, fused::LinearAdd,
                               fused::LinearActivate, fused::LinearGate>;

struct Composite {
  FusedWork work;
  // A pass that stops before a node has run all composites of lesser triggers: the node of the first matrix that the
  // composite reads, else its last one.
  size_t trigger = 0;
  std::vector<ValueId> reads, writes;  // values with places
  int32_t scratch = kAbsent;           // a slot for its own use
};

struct FusionOptions {
  bool fuses_products = false;  // nothing is rounded between a product and what follows it
  bool folds_gains = false;     // nor do roundings of matrices and inputs tell a norm's gain from a factor of columns
  int64_t column_multiple = 1;  // to which widths are padded
};

struct Fusion {
  FusionOptions options;
  std::vector<ProductTable> tables;
  std::vector<Composite> composites;
  FusedInput head;                     // what the output head reads
  std::vector<VectorId> column_gains;  // by MatrixId: of the deferred norm that it reads, or kAbsent
  std::vector<int64_t> slot_widths;    // for all rows, elements
  std::vector<Place> places;           // by ValueId; strides are padded
  std::vector<bool> has_squares;       // by ValueId: deferred norms read the squares of its rows
  std::vector<bool> has_padded_heads;  // by ValueId: heads lie padded_head_width() apart

  // Rows that nobody needs end at this Project, which gives their keys and values: it copies the needed rows of
  // `compacted` to places of their own, and from there on only these go through the pass. composites.size(): never.
  size_t compacts_at = 0;
  std::vector<ValueId> compacted;
  std::vector<int64_t> compact_widths;  // slots for needed rows
  std::vector<Place> compact_places;    // by ValueId, of all that is read from there on; compact slots are numbered on
                                        // from slot_widths.size()

  // The first two composites may compute rows that overlapping windows share once, with this slot as scratch; kAbsent:
  // no.
  int32_t shared_scratch = kAbsent;
};

Fusion fuse(const Network& network, const FusionOptions& options);
// Its last step: where the values between composites lie. In: the tables, composites (in order), head and squares of
// `fusion`.  Out: everything else in it.
void plan_places(const Network& network, Fusion& fusion);

// How a value can be shown while a fused pass stands before its first reader.
struct ShownValue {
  enum class Kind { kStored, kNormed, kGathered } kind = Kind::kStored;
  FusedInput input;   // kNormed: of what; kStored: the value itself
  size_t gather = 0;  // kGathered: the node
};
ShownValue shown_value(const Network& network, const Fusion& fusion, ValueId value);

}  // namespace thimble
