// network.h: a forward pass as data: which operations make the logits from tokens, in which order, and which weights
// they read. A family of models writes one (ops.h); everything that runs models reads it: scoring, generation,
// gradients, memory plans, the list of matrices to quantize.
//
// A value is what an operation made: a matrix (P, width), a row for each position of the batch. Every value is written
// once. P = rows of a batch = sequences x positions, D = model width, H = heads, G = key/value heads, d = head width.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/ops/activation.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

// Places in the lists of a Network.
using ValueId = int32_t;
using MatrixId = int32_t;
using VectorId = int32_t;
using RotaryId = int32_t;
constexpr int32_t kAbsent = -1;

// What a stored tensor is for.
enum class Role {
  kLinear,  // multiplies activations, below the output head
  kTable,   // rows are looked up; of a tied head it is the head too
  kHead,    // makes the logits
  kSmall,   // norms, gains, gates, biases: anything that is no matrix of products or lookups
};

struct Parameter {
  std::string name;
  Shape shape;
  Role role = Role::kSmall;
};

// A matrix that operations read: (rows, columns), one of the parameters.
struct MatrixUse {
  std::string name;
  int64_t rows = 0, columns = 0;
};

// A vector that operations read, made of small tensors when a model is bound:
//   v = f(parameter[first .. first + count)) * times[0] + plus,   f the logistic function where `sigmoid`, else nothing
struct VectorRule {
  std::string parameter = {};
  int64_t first = 0, count = 0;
  bool sigmoid = false;
  std::string times = {};  // a parameter of one element; "": 1
  float plus = 0;
  bool operator==(const VectorRule&) const = default;
};

// Angles of a rotary embedding: with t = p * frequency(k), position p turns columns k and dims / 2 + k of a head, (a,
// b), to (a cos t + b sin t, b cos t - a sin t).
struct RotaryRule {
  int64_t dims = 0;
  // (dims / 2) at this length of context, of which some families' frequencies depend.
  std::function<std::vector<double>(int64_t context)> frequencies;
};

// Which row of a table a position looks up: its token's, that of the position itself, or one of `buckets` rows by the
// hash of the token and the one before it (token_batch.h).
struct RowIndex {
  enum class Kind { kToken, kPosition, kTokenPair };
  Kind kind = Kind::kToken;
  int64_t buckets = 0;
};

// Sums that numeric modes tell apart (numeric_policy.h).
enum class Sum { kEmbedding, kAttention, kMlp };

// The operations. x, a, ... are inputs in their order; y is the output.
namespace op {

// y[p] = factor * table[index(p)].
struct Gather {
  MatrixId table;
  RowIndex index;
  float factor = 1;
};
// y (P, N) = x (P, K) w^T + bias, w (N, K).
struct Linear {
  MatrixId weight;
  VectorId bias;  // (N) or kAbsent
};
// y = x + scale * a; `scale` has the width of x, or one element, or is kAbsent: 1.
struct Add {
  VectorId scale;
  Sum sum;
};
// y = factor * gain * x / sqrt(mean(x^2) + epsilon) over each row; a gain of kAbsent is 1 (arXiv 1910.07467).
struct RmsNorm {
  float epsilon = 0, factor = 1;
  VectorId gain = kAbsent;
};
// y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias over each row, the variance over all of it, not n - 1
// (arXiv 1607.06450, equation 4).
struct LayerNorm {
  VectorId weight, bias;
  float epsilon;
};
// What becomes of queries or keys before attention, head by head: the norm of RmsNorm with factor 1 (epsilon 0: none),
// rotation at the row's position (kAbsent: none), the head's gain (kAbsent: 1).
struct Heads {
  int64_t head_dim = 0;
  float epsilon = 0;
  VectorId norm_gain = kAbsent;  // (d)
  RotaryId rotary = kAbsent;
  VectorId head_gain = kAbsent;  // (H)
};
// y (P, H d) = causal softmax(scale * q k^T) v over the positions that each row sees (attention_window.h). Query head h
// reads key/value head h / (H / G). `exclusive`: y loses its component along the own position's value, per head (XSA).
struct Attention {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 0;
  bool exclusive = false;
  int32_t cache = kAbsent;  // which of the network's key/value caches holds k and v
  int64_t window = 0;
};
// y = f(x).
struct Activate {
  Activation activation;
};
// y = f(x) * a.
struct Gate {
  Activation activation;
};
// y = first * x + second * a by columns.
struct Mix {
  VectorId first, second;
};
// y = x + weight * a; with a gate y = gate * x + (1 - gate) * (weight * a).
struct Skip {
  VectorId weight, gate;
};
// y[p] = (1 - gate) * x[p] + gate * x[p-1] with 0 before a sequence's first row; in cached generation x[p-1] comes
// from the network's state number `state`.
struct Smear {
  VectorId gate;
  int32_t state;
};
// y = columns [first, first + count) of x: a view.
struct Columns {
  int64_t first, count;
};

}  // namespace op

using Operation = std::variant<op::Gather, op::Linear, op::Add, op::RmsNorm, op::LayerNorm, op::Heads, op::Attention,
                               op::Activate, op::Gate, op::Mix, op::Skip, op::Smear, op::Columns>;

struct Node {
  Operation operation;
  std::vector<ValueId> inputs;
  ValueId output = kAbsent;
  int32_t layer = kAbsent;  // kAbsent: before the first
};

// Logits (P, V) = softcap(hidden w^T): cap * tanh(z / cap), nothing where the cap is 0.
struct Head {
  ValueId hidden = kAbsent;
  MatrixId weight = kAbsent;
  float softcap = 0;
};

// The matrices that read one value, in the order of their operations.
struct LinearInput {
  ValueId value = kAbsent;
  size_t first_reader = 0;  // node; all readers come after what made the value
  std::vector<MatrixId> readers;
};

struct Network {
  std::vector<Parameter> parameters;
  std::vector<MatrixUse> matrices;
  std::vector<VectorRule> vectors;
  std::vector<RotaryRule> rotaries;
  std::vector<int64_t> cache_widths;  // G d of each key/value cache
  std::vector<int64_t> state_widths;
  std::vector<int64_t> value_widths;
  std::vector<Node> nodes;
  Head head;
  int32_t layers = 0;

  int64_t width_of(ValueId value) const { return value_widths[static_cast<size_t>(value)]; }
  const MatrixUse& matrix(MatrixId id) const { return matrices[static_cast<size_t>(id)]; }
  MatrixId id_of(const std::string& matrix_name) const;
  // A parameter that is no matrix of products or lookups.
  bool is_small(const std::string& parameter) const;
  const VectorRule& vector(VectorId id) const { return vectors[static_cast<size_t>(id)]; }
  int64_t vocabulary() const { return matrix(head.weight).rows; }

  // Inputs of linear layers below the head, in the order in which a pass meets their first readers.
  std::vector<LinearInput> linear_inputs() const;
  std::set<std::string> matrix_names() const;
  // The matrices of linear layers below the head, each once, in the order of their first operations.
  std::vector<MatrixId> linear_matrices() const;
  // The node that made a value.
  size_t maker_of(ValueId value) const;
  // Where a value lies: columns of another one, from `first_column` on, if op::Columns made it, else itself.
  struct View {
    ValueId owner;
    int64_t first_column;
  };
  View view_of(ValueId value) const;
  bool is_view(ValueId value) const { return view_of(value).owner != value; }
};

// The longest context, up to `context`, at which all rotary embeddings are what they are at the shortest ones.
int64_t home_context(const Network& network, int64_t context);
// With the rotary embeddings of this context at any.
Network network_at(const Network& network, int64_t context);

// May the operation write over its first input? May its transpose write the gradient of that input over the output's?
bool works_in_place(const Operation& operation);

// Of the rows of its inputs, which does a row of the output read? Attention reads earlier rows of all inputs but its
// first, Smear of its first; all other operations read their own row alone.
bool reads_earlier_rows(const Operation& operation, size_t input);

}  // namespace thimble
