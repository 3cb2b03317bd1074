// fusion_plan.cpp: what composites read and write, how long values live, which slots they take; then copies of what is
// read once only the needed rows are left; and what of it all can be shown.
#include "runtime/ops/fusion.h"

#include <algorithm>
#include <cassert>

#include "runtime/ops/slot_plan.h"
#include "runtime/tensor/host_device.h"

namespace thimble {
namespace {

class PlacePlanner {
 public:
  PlacePlanner(const Network& network, Fusion& fusion)
      : network_(network), fusion_(fusion), made_(network.value_widths.size()) {
    for (int64_t width : network.value_widths) strides_.push_back(round_up(width, fusion.options.column_multiple));
  }

  void run() {
    const size_t values = network_.value_widths.size();
    fusion_.places.assign(values, {});
    fusion_.has_padded_heads.assign(values, false);
    is_view_.assign(values, false);
    for (const Composite& composite : fusion_.composites)
      if (const auto* single = std::get_if<fused::Single>(&composite.work)) {
        const ValueId output = network_.nodes[single->node].output;
        is_view_[index(output)] = network_.is_view(output);
      }
    for (size_t i = 0; i < fusion_.composites.size(); ++i) visit(i);
    assign_slots();
    plan_compaction();
  }

 private:
  template <typename Id>
  static size_t index(Id id) {
    return static_cast<size_t>(id);
  }
  // Columns that a composite makes by itself are no view.
  Network::View view_of(ValueId value) const {
    return is_view_[index(value)] ? network_.view_of(value) : Network::View{value, 0};
  }
  ValueId owner_of(ValueId value) const { return view_of(value).owner; }

  // Reads and writes of a composite.
  void visit(size_t i) {
    Composite& composite = fusion_.composites[i];
    auto read = [&](ValueId value) {
      if (value != kAbsent && std::ranges::count(composite.writes, value) == 0) composite.reads.push_back(value);
    };
    auto write = [&](ValueId value) {
      if (value != kAbsent) composite.writes.push_back(value);
    };
    if (const auto* single = std::get_if<fused::Single>(&composite.work)) {
      const Node& node = network_.nodes[single->node];
      for (ValueId input : node.inputs) read(input);
      write(node.output);
    } else if (const auto* embed = std::get_if<fused::Embed>(&composite.work)) {
      write(embed->stream);
      write(embed->start);
    } else if (const auto* project = std::get_if<fused::Project>(&composite.work)) {
      read(project->input.value);
      write(project->queries);
    } else if (const auto* attend = std::get_if<fused::Attend>(&composite.work)) {
      read(attend->query);
      if (attend->is_projected) {
        for (ValueId value : {attend->query, attend->output}) {
          fusion_.has_padded_heads[index(value)] = true;
          strides_[index(value)] = attend->attention.heads * padded_head_width(attend->attention.head_dim);
        }
      } else {
        read(attend->key);
        read(attend->value);
      }
      write(attend->output);
    } else if (const auto* add = std::get_if<fused::LinearAdd>(&composite.work)) {
      write(add->output);
      write(add->sum);
      for (ValueId value : {add->input, add->residual, add->skipped, add->start}) read(value);
    } else if (const auto* activate = std::get_if<fused::LinearActivate>(&composite.work)) {
      read(activate->input.value);
      write(activate->output);
    } else if (const auto* gate = std::get_if<fused::LinearGate>(&composite.work)) {
      read(gate->input.value);
      write(gate->output);
    }
    for (ValueId value : composite.writes) made_[index(value)] = i;
  }

  // The value whose place a composite may write its first output to, where nobody reads it later; kAbsent: to none.
  ValueId replaceable(const Composite& composite) const {
    if (const auto* attend = std::get_if<fused::Attend>(&composite.work))
      return attend->is_projected ? attend->query : kAbsent;
    if (const auto* add = std::get_if<fused::LinearAdd>(&composite.work)) return add->residual;
    const auto* single = std::get_if<fused::Single>(&composite.work);
    if (!single) return kAbsent;
    const Node& node = network_.nodes[single->node];
    return works_in_place(node.operation) && owner_of(node.inputs[0]) == node.inputs[0] ? node.inputs[0] : kAbsent;
  }

  static bool is_single(const Composite& composite) { return std::holds_alternative<fused::Single>(composite.work); }

  // Cells are the values, by ValueId, then scratch.
  void assign_slots() {
    std::vector<int64_t> widths = strides_;
    auto new_cell = [&](int64_t width) {
      widths.push_back(width);
      return static_cast<Cell>(widths.size()) - 1;
    };
    std::vector<SlotStep> steps;
    std::vector<Cell> scratch;  // by composite
    const Cell shared = may_share_rows() ? new_cell(widest_written()) : kAbsent;
    for (const Composite& composite : fusion_.composites) {
      SlotStep& step = steps.emplace_back();
      for (ValueId value : composite.writes) step.cells.push_back(owner_of(value));
      const int64_t width = scratch_width(composite);
      step.cells.push_back(scratch.emplace_back(width > 0 ? new_cell(width) : kAbsent));
      if (steps.size() <= 2) step.cells.push_back(shared);
      for (ValueId value : composite.reads) step.cells.push_back(owner_of(value));
      step.replaced = replaceable(composite);
      step.by = composite.writes[0];
    }
    steps.push_back({{owner_of(fusion_.head.value)}});
    const SlotPlan plan = plan_slots(steps, widths);
    fusion_.slot_widths = plan.widths;
    auto slot = [&](Cell cell) { return cell == kAbsent ? kAbsent : plan.slot_of[index(cell)]; };
    fusion_.shared_scratch = slot(shared);
    for (size_t i = 0; i < fusion_.composites.size(); ++i) {
      fusion_.composites[i].scratch = slot(scratch[i]);
      for (ValueId value : fusion_.composites[i].writes) {
        const auto [owner, first] = view_of(value);
        fusion_.places[index(value)] = {slot(owner), first, network_.width_of(value), strides_[index(owner)], false};
      }
      assert(is_single(fusion_.composites[i]) || steps[i].replaced == kAbsent ||
             slot(steps[i].replaced) == slot(steps[i].by));  // as fused kernels need it
    }
  }

  static int64_t scratch_width(const Composite& composite) {
    const auto* attend = std::get_if<fused::Attend>(&composite.work);
    if (!attend || attend->is_projected) return 0;
    const int64_t d = attend->attention.head_dim, padded = padded_head_width(d);
    return padded == d ? 0 : attend->attention.heads * padded;
  }
  int64_t widest_written() const {
    int64_t widest = 0;
    for (const Composite& composite : fusion_.composites)
      for (ValueId value : composite.writes) widest = std::max(widest, strides_[index(value)]);
    return widest;
  }

  // What an embedding makes depends on tokens alone, not on positions; nor do heads before their rotation.
  bool may_share_rows() const {
    if (fusion_.composites.size() < 2) return false;
    const auto* embed = std::get_if<fused::Embed>(&fusion_.composites[0].work);
    const auto* project = std::get_if<fused::Project>(&fusion_.composites[1].work);
    if (!embed || !project || !project->input.is_normed || project->input.value != embed->stream) return false;
    if (project->has_bias() || project->norm_epsilon == 0) return false;
    // `start` holds the distinct rows to the end: only ends of layers find their own among them.
    return std::ranges::all_of(fusion_.composites, [&](const Composite& other) {
      if (std::ranges::count(other.reads, embed->start) == 0) return true;
      const auto* add = std::get_if<fused::LinearAdd>(&other.work);
      return add && add->start == embed->start && add->input != embed->start && add->residual != embed->start &&
             add->skipped != embed->start;
    });
  }

  void plan_compaction() {
    fusion_.compacts_at = fusion_.composites.size();
    fusion_.compact_places.assign(network_.value_widths.size(), {});
    const std::vector<bool> is_short = short_values(network_);
    for (size_t i = 0; i < fusion_.composites.size(); ++i) {
      const auto* project = std::get_if<fused::Project>(&fusion_.composites[i].work);
      if (!project || !is_short[index(project->queries)]) continue;
      for (size_t later = i; later < fusion_.composites.size(); ++later)
        for (ValueId value : fusion_.composites[later].writes)
          if (!is_short[index(value)]) return;
      fusion_.compacts_at = i;
      return compact_from(i, *project);
    }
  }

  void compact_from(size_t at, const fused::Project& project) {
    auto add = [&](ValueId value) {
      if (std::ranges::count(fusion_.compacted, value) > 0) return;
      fusion_.compacted.push_back(value);
      const int64_t stride = fusion_.places[index(value)].stride;
      fusion_.compact_widths.push_back(stride);
      const auto slot = static_cast<int32_t>(fusion_.slot_widths.size() + fusion_.compact_widths.size() - 1);
      fusion_.compact_places[index(value)] = {slot, 0, network_.width_of(value), stride, true};
    };
    add(owner_of(project.input.value));
    for (size_t later = at + 1; later < fusion_.composites.size(); ++later)
      for (ValueId value : fusion_.composites[later].reads)
        if (made_[index(value)] < at) add(owner_of(value));
    if (made_[index(fusion_.head.value)] < at) add(owner_of(fusion_.head.value));
    for (size_t v = 0; v < fusion_.places.size(); ++v)  // views lie where their owners do
      if (const auto value = static_cast<ValueId>(v); fusion_.places[v] && owner_of(value) != value) {
        Place place = fusion_.compact_places[index(owner_of(value))];
        if (!place) continue;
        place.first_column = fusion_.places[v].first_column;
        place.width = fusion_.places[v].width;
        fusion_.compact_places[v] = place;
      }
    for (size_t later = at; later < fusion_.composites.size(); ++later) {
      const Composite& composite = fusion_.composites[later];
      const ValueId replaced = replaceable(composite);
      for (ValueId value : composite.writes) {
        Place place = fusion_.places[index(value)];
        if (replaced != kAbsent && value == composite.writes[0] && fusion_.places[index(replaced)].slot == place.slot &&
            fusion_.compact_places[index(replaced)])
          place.slot = fusion_.compact_places[index(replaced)].slot;
        place.needed_rows_only = true;
        fusion_.compact_places[index(value)] = place;
      }
    }
  }

  const Network& network_;
  Fusion& fusion_;
  std::vector<bool> is_view_;     // by ValueId: columns of another value, for those who stand alone
  std::vector<size_t> made_;      // by ValueId: the composite
  std::vector<int64_t> strides_;  // by ValueId
};

}  // namespace

void plan_places(const Network& network, Fusion& fusion) { PlacePlanner(network, fusion).run(); }

ShownValue shown_value(const Network& network, const Fusion& fusion, ValueId value) {
  if (fusion.places[static_cast<size_t>(value)]) return {ShownValue::Kind::kStored, {value}, 0};
  const size_t at = network.maker_of(value);
  if (std::holds_alternative<op::Gather>(network.nodes[at].operation)) return {ShownValue::Kind::kGathered, {}, at};
  const auto* norm = std::get_if<op::RmsNorm>(&network.nodes[at].operation);
  assert(norm);
  return {ShownValue::Kind::kNormed, {network.nodes[at].inputs[0], true, norm->factor, norm->epsilon, norm->gain}, 0};
}

}  // namespace thimble
