// plan_check.cpp: see plan_check.h.
#include "tests/runtime/ops/plan_check.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace thimble {
namespace {

// What a column of a slot holds.
struct Content {
  ValueId value = kAbsent;
  int64_t column = 0;      // of the value
  int64_t gradients = -1;  // -1: the value; else a gradient of which so many readers have left their part
  bool operator==(const Content&) const = default;
};

class PlanCheck {
 public:
  PlanCheck(const Network& network, const PassOptions& options)
      : network_(network), options_(options), plan_(plan_pass(network, options)) {
    for (int64_t width : plan_.slot_widths) slots_.emplace_back(static_cast<size_t>(width));
  }

  void run() {
    ASSERT_EQ(plan_.forward.size(), network_.nodes.size());
    for (size_t i = 0; i < plan_.forward.size(); ++i) {
      EXPECT_EQ(plan_.forward[i].node, i);
      EXPECT_EQ(plan_.forward[i].kind, Instruction::Kind::kForward);
      forward(plan_.forward[i]);
    }
    expect_value(plan_.hidden, network_.head.hidden);
    if (!options_.has_backward) {
      EXPECT_TRUE(plan_.backward.empty());
      return;
    }
    count_readers();
    EXPECT_NE(plan_.hidden.slot, plan_.hidden_gradient.slot);
    write(plan_.hidden_gradient, network_.head.hidden, 1);
    for (const Instruction& instruction : plan_.backward) {
      SCOPED_TRACE(::testing::Message() << "node " << instruction.node);
      switch (instruction.kind) {
        case Instruction::Kind::kForward: forward(instruction); break;
        case Instruction::Kind::kZero:
          write(instruction.output_gradient, network_.nodes[instruction.node].output, 0);
          break;
        case Instruction::Kind::kBackward: backward(instruction); break;
      }
    }
    EXPECT_EQ(transposed_, expected_);
  }

 private:
  const Node& node_of(const Instruction& instruction) const { return network_.nodes[instruction.node]; }
  bool is_view(ValueId value) const {
    return std::holds_alternative<op::Columns>(network_.nodes[network_.maker_of(value)].operation);
  }

  std::span<Content> columns(const Place& place) {
    EXPECT_LT(static_cast<size_t>(place.slot), slots_.size());
    EXPECT_LE(place.first_column + place.width, place.stride);
    EXPECT_LE(place.stride, plan_.slot_widths[static_cast<size_t>(place.slot)]);
    return std::span(slots_[static_cast<size_t>(place.slot)])
        .subspan(static_cast<size_t>(place.first_column), static_cast<size_t>(place.width));
  }
  // A value's columns are those of what it is a view of.
  Content content(ValueId value, int64_t column) const {
    while (is_view(value)) {
      const Node& view = network_.nodes[network_.maker_of(value)];
      column += std::get<op::Columns>(view.operation).first;
      value = view.inputs[0];
    }
    return {value, column, -1};
  }
  void expect_value(const Place& place, ValueId value) {
    EXPECT_EQ(place.width, network_.width_of(value));
    const std::span<Content> found = columns(place);
    for (int64_t c = 0; c < place.width; ++c)
      ASSERT_EQ(found[static_cast<size_t>(c)], content(value, c)) << "value " << value << " column " << c;
  }
  void write(const Place& place, ValueId value, int64_t gradients) {
    EXPECT_EQ(place.width, network_.width_of(value));
    const std::span<Content> to = columns(place);
    for (int64_t c = 0; c < place.width; ++c) {
      to[static_cast<size_t>(c)] = content(value, c);
      to[static_cast<size_t>(c)].gradients = gradients;
    }
  }

  static bool same_place(const Place& a, const Place& b) {
    return a.slot == b.slot && a.first_column == b.first_column && a.width == b.width && a.stride == b.stride;
  }

  void forward(const Instruction& instruction) {
    const Node& node = node_of(instruction);
    ASSERT_EQ(instruction.inputs.size(), node.inputs.size());
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      expect_value(instruction.inputs[i], node.inputs[i]);
      // Rows that an output needs of an input are there.
      if (instruction.inputs[i].needed_rows_only && !std::holds_alternative<op::Columns>(node.operation)) {
        EXPECT_TRUE(instruction.output.needed_rows_only && !reads_earlier_rows(node.operation, i));
      }
    }
    if (std::holds_alternative<op::Columns>(node.operation)) return expect_value(instruction.output, node.output);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (instruction.inputs[i].slot != instruction.output.slot) continue;
      EXPECT_EQ(i, 0u);
      EXPECT_TRUE(works_in_place(node.operation));
      EXPECT_TRUE(same_place(instruction.inputs[i], instruction.output));
    }
    write(instruction.output, node.output, -1);
  }

  // Of every column of every gradient, how many readers have a part in it.
  void count_readers() {
    std::set<ValueId> has_gradient = {network_.head.hidden};
    add_reader(network_.head.hidden);
    for (size_t i = network_.nodes.size(); i-- > 0;) {
      const Node& node = network_.nodes[i];
      if (!has_gradient.contains(node.output)) continue;
      has_gradient.insert(node.inputs.begin(), node.inputs.end());
      if (std::holds_alternative<op::Columns>(node.operation)) continue;
      expected_.insert(i);
      for (ValueId input : node.inputs) add_reader(input);
    }
  }
  void add_reader(ValueId value) {
    for (int64_t c = 0; c < network_.width_of(value); ++c) {
      const Content column = content(value, c);
      ++readers_[{column.value, column.column}];
    }
  }

  void backward(const Instruction& instruction) {
    const Node& node = node_of(instruction);
    EXPECT_TRUE(transposed_.insert(instruction.node).second);
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (instruction.inputs[i]) expect_value(instruction.inputs[i], node.inputs[i]);
    if ((options_.reads_linear_outputs && std::holds_alternative<op::Linear>(node.operation)) ||
        (options_.reads_attention_outputs && std::holds_alternative<op::Attention>(node.operation))) {
      ASSERT_TRUE(static_cast<bool>(instruction.output));
      expect_value(instruction.output, node.output);
    }
    if (options_.reads_linear_inputs && std::holds_alternative<op::Linear>(node.operation)) {
      EXPECT_TRUE(static_cast<bool>(instruction.inputs[0]));
    }
    expect_complete_gradient(instruction.output_gradient, node.output);
    ASSERT_EQ(instruction.input_gradients.size(), node.inputs.size());
    expect_apart(instruction, node);
    for (size_t i = node.inputs.size(); i-- > 0;) leave_part(instruction.input_gradients[i], node.inputs[i]);
  }

  void expect_complete_gradient(const Place& place, ValueId value) {
    const std::span<Content> found = columns(place);
    for (int64_t c = 0; c < place.width; ++c) {
      Content expected = content(value, c);
      const auto readers = readers_.find({expected.value, expected.column});
      expected.gradients = readers == readers_.end() ? 0 : readers->second;  // what nobody reads was cleared
      ASSERT_EQ(found[static_cast<size_t>(c)], expected) << "gradient of value " << value << " column " << c;
    }
  }

  // Places that a transpose writes are no places that it reads, but that of the output's gradient for the first input.
  void expect_apart(const Instruction& instruction, const Node& node) const {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const GradientPlace& to = instruction.input_gradients[i];
      for (const Place& from : instruction.inputs)
        if (from) {
          EXPECT_NE(from.slot, to.place.slot);
        }
      if (instruction.output) {
        EXPECT_NE(instruction.output.slot, to.place.slot);
      }
      if (to.place.slot != instruction.output_gradient.slot) continue;
      EXPECT_EQ(i, 0u);
      EXPECT_FALSE(to.adds);
      EXPECT_TRUE(works_in_place(node.operation));
      EXPECT_TRUE(same_place(to.place, instruction.output_gradient));
    }
  }

  void leave_part(const GradientPlace& to, ValueId input) {
    EXPECT_EQ(to.place.width, network_.width_of(input));
    const std::span<Content> found = columns(to.place);
    for (int64_t c = 0; c < to.place.width; ++c) {
      Content& column = found[static_cast<size_t>(c)];
      Content expected = content(input, c);
      const bool is_there = column.gradients >= 0 && column.value == expected.value && column.column == expected.column;
      if (to.adds) {
        ASSERT_TRUE(is_there) << "nothing to add to for value " << input << " column " << c;
        ++column.gradients;
      } else {
        // What is overwritten was cleared, or was of something else.
        ASSERT_TRUE(!is_there || column.gradients == 0) << "a part of value " << input << " is lost";
        expected.gradients = 1;
        column = expected;
      }
    }
  }

  const Network& network_;
  const PassOptions options_;
  const PassPlan plan_;
  std::vector<std::vector<Content>> slots_;
  std::map<std::pair<ValueId, int64_t>, int64_t> readers_;
  std::set<size_t> expected_, transposed_;
};

}  // namespace

void expect_valid_plan(const Network& network, const PassOptions& options) { PlanCheck(network, options).run(); }

}  // namespace thimble
