// pass_plan.cpp: first the instructions with the cells that each reads and writes, then the slots of these cells.
#include "runtime/ops/pass_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "runtime/ops/slot_plan.h"

namespace thimble {
namespace {

// An instruction without places, and the cells that it reads and makes; kAbsent: none. A view lies in its owner's cell.
struct Draft {
  Instruction instruction;
  std::vector<Cell> inputs;
  Cell output = kAbsent;
  Cell output_gradient = kAbsent;
  std::vector<Cell> input_gradients;
};

std::vector<bool> kept_values(const Network& network, Keeps keeps) {
  std::vector<bool> is_kept(network.value_widths.size(), keeps == Keeps::kAll);
  if (keeps == Keeps::kAll) return is_kept;
  for (const Node& node : network.nodes) {
    const Operation& operation = node.operation;
    is_kept[static_cast<size_t>(node.output)] =
        keeps == Keeps::kCostly &&
        (std::holds_alternative<op::Linear>(operation) || std::holds_alternative<op::Gather>(operation) ||
         std::holds_alternative<op::Attention>(operation));
    for (ValueId input : node.inputs)
      if (network.nodes[network.maker_of(input)].layer != node.layer) is_kept[static_cast<size_t>(input)] = true;
  }
  is_kept[static_cast<size_t>(network.head.hidden)] = true;
  return is_kept;
}

// Which inputs the transpose of an operation reads.
std::vector<bool> inputs_read_backwards(const Node& node, const PassOptions& options) {
  const Operation& operation = node.operation;
  const bool vectors = options.has_vector_gradients;
  if (const auto* add = std::get_if<op::Add>(&operation)) return {false, add->scale != kAbsent && vectors};
  if (const auto* skip = std::get_if<op::Skip>(&operation)) return {skip->gate != kAbsent && vectors, vectors};
  if (std::holds_alternative<op::Linear>(operation)) return {options.reads_linear_inputs};
  const bool for_vectors = std::holds_alternative<op::Mix>(operation) || std::holds_alternative<op::Smear>(operation);
  return std::vector<bool>(node.inputs.size(), for_vectors ? vectors : true);
}

bool is_output_read_backwards(const Operation& operation, const PassOptions& options) {
  return (options.reads_linear_outputs && std::holds_alternative<op::Linear>(operation)) ||
         (options.reads_attention_outputs && std::holds_alternative<op::Attention>(operation));
}

class Planner {
 public:
  Planner(const Network& network, const PassOptions& options)
      : network_(network),
        options_(options),
        is_short_(short_values(network)),
        kept_(kept_values(network, options.keeps)) {
    const size_t values = network.value_widths.size();
    value_cells_.assign(values, kAbsent);
    gradient_cells_.assign(values, kAbsent);
  }

  PassPlan plan() {
    for (size_t i = 0; i < network_.nodes.size(); ++i) forward(i);
    const size_t forward_count = drafts_.size();
    const ValueId hidden = network_.head.hidden;
    const Cell hidden_cell = value_cells_[index(owner_of(hidden))];
    Cell hidden_gradient = kAbsent;
    if (options_.has_backward) {
      hidden_gradient = gradient_cell(hidden);
      backward();
    }
    std::vector<SlotStep> steps;
    for (const Draft& draft : drafts_) steps.push_back(step_of(draft));
    // The head, between the two passes.
    steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(forward_count), {{hidden_cell, hidden_gradient}});
    slots_ = plan_slots(steps, cell_widths_);
    PassPlan plan;
    plan.slot_widths = slots_.widths;
    plan.hidden = value_place(hidden_cell, hidden);
    plan.hidden_gradient = place_of(hidden_gradient, hidden);
    for (size_t i = 0; i < drafts_.size(); ++i)
      (i < forward_count ? plan.forward : plan.backward).push_back(finished(drafts_[i]));
    return plan;
  }

 private:
  static size_t index(int32_t id) { return static_cast<size_t>(id); }
  ValueId owner_of(ValueId value) const { return network_.view_of(value).owner; }

  Cell new_cell(ValueId value) {
    cell_widths_.push_back(network_.width_of(value));
    return static_cast<Cell>(cell_widths_.size()) - 1;
  }

  void forward(size_t at) {
    const Node& node = network_.nodes[at];
    Draft draft;
    draft.instruction = {Instruction::Kind::kForward, at, {}, {}, {}, {}};
    for (ValueId input : node.inputs) draft.inputs.push_back(value_cells_[index(owner_of(input))]);
    const ValueId owner = owner_of(node.output);
    if (owner == node.output) value_cells_[index(owner)] = new_cell(owner);
    draft.output = value_cells_[index(owner)];
    drafts_.push_back(std::move(draft));
  }

  // Makes sure that a value is at hand for transposes.
  Cell ensure(ValueId value) {
    const ValueId owner = owner_of(value);
    if (!kept_[index(owner)] && recomputed_.insert(owner).second) {
      const size_t maker = network_.maker_of(owner);
      for (ValueId input : network_.nodes[maker].inputs) ensure(input);
      forward(maker);
    }
    return value_cells_[index(owner)];
  }

  Cell gradient_cell(ValueId value) {
    const ValueId owner = owner_of(value);
    Cell& cell = gradient_cells_[index(owner)];
    if (cell == kAbsent) cell = new_cell(owner);
    return cell;
  }

  void backward() {
    adds_to_gradient(network_.head.hidden);
    for (size_t i = network_.nodes.size(); i-- > 0;) {
      const Node& node = network_.nodes[i];
      if (!has_gradient_.contains(node.output)) continue;
      if (network_.is_view(node.output))
        has_gradient_.insert(node.inputs[0]);  // what its readers left lies in place
      else
        transpose(i);
    }
  }

  void transpose(size_t at) {
    const Node& node = network_.nodes[at];
    const std::vector<bool> reads = inputs_read_backwards(node, options_);
    Draft draft;
    draft.instruction = {Instruction::Kind::kBackward, at, {}, {}, {}, {}};
    for (size_t k = 0; k < node.inputs.size(); ++k) draft.inputs.push_back(reads[k] ? ensure(node.inputs[k]) : kAbsent);
    if (is_output_read_backwards(node.operation, options_)) draft.output = ensure(node.output);
    draft.output_gradient = gradient_cell(node.output);
    draft.input_gradients.resize(node.inputs.size());
    draft.instruction.input_gradients.resize(node.inputs.size());
    for (size_t k = node.inputs.size(); k-- > 0;) {
      const ValueId input = node.inputs[k];
      draft.instruction.input_gradients[k].adds = adds_to_gradient(input);
      draft.input_gradients[k] = gradient_cell(input);
    }
    drafts_.push_back(std::move(draft));
  }

  // Columns of a gradient that instructions have written.
  struct WrittenColumns {
    int64_t first, last;
  };

  // Have other operations left something where the gradient of `value` lies? It is about to be written.
  bool adds_to_gradient(ValueId value) {
    has_gradient_.insert(value);
    const auto [owner, first] = network_.view_of(value);
    const WrittenColumns own{first, first + network_.width_of(value)};
    std::vector<WrittenColumns>& written = written_[owner];
    if (owner != value && written.empty()) clear(owner);
    const bool adds = std::ranges::any_of(
        written, [&](const WrittenColumns& other) { return other.first < own.last && own.first < other.last; });
    written.push_back(own);
    return adds;
  }

  // Before the first view of a gradient is written: columns that no view covers have none.
  void clear(ValueId owner) {
    Draft draft;
    draft.instruction = {Instruction::Kind::kZero, network_.maker_of(owner), {}, {}, {}, {}};
    draft.output_gradient = gradient_cell(owner);
    drafts_.push_back(std::move(draft));
  }

  SlotStep step_of(const Draft& draft) const {
    SlotStep step{draft.input_gradients};
    step.cells.insert(step.cells.end(), {draft.output, draft.output_gradient});
    step.cells.insert(step.cells.end(), draft.inputs.begin(), draft.inputs.end());
    const Node& node = network_.nodes[draft.instruction.node];
    if (draft.instruction.kind == Instruction::Kind::kZero || !works_in_place(node.operation) ||
        network_.is_view(node.inputs[0]))
      return step;
    if (draft.instruction.kind == Instruction::Kind::kForward) {
      step.replaced = draft.inputs[0];
      step.by = draft.output;
    } else if (!draft.instruction.input_gradients[0].adds) {
      step.replaced = draft.output_gradient;
      step.by = draft.input_gradients[0];
    }
    return step;
  }

  Place place_of(Cell cell, ValueId value) const {
    if (cell == kAbsent) return {};
    const auto [owner, first] = network_.view_of(value);
    return {slots_.slot_of[index(cell)], first, network_.width_of(value), network_.width_of(owner), false};
  }
  Place value_place(Cell cell, ValueId value) const {
    Place place = place_of(cell, value);
    place.needed_rows_only = place && is_short_[index(owner_of(value))];
    return place;
  }

  Instruction finished(const Draft& draft) const {
    Instruction instruction = draft.instruction;
    const Node& node = network_.nodes[instruction.node];
    for (size_t i = 0; i < draft.inputs.size(); ++i)
      instruction.inputs.push_back(value_place(draft.inputs[i], node.inputs[i]));
    instruction.output = value_place(draft.output, node.output);
    instruction.output_gradient = place_of(draft.output_gradient, node.output);
    for (size_t i = 0; i < draft.input_gradients.size(); ++i)
      instruction.input_gradients[i].place = place_of(draft.input_gradients[i], node.inputs[i]);
    return instruction;
  }

  const Network& network_;
  const PassOptions& options_;
  std::vector<bool> is_short_, kept_;
  std::vector<Draft> drafts_;
  std::vector<int64_t> cell_widths_;
  std::vector<Cell> value_cells_, gradient_cells_;  // by ValueId, of no views; of values the last one made
  std::set<ValueId> recomputed_, has_gradient_;
  std::map<ValueId, std::vector<WrittenColumns>> written_;  // of values that are no views
  SlotPlan slots_;
};

}  // namespace

// Backwards from the output: a row is needed when a row that reads it is.
std::vector<bool> short_values(const Network& network) {
  std::vector<bool> is_short(network.value_widths.size(), true);
  for (auto node = network.nodes.rbegin(); node != network.nodes.rend(); ++node)
    for (size_t i = 0; i < node->inputs.size(); ++i)
      if (!is_short[static_cast<size_t>(node->output)] || reads_earlier_rows(node->operation, i))
        is_short[static_cast<size_t>(node->inputs[i])] = false;
  return is_short;
}

PassPlan plan_pass(const Network& network, const PassOptions& options) { return Planner(network, options).plan(); }

std::vector<LiveValue> live_values(const Network& network, const PassPlan& plan, size_t node) {
  std::set<ValueId> read = {network.view_of(network.head.hidden).owner};
  for (size_t i = node; i < network.nodes.size(); ++i)
    for (ValueId input : network.nodes[i].inputs) read.insert(network.view_of(input).owner);
  std::vector<LiveValue> live;
  for (size_t i = 0; i < node; ++i)
    if (const ValueId made = network.nodes[i].output; read.contains(made))
      live.push_back({made, plan.forward[i].output});
  return live;
}

}  // namespace thimble
