// fusion_plan.cpp: what composites read and write, how long values live, which slots they take; then copies of what is
// read once only the needed rows are left; and what of it all can be shown.
#include "runtime/ops/fusion_plan.h"

#include <algorithm>
#include <cassert>

#include "runtime/ops/slot_pool.h"
#include "runtime/tensor/host_device.h"

namespace thimble {
namespace {

class PlacePlanner {
 public:
  PlacePlanner(const Network& network, Fusion& fusion)
      : network_(network), fusion_(fusion), lives_(network.value_widths.size()), made_(network.value_widths.size()) {}

  void run() {
    const size_t values = network_.value_widths.size();
    fusion_.places.assign(values, {});
    fusion_.has_padded_heads.assign(values, false);
    is_view_.assign(values, false);
    for (const Composite& composite : fusion_.composites)
      if (const auto* single = std::get_if<fused::Single>(&composite.work)) {
        const Node& node = network_.nodes[single->node];
        is_view_[index(node.output)] = std::holds_alternative<op::Columns>(node.operation);
      }
    for (size_t i = 0; i < fusion_.composites.size(); ++i) visit(i);
    use(fusion_.head.value, fusion_.composites.size());
    for (size_t i = 0; i < fusion_.composites.size(); ++i) assign(i);
    fusion_.slot_widths = slots_.widths();
    plan_compaction();
  }

 private:
  struct Life {
    size_t last = 0;
    int32_t slot = kAbsent;
    bool is_made = false;
  };

  template <typename Id>
  static size_t index(Id id) {
    return static_cast<size_t>(id);
  }
  Life& life(ValueId value) { return lives_[index(owner_of(value))]; }
  ValueId owner_of(ValueId value) const {
    while (is_view_[index(value)]) value = network_.nodes[network_.maker_of(value)].inputs[0];
    return value;
  }

  void use(ValueId value, size_t at) {
    assert(life(value).is_made);
    life(value).last = std::max(life(value).last, at);
  }

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
      fusion_.has_padded_heads[index(project->queries)] = true;
    } else if (const auto* attend = std::get_if<fused::Attend>(&composite.work)) {
      read(attend->query);
      if (attend->is_projected) {
        fusion_.has_padded_heads[index(attend->output)] = true;
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
    }
    for (ValueId value : composite.reads) use(value, i);
    for (ValueId value : composite.writes) {
      life(value).is_made = true;
      life(value).last = std::max(life(value).last, i);
      made_[index(value)] = i;
    }
  }

  // The composite that reads or makes the queries knows their heads.
  int64_t stored_width(ValueId value) const {
    const int64_t width = network_.width_of(value);
    if (!fusion_.has_padded_heads[index(value)]) return round_up(width, fusion_.options.column_multiple);
    for (const Composite& composite : fusion_.composites)
      if (const auto* attend = std::get_if<fused::Attend>(&composite.work))
        if (attend->is_projected && (attend->query == value || attend->output == value))
          return attend->attention.heads * padded_head_width(attend->attention.head_dim);
    assert(false);
    return width;
  }

  // The value whose place a composite writes its first output to; kAbsent: to a new one.
  ValueId replaced(const Composite& composite, size_t i) {
    if (const auto* attend = std::get_if<fused::Attend>(&composite.work))
      return attend->is_projected ? attend->query : kAbsent;
    if (const auto* add = std::get_if<fused::LinearAdd>(&composite.work)) return add->residual;
    const auto* single = std::get_if<fused::Single>(&composite.work);
    if (!single) return kAbsent;
    const Node& node = network_.nodes[single->node];
    if (!works_in_place(node.operation)) return kAbsent;
    const ValueId input = node.inputs[0];
    const bool dies = owner_of(input) == input && life(input).last == i && std::ranges::count(node.inputs, input) == 1;
    return dies && stored_width(input) == stored_width(node.output) ? input : kAbsent;
  }

  void place(ValueId value, int32_t slot) {
    life(value).slot = slot;
    const int64_t stride = stored_width(value);
    fusion_.places[index(value)] = {slot, 0, network_.width_of(value), stride, false};
  }

  void place_view(ValueId value) {
    const Node& maker = network_.nodes[network_.maker_of(value)];
    const auto& columns = std::get<op::Columns>(maker.operation);
    Place place = fusion_.places[index(maker.inputs[0])];
    place.first_column += columns.first;
    place.width = columns.count;
    fusion_.places[index(value)] = place;
  }

  void assign(size_t i) {
    Composite& composite = fusion_.composites[i];
    const ValueId given_up = replaced(composite, i);
    for (ValueId value : composite.writes) {
      if (is_view_[index(value)]) {
        place_view(value);
      } else if (given_up != kAbsent && value == composite.writes[0]) {
        assert(life(given_up).last == i && stored_width(given_up) == stored_width(value));
        place(value, life(given_up).slot);
      } else {
        place(value, slots_.take(stored_width(value)));
      }
    }
    assign_scratch(i, composite);
    for (size_t v = 0; v < lives_.size(); ++v) {
      const auto value = static_cast<ValueId>(v);
      if (lives_[v].slot == kAbsent || lives_[v].last != i || value == given_up) continue;
      slots_.give_back(lives_[v].slot);
    }
    if (composite.scratch != kAbsent) slots_.give_back(composite.scratch);
    if (i == 1 && fusion_.shared_scratch != kAbsent) slots_.give_back(fusion_.shared_scratch);
  }

  void assign_scratch(size_t i, Composite& composite) {
    if (const auto* attend = std::get_if<fused::Attend>(&composite.work); attend && !attend->is_projected) {
      const int64_t d = attend->attention.head_dim, padded = padded_head_width(d);
      if (padded != d) composite.scratch = slots_.take(attend->attention.heads * padded);
    }
    if (i == 0 && may_share_rows()) {
      int64_t widest = 0;
      for (const Composite& other : fusion_.composites)
        for (ValueId value : other.writes) widest = std::max(widest, stored_width(value));
      fusion_.shared_scratch = slots_.take(widest);
    }
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
      const ValueId given_up = replaced(composite, later);
      for (ValueId value : composite.writes) {
        Place place = fusion_.places[index(value)];
        const Place from = given_up == kAbsent ? Place{} : fusion_.compact_places[index(given_up)];
        if (from && value == composite.writes[0]) place.slot = from.slot;
        place.needed_rows_only = true;
        fusion_.compact_places[index(value)] = place;
      }
    }
  }

  const Network& network_;
  Fusion& fusion_;
  std::vector<bool> is_view_;  // by ValueId: columns of another value, for those who stand alone
  std::vector<Life> lives_;    // by ValueId; of views those of what they view
  std::vector<size_t> made_;   // by ValueId: the composite
  SlotPool slots_;
};

}  // namespace

void plan_places(const Network& network, Fusion& fusion) { PlacePlanner(network, fusion).run(); }

ShownValue shown_value(const Network& network, const Fusion& fusion, ValueId value) {
  if (fusion.places[static_cast<size_t>(value)]) return {ShownValue::Kind::kStored, {value}, 0};
  const size_t at = network.maker_of(value);
  if (std::holds_alternative<op::Gather>(network.nodes[at].operation)) return {ShownValue::Kind::kGathered, {}, at};
  const auto* norm = std::get_if<op::RmsNorm>(&network.nodes[at].operation);
  assert(norm && norm->gain == kAbsent);
  return {ShownValue::Kind::kNormed, {network.nodes[at].inputs[0], true, norm->factor, norm->epsilon}, 0};
}

}  // namespace thimble
