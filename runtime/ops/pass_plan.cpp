// pass_plan.cpp: first the instructions with the cells that each reads and writes, then lifetimes of cells, then slots.
#include "runtime/ops/pass_plan.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "runtime/ops/slot_pool.h"

namespace thimble {
namespace {

// What needs a place: a value, the same computed once more for the backward pass, or a gradient.
using Cell = int32_t;

struct Draft {
  Instruction instruction;
  std::vector<Cell> inputs;  // kAbsent: not read
  Cell output = kAbsent;
  Cell output_gradient = kAbsent;
  std::vector<Cell> input_gradients;
  bool writes_output = true;  // else it reads it
};

// Values that a backward pass finds where the forward pass left them.
std::vector<bool> kept_values(const Network& network) {
  std::vector<bool> is_kept(network.value_widths.size());
  for (const Node& node : network.nodes) {
    const Operation& operation = node.operation;
    is_kept[static_cast<size_t>(node.output)] = std::holds_alternative<op::Linear>(operation) ||
                                                std::holds_alternative<op::Gather>(operation) ||
                                                std::holds_alternative<op::Attention>(operation);
    for (ValueId input : node.inputs)
      if (network.nodes[network.maker_of(input)].layer != node.layer) is_kept[static_cast<size_t>(input)] = true;
  }
  is_kept[static_cast<size_t>(network.head.hidden)] = true;
  return is_kept;
}

// Which inputs the transpose of an operation reads.
std::vector<bool> inputs_read_backwards(const Operation& operation, const PassOptions& options) {
  struct Reads {
    const PassOptions& options;
    std::vector<bool> operator()(const op::Gather&) const { return {}; }
    std::vector<bool> operator()(const op::Linear&) const { return {options.reads_linear_inputs}; }
    std::vector<bool> operator()(const op::Add& o) const {
      return {false, o.scale != kAbsent && options.has_vector_gradients};
    }
    std::vector<bool> operator()(const op::RmsNorm&) const { return {true}; }
    std::vector<bool> operator()(const op::LayerNorm&) const { return {true}; }
    std::vector<bool> operator()(const op::Heads&) const { return {true}; }
    std::vector<bool> operator()(const op::Attention&) const { return {true, true, true}; }
    std::vector<bool> operator()(const op::Activate&) const { return {true}; }
    std::vector<bool> operator()(const op::Gate&) const { return {true, true}; }
    std::vector<bool> operator()(const op::Mix&) const {
      return {options.has_vector_gradients, options.has_vector_gradients};
    }
    std::vector<bool> operator()(const op::Skip& o) const {
      return {o.gate != kAbsent && options.has_vector_gradients, options.has_vector_gradients};
    }
    std::vector<bool> operator()(const op::Smear&) const { return {options.has_vector_gradients}; }
    std::vector<bool> operator()(const op::Columns&) const { return {false}; }
  };
  return std::visit(Reads{options}, operation);
}

class Planner {
 public:
  Planner(const Network& network, const PassOptions& options)
      : network_(network), options_(options), is_short_(short_values(network)), kept_(kept_values(network)) {
    const size_t values = network.value_widths.size();
    value_cells_.assign(values, kAbsent);
    gradient_cells_.assign(values, kAbsent);
  }

  PassPlan plan() {
    for (size_t i = 0; i < network_.nodes.size(); ++i) forward(i);
    const size_t forward_count = drafts_.size();
    const Cell hidden = value_cells_[static_cast<size_t>(network_.head.hidden)];
    if (options_.has_backward) {
      hidden_gradient_ = gradient_cell(network_.head.hidden);
      hidden_gradient_made_ = forward_count - 1;
      backward();
    }
    find_lifetimes(hidden, forward_count);
    assign_slots();
    PassPlan plan;
    plan.slot_widths = slots_.widths();
    plan.hidden = place_of(hidden);
    if (hidden_gradient_ != kAbsent) plan.hidden_gradient = place_of(hidden_gradient_);
    for (size_t i = 0; i < drafts_.size(); ++i)
      (i < forward_count ? plan.forward : plan.backward).push_back(finished(drafts_[i]));
    return plan;
  }

 private:
  struct CellInfo {
    ValueId value = kAbsent;
    bool is_gradient = false;
    Cell owner = kAbsent;  // of a view of columns: the cell in which it lies
    size_t first = 0, last = 0;
    int32_t slot = kAbsent;
  };

  Cell new_cell(ValueId value, bool is_gradient, Cell owner) {
    cells_.push_back({value, is_gradient, owner, drafts_.size(), drafts_.size(), kAbsent});
    return static_cast<Cell>(cells_.size()) - 1;
  }
  const Node& maker_of(ValueId value) const { return network_.nodes[network_.maker_of(value)]; }
  bool is_view(ValueId value) const { return std::holds_alternative<op::Columns>(maker_of(value).operation); }
  bool is_kept(ValueId value) const {
    return kept_[static_cast<size_t>(is_view(value) ? maker_of(value).inputs[0] : value)];
  }

  void forward(size_t at) {
    const Node& node = network_.nodes[at];
    Draft draft;
    draft.instruction = {Instruction::Kind::kForward, at, {}, {}, {}, {}};
    for (ValueId input : node.inputs) draft.inputs.push_back(value_cells_[static_cast<size_t>(input)]);
    const Cell owner = is_view(node.output) ? value_cells_[static_cast<size_t>(node.inputs[0])] : kAbsent;
    draft.output = value_cells_[static_cast<size_t>(node.output)] = new_cell(node.output, false, owner);
    drafts_.push_back(std::move(draft));
  }

  // Makes sure that a value is at hand for transposes.
  Cell ensure(ValueId value) {
    if (!is_kept(value) && !recomputed_.contains(value)) {
      recomputed_.insert(value);
      const size_t maker = network_.maker_of(value);
      for (ValueId input : network_.nodes[maker].inputs) ensure(input);
      forward(maker);
    }
    return value_cells_[static_cast<size_t>(value)];
  }

  // The gradient of a view is a view of its owner's gradient.
  Cell gradient_cell(ValueId value) {
    Cell& cell = gradient_cells_[static_cast<size_t>(value)];
    if (cell == kAbsent) {
      const Cell owner = is_view(value) ? gradient_cell(maker_of(value).inputs[0]) : kAbsent;
      cell = new_cell(value, true, owner);
    }
    return cell;
  }

  void backward() {
    adds_to_gradient(network_.head.hidden);
    for (size_t i = network_.nodes.size(); i-- > 0;) {
      const Node& node = network_.nodes[i];
      if (!has_gradient_.contains(node.output)) continue;
      if (is_view(node.output)) {  // what its readers left lies in place
        has_gradient_.insert(node.inputs[0]);
        continue;
      }
      transpose(i);
    }
  }

  void transpose(size_t at) {
    const Node& node = network_.nodes[at];
    const std::vector<bool> reads = inputs_read_backwards(node.operation, options_);
    Draft draft;
    draft.instruction = {Instruction::Kind::kBackward, at, {}, {}, {}, {}};
    draft.writes_output = false;
    for (size_t k = 0; k < node.inputs.size(); ++k) draft.inputs.push_back(reads[k] ? ensure(node.inputs[k]) : kAbsent);
    if (options_.reads_linear_outputs && std::holds_alternative<op::Linear>(node.operation))
      draft.output = value_cells_[static_cast<size_t>(node.output)];
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
    WrittenColumns own{0, network_.width_of(value)};
    ValueId owner = value;
    for (; is_view(owner); owner = maker_of(owner).inputs[0]) {
      const int64_t first = std::get<op::Columns>(maker_of(owner).operation).first;
      own = {own.first + first, own.last + first};
    }
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
    draft.writes_output = false;
    drafts_.push_back(std::move(draft));
  }

  Cell owner_of(Cell cell) const {
    const Cell owner = cells_[static_cast<size_t>(cell)].owner;
    return owner == kAbsent ? cell : owner_of(owner);
  }

  void find_lifetimes(Cell hidden, size_t forward_count) {
    for (CellInfo& cell : cells_) cell.first = SIZE_MAX, cell.last = 0;
    auto use = [&](Cell cell, size_t at) {
      if (cell == kAbsent) return;
      CellInfo& info = cells_[static_cast<size_t>(owner_of(cell))];
      info.first = std::min(info.first, at);
      info.last = std::max(info.last, at);
    };
    for (size_t i = 0; i < drafts_.size(); ++i) {
      const Draft& draft = drafts_[i];
      for (const std::vector<Cell>* cells : {&draft.inputs, &draft.input_gradients})
        for (Cell cell : *cells) use(cell, i);
      use(draft.output, i);
      use(draft.output_gradient, i);
    }
    use(hidden, forward_count);  // the head reads it between the two passes
    use(hidden_gradient_, hidden_gradient_made_);
  }

  static Cell written_first(const Draft& draft) {
    return draft.instruction.kind == Instruction::Kind::kForward ? draft.output : draft.input_gradients[0];
  }

  // The cell whose place what an instruction writes first may take.
  Cell replaced_by_output(const Draft& draft, size_t at) const {
    const Node& node = network_.nodes[draft.instruction.node];
    if (draft.instruction.kind == Instruction::Kind::kZero || !works_in_place(node.operation)) return kAbsent;
    const bool is_forward = draft.instruction.kind == Instruction::Kind::kForward;
    const Cell from = is_forward ? draft.inputs[0] : draft.output_gradient;
    const Cell to = written_first(draft);
    if (!is_forward && draft.instruction.input_gradients[0].adds) return kAbsent;
    if (owner_of(from) != from || owner_of(to) != to || cells_[static_cast<size_t>(from)].last != at) return kAbsent;
    if (is_forward && std::ranges::count(draft.inputs, from) > 1) return kAbsent;
    return network_.width_of(cells_[static_cast<size_t>(from)].value) ==
                   network_.width_of(cells_[static_cast<size_t>(to)].value)
               ? from
               : kAbsent;
  }

  void assign_slots() {
    for (size_t i = 0; i < drafts_.size(); ++i) {
      const Draft& draft = drafts_[i];
      if (hidden_gradient_ != kAbsent && i == hidden_gradient_made_) give_slot(hidden_gradient_, kAbsent);
      const Cell replaced = replaced_by_output(draft, i);
      if (replaced != kAbsent) give_slot(written_first(draft), replaced);
      std::vector<Cell> used = draft.input_gradients;
      used.insert(used.end(), {draft.output, draft.output_gradient});
      for (Cell cell : used) {
        if (cell == kAbsent) continue;
        const CellInfo& owner = cells_[static_cast<size_t>(owner_of(cell))];
        if (owner.slot == kAbsent && owner.first == i) give_slot(owner_of(cell), kAbsent);
      }
      free_after(i, replaced);
    }
  }

  void give_slot(Cell cell, Cell replaced) {
    CellInfo& info = cells_[static_cast<size_t>(cell)];
    info.slot =
        replaced == kAbsent ? slots_.take(network_.width_of(info.value)) : cells_[static_cast<size_t>(replaced)].slot;
  }

  void free_after(size_t at, Cell replaced) {
    for (size_t c = 0; c < cells_.size(); ++c) {
      const CellInfo& info = cells_[c];
      if (info.slot != kAbsent && info.last == at && info.owner == kAbsent && static_cast<Cell>(c) != replaced)
        slots_.give_back(info.slot);
    }
  }

  Place place_of(Cell cell) const {
    if (cell == kAbsent) return {};
    const CellInfo& info = cells_[static_cast<size_t>(cell)];
    const CellInfo& owner = cells_[static_cast<size_t>(owner_of(cell))];
    Place place{owner.slot, 0, network_.width_of(info.value), network_.width_of(owner.value),
                !info.is_gradient && is_short_[static_cast<size_t>(owner.value)]};
    for (Cell at = cell; cells_[static_cast<size_t>(at)].owner != kAbsent; at = cells_[static_cast<size_t>(at)].owner)
      place.first_column += std::get<op::Columns>(maker_of(cells_[static_cast<size_t>(at)].value).operation).first;
    return place;
  }

  Instruction finished(const Draft& draft) const {
    Instruction instruction = draft.instruction;
    for (Cell input : draft.inputs) instruction.inputs.push_back(place_of(input));
    instruction.output = place_of(draft.output);
    instruction.output_gradient = place_of(draft.output_gradient);
    for (size_t i = 0; i < draft.input_gradients.size(); ++i)
      instruction.input_gradients[i].place = place_of(draft.input_gradients[i]);
    return instruction;
  }

  const Network& network_;
  const PassOptions& options_;
  std::vector<bool> is_short_, kept_;
  std::vector<Draft> drafts_;
  std::vector<CellInfo> cells_;
  std::vector<Cell> value_cells_, gradient_cells_;  // by ValueId; of values the last one made
  std::set<ValueId> recomputed_, has_gradient_;
  std::map<ValueId, std::vector<WrittenColumns>> written_;  // of values that are no views
  Cell hidden_gradient_ = kAbsent;
  size_t hidden_gradient_made_ = 0;  // while this instruction runs, at the latest
  SlotPool slots_;
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

int64_t PassPlan::elements_per_row() const {
  return std::accumulate(slot_widths.begin(), slot_widths.end(), int64_t{0});
}

PassPlan plan_pass(const Network& network, const PassOptions& options) { return Planner(network, options).plan(); }

std::vector<LiveValue> live_values(const Network& network, const PassPlan& plan, size_t node) {
  std::set<ValueId> read = {network.head.hidden};
  for (size_t i = network.nodes.size(); i-- > 0;) {
    const Node& later = network.nodes[i];
    const bool is_view = std::holds_alternative<op::Columns>(later.operation);
    if (i >= node || (is_view && read.contains(later.output))) read.insert(later.inputs.begin(), later.inputs.end());
  }
  std::vector<LiveValue> live;
  for (size_t i = 0; i < node; ++i) {
    const Node& made = network.nodes[i];
    if (read.contains(made.output) && !std::holds_alternative<op::Columns>(made.operation))
      live.push_back({made.output, plan.forward[i].output});
  }
  return live;
}

}  // namespace thimble
