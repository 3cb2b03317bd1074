// fusion.cpp: the order of matching (embeddings, products around attention, ends of layers, activations), then norms
// that can be deferred, then what is left stands alone. Places follow in fusion_plan.cpp.
#include "runtime/ops/fusion.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <set>

#include "runtime/ops/network_uses.h"

namespace thimble {
namespace {

// A composite being matched: the nodes that it covers, and the linear node at whose input norms may be deferred.
struct Match {
  FusedWork work;
  std::vector<size_t> nodes;
};

class Fuser {
 public:
  Fuser(const Network& network, const FusionOptions& options) : network_(network), options_(options), uses_(network) {}

  // A product table serves all of its readers or none: where one of them did not match, it is banned, and all begins
  // anew.
  Fusion run() {
    while (!match_all()) continue;
    Fusion fusion;
    fusion.options = options_;
    fusion.tables = tables_;
    fusion.head.value = network_.head.hidden;
    defer_norms(fusion);
    for (Match& match : matches_) fusion.composites.push_back({std::move(match.work), trigger_of(match.nodes), {}, {}});
    for (size_t i = 0; i < network_.nodes.size(); ++i)
      if (!is_covered_[i]) fusion.composites.push_back({fused::Single{i}, i, {}, {}});
    std::ranges::stable_sort(fusion.composites, {}, &Composite::trigger);
    plan_places(network_, fusion);
    return fusion;
  }

 private:
  template <typename Id>
  static size_t index(Id id) {
    return static_cast<size_t>(id);
  }
  const Node& node(size_t i) const { return network_.nodes[i]; }
  const Node& maker(ValueId value) const { return node(uses_.maker_of(value)); }
  template <typename Op>
  const Op* made_by(ValueId value) const {
    return std::get_if<Op>(&maker(value).operation);
  }
  int64_t elements(VectorId id) const { return network_.vector(id).count; }

  size_t trigger_of(const std::vector<size_t>& nodes) const {
    size_t last = 0;
    for (size_t i : nodes) {
      if (std::holds_alternative<op::Linear>(node(i).operation)) return i;  // nodes ascend
      last = i;
    }
    return last;
  }

  void add(FusedWork work, std::vector<size_t> nodes) {
    std::ranges::sort(nodes);
    for (size_t i : nodes) is_covered_[i] = true;
    matches_.push_back({std::move(work), std::move(nodes)});
  }
  bool are_free(const std::vector<size_t>& nodes) const {
    return std::ranges::none_of(nodes, [&](size_t i) { return is_covered_[i]; });
  }

  bool match_all() {
    matches_.clear();
    tables_.clear();
    is_covered_.assign(network_.nodes.size(), false);
    if (options_.fuses_products && !network_.nodes.empty()) match_embed();
    for (size_t i = 0; i < network_.nodes.size(); ++i)
      if (std::holds_alternative<op::Attention>(node(i).operation)) match_attention(i);
    if (options_.fuses_products) {
      for (size_t i = 0; i < network_.nodes.size(); ++i) {
        if (is_covered_[i]) continue;
        if (std::holds_alternative<op::Gate>(node(i).operation)) match_linear_gate(i);
        if (std::holds_alternative<op::Linear>(node(i).operation) && !match_linear_add(i)) match_linear_activate(i);
      }
    }
    return tables_are_whole();
  }

  // Products that became tables: are all of their readers covered?
  bool tables_are_whole() {
    for (const ProductTable& table : tables_)
      for (size_t i = 0; i < network_.nodes.size(); ++i) {
        const auto* linear = std::get_if<op::Linear>(&node(i).operation);
        if (!linear || linear->weight != table.product) continue;
        for (size_t reader : uses_.readers_of(node(i).output))
          if (!is_covered_[reader]) {
            banned_.insert(table.product);
            return false;
          }
        is_covered_[i] = is_covered_[uses_.maker_of(node(i).inputs[0])] = true;
      }
    return true;
  }

  // The table that makes a value, if it is a bias-free product of a lookup that nobody else reads.
  std::optional<int32_t> table_of(ValueId value, VectorId scale, int64_t head_dim) {
    const auto* linear = made_by<op::Linear>(value);
    if (!linear || linear->bias != kAbsent || banned_.contains(linear->weight) || !uses_.has_one_use(linear->weight))
      return std::nullopt;
    const ValueId looked_up = maker(value).inputs[0];
    const auto* gather = made_by<op::Gather>(looked_up);
    if (!gather || gather->factor != 1 || !uses_.only_reader_of(looked_up) || value == network_.head.hidden)
      return std::nullopt;
    const ProductTable wanted{gather->table, linear->weight, gather->index, scale, head_dim};
    for (size_t i = 0; i < tables_.size(); ++i) {
      const ProductTable& known = tables_[i];
      if (known.product != wanted.product) continue;
      if (known.scale != wanted.scale || known.head_dim != wanted.head_dim) return std::nullopt;
      return static_cast<int32_t>(i);
    }
    tables_.push_back(wanted);
    return static_cast<int32_t>(tables_.size()) - 1;
  }

  void match_attention(size_t i) {
    const Node& attention = node(i);
    const auto& o = std::get<op::Attention>(attention.operation);
    if (padded_head_width(o.head_dim) == 0) return;
    fused::Attend attend{o, false, attention.inputs[0], attention.inputs[1], attention.inputs[2], attention.output};
    attend.is_projected = options_.fuses_products && match_project(attention, o);
    add(attend, {i});
  }

  struct HeadChain {
    HeadSource source;
    const op::Heads* heads = nullptr;
    ValueId input = kAbsent;
    std::vector<size_t> nodes;
  };

  // From a query, key or value of `attention` back to the matrix that makes it.
  std::optional<HeadChain> head_chain(ValueId value) const {
    HeadChain chain;
    auto step_to = [&](ValueId at) { chain.nodes.push_back(uses_.maker_of(at)); };
    if (!uses_.only_reader_of(value)) return std::nullopt;
    if (const auto* heads = made_by<op::Heads>(value)) {
      chain.heads = heads;
      step_to(value);
      value = maker(value).inputs[0];
      if (!uses_.only_reader_of(value)) return std::nullopt;
    }
    chain.source.rows = network_.width_of(value);
    if (const auto* columns = made_by<op::Columns>(value)) {
      chain.source.first_row = columns->first;
      step_to(value);
      value = maker(value).inputs[0];
    }
    const auto* linear = made_by<op::Linear>(value);
    if (!linear || !uses_.has_one_use(linear->weight) || value == network_.head.hidden) return std::nullopt;
    chain.source.weight = linear->weight;
    chain.source.bias = linear->bias;
    chain.input = maker(value).inputs[0];
    step_to(value);
    return chain;
  }

  // Do all who read a product that several heads share belong to these nodes?
  bool are_only_readers(const std::vector<size_t>& nodes) const {
    return std::ranges::all_of(nodes, [&](size_t i) {
      if (!std::holds_alternative<op::Linear>(node(i).operation)) return true;
      const std::vector<size_t>& readers = uses_.readers_of(node(i).output);
      return readers.size() == 1 ||
             std::ranges::all_of(readers, [&](size_t r) { return std::ranges::count(nodes, r) > 0; });
    });
  }

  static bool heads_agree(const op::Heads* query, const op::Heads* key, const op::Attention& attention) {
    if (!query && !key) return true;
    if (!query || !key || query->norm_gain != kAbsent || key->norm_gain != kAbsent || key->head_gain != kAbsent)
      return false;
    return query->epsilon == key->epsilon && query->rotary == key->rotary && query->head_dim == attention.head_dim &&
           key->head_dim == attention.head_dim;
  }

  bool match_project(const Node& attention, const op::Attention& o) {
    fused::Project project;
    ValueId value = attention.inputs[2];
    std::vector<size_t> nodes;
    const size_t tables = tables_.size();
    if (const auto* sum = made_by<op::Add>(value); sum && uses_.only_reader_of(value)) {
      if (sum->scale == kAbsent || elements(sum->scale) != 1) return false;
      const std::optional<int32_t> table = table_of(maker(value).inputs[1], kAbsent, o.head_dim);
      if (!table || tables_[index(*table)].index.kind != RowIndex::Kind::kToken) return false;
      project.value_table = *table;
      project.value_scale = sum->scale;
      nodes.push_back(uses_.maker_of(value));
      value = maker(value).inputs[0];
    }
    const auto query = head_chain(attention.inputs[0]), key = head_chain(attention.inputs[1]), own = head_chain(value);
    bool fits = query && key && own && !own->heads && query->input == key->input && key->input == own->input &&
                heads_agree(query->heads, key->heads, o) && output_may_be_padded(attention.output, o);
    if (fits) {
      for (const auto* chain : {&*query, &*key, &*own})
        nodes.insert(nodes.end(), chain->nodes.begin(), chain->nodes.end());
      std::ranges::sort(nodes);
      nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
      fits = are_free(nodes) && are_only_readers(nodes);
    }
    if (!fits) {
      tables_.resize(tables);
      return false;
    }
    project.input.value = query->input;
    project.query = query->source;
    project.key = key->source;
    project.value = own->source;
    if (query->heads) {
      project.norm_epsilon = query->heads->epsilon;
      project.rotary = query->heads->rotary;
      project.query_gain = query->heads->head_gain;
    }
    project.attention = o;
    project.queries = attention.inputs[0];
    add(project, nodes);
    return true;
  }

  // Outputs of padded heads: matrices that read them can be padded too.
  bool output_may_be_padded(ValueId output, const op::Attention& o) const {
    if (padded_head_width(o.head_dim) == o.head_dim) return true;
    if (output == network_.head.hidden) return false;
    return std::ranges::all_of(uses_.readers_of(output), [&](size_t r) {
      const auto* linear = std::get_if<op::Linear>(&node(r).operation);
      return linear && uses_.has_one_use(linear->weight);
    });
  }

  // May `value` be overwritten by what the product of node `linear` is added to it for, at node `sum`?
  bool dies_at(ValueId value, size_t linear, size_t sum) const {
    if (value == network_.head.hidden || made_by<op::Columns>(value) || uses_.maker_of(value) >= linear) return false;
    return std::ranges::all_of(uses_.readers_of(value), [&](size_t r) {
      if (r == sum) return true;
      const Node& reader = node(r);
      if (r >= linear || std::holds_alternative<op::Columns>(reader.operation)) return false;
      const auto* norm = std::get_if<op::RmsNorm>(&reader.operation);
      if (!norm || !may_be_deferred(*norm)) return true;
      if (reader.output == network_.head.hidden) return false;  // a deferred norm is read where its readers are
      return std::ranges::all_of(uses_.readers_of(reader.output), [&](size_t later) { return later < linear; });
    });
  }

  bool match_linear_add(size_t i) {
    const auto& linear = std::get<op::Linear>(node(i).operation);
    const std::optional<size_t> at = uses_.only_reader_of(node(i).output);
    if (!at || !uses_.has_one_use(linear.weight)) return false;
    const Node& sum = node(*at);
    const auto* o = std::get_if<op::Add>(&sum.operation);
    if (!o || sum.inputs[1] != node(i).output || sum.inputs[0] == node(i).output) return false;
    if (is_covered_[*at] || !dies_at(sum.inputs[0], i, *at)) return false;
    fused::LinearAdd work;
    work.input = node(i).inputs[0];
    work.residual = sum.inputs[0];
    work.weight = linear.weight;
    work.bias = linear.bias;
    work.scale = o->scale;
    work.output = sum.output;
    std::vector<size_t> nodes = {i, *at};
    if (linear.bias == kAbsent && o->scale != kAbsent) extend_to_next_layer(i, work, nodes);
    add(work, nodes);
    return true;
  }

  // sum -> [skip ->] mix.
  void extend_to_next_layer(size_t linear, fused::LinearAdd& work, std::vector<size_t>& nodes) const {
    const ValueId sum = work.output;
    if (sum == network_.head.hidden) return;
    auto is_there = [&](ValueId value) { return uses_.maker_of(value) < linear; };
    auto follower = [&]<typename Op>(ValueId value, const Op*) -> std::optional<size_t> {
      for (size_t r : uses_.readers_of(value))
        if (std::holds_alternative<Op>(node(r).operation) && node(r).inputs[0] == value) return r;
      return std::nullopt;
    };
    const auto skip_at = follower(sum, static_cast<op::Skip*>(nullptr));
    const ValueId mixed = skip_at ? node(*skip_at).output : sum;
    const auto mix_at = follower(mixed, static_cast<op::Mix*>(nullptr));
    if (!mix_at || !is_there(node(*mix_at).inputs[1])) return;
    if (skip_at) {
      const ValueId skipped = node(*skip_at).inputs[1];
      if (!uses_.only_reader_of(mixed) || (skipped != sum && !is_there(skipped))) return;
      const auto& skip = std::get<op::Skip>(node(*skip_at).operation);
      work.skipped = skipped;
      work.skip_weight = skip.weight;
      work.skip_gate = skip.gate;
      nodes.push_back(*skip_at);
    }
    const auto& mix = std::get<op::Mix>(node(*mix_at).operation);
    work.start = node(*mix_at).inputs[1];
    work.mix_first = mix.first;
    work.mix_second = mix.second;
    work.output = node(*mix_at).output;
    nodes.push_back(*mix_at);
    const bool is_read_elsewhere =
        std::ranges::any_of(uses_.readers_of(sum), [&](size_t r) { return std::ranges::count(nodes, r) == 0; });
    if (is_read_elsewhere || work.skipped == sum) work.sum = sum;
  }

  void match_linear_activate(size_t i) {
    const auto& linear = std::get<op::Linear>(node(i).operation);
    const std::optional<size_t> at = uses_.only_reader_of(node(i).output);
    if (!at || !uses_.has_one_use(linear.weight)) return;
    const auto* activate = std::get_if<op::Activate>(&node(*at).operation);
    if (!activate) return;
    fused::LinearActivate work;
    work.input.value = node(i).inputs[0];
    work.weight = linear.weight;
    work.bias = linear.bias;
    work.activation = activate->activation;
    work.output = node(*at).output;
    add(work, {i, *at});
  }

  // A gate and what it multiplies, both products of one value.
  void match_linear_gate(size_t at) {
    auto product_of = [&](ValueId factor) -> const op::Linear* {
      const auto* linear = made_by<op::Linear>(factor);
      if (!linear || linear->bias != kAbsent || !uses_.has_one_use(linear->weight)) return nullptr;
      return uses_.only_reader_of(factor) ? linear : nullptr;
    };
    const ValueId z = node(at).inputs[0], w = node(at).inputs[1];
    const op::Linear *gate = product_of(z), *up = product_of(w);
    if (!gate || !up || z == w || maker(z).inputs[0] != maker(w).inputs[0]) return;
    const std::vector<size_t> nodes = {at, uses_.maker_of(z), uses_.maker_of(w)};
    if (!are_free(nodes)) return;
    const Activation activation = std::get<op::Gate>(node(at).operation).activation;
    add(fused::LinearGate{{maker(z).inputs[0]}, gate->weight, up->weight, activation, node(at).output}, nodes);
  }

  // tokens [+ pairs] -> norm -> [smear] -> mix with itself.
  void match_embed() {
    fused::Embed embed;
    const auto* gather = std::get_if<op::Gather>(&node(0).operation);
    if (!gather || gather->index.kind != RowIndex::Kind::kToken || gather->factor != 1) return;
    embed.tokens = gather->table;
    std::vector<size_t> nodes = {0};
    std::optional<size_t> at = uses_.only_reader_of(node(0).output);
    if (!at) return;
    if (const auto* sum = std::get_if<op::Add>(&node(*at).operation)) {
      if (node(*at).inputs[0] != node(0).output || (sum->scale != kAbsent && elements(sum->scale) != 1)) return;
      const std::optional<int32_t> pairs = table_of(node(*at).inputs[1], sum->scale, 0);
      if (!pairs) return;
      embed.pairs = *pairs;
      nodes.push_back(*at);
      at = uses_.only_reader_of(node(*at).output);
    }
    if (embed_rest(embed, nodes, at)) return add(embed, nodes);
    if (embed.pairs != kAbsent) tables_.pop_back();  // nobody else has asked for it
  }

  bool embed_rest(fused::Embed& embed, std::vector<size_t>& nodes, std::optional<size_t> at) const {
    if (embed.pairs != kAbsent && tables_[index(embed.pairs)].index.kind != RowIndex::Kind::kTokenPair) return false;
    const auto* norm = at ? std::get_if<op::RmsNorm>(&node(*at).operation) : nullptr;
    if (!norm || norm->gain != kAbsent || norm->factor != 1) return false;
    embed.epsilon = norm->epsilon;
    nodes.push_back(*at);
    embed.start = node(*at).output;
    if (const auto next = uses_.only_reader_of(embed.start)) {
      if (const auto* smear = std::get_if<op::Smear>(&node(*next).operation)) {
        embed.smear_gate = smear->gate;
        embed.start = node(*next).output;
        nodes.push_back(*next);
      }
    }
    for (size_t r : uses_.readers_of(embed.start)) {
      const auto* mix = std::get_if<op::Mix>(&node(r).operation);
      if (!mix || node(r).inputs[0] != embed.start || node(r).inputs[1] != embed.start) continue;
      embed.first = mix->first;
      embed.second = mix->second;
      embed.stream = node(r).output;
      nodes.push_back(r);
      return are_free(nodes) && embed.start != network_.head.hidden;
    }
    return false;
  }

  bool may_be_deferred(const op::RmsNorm& norm) const { return norm.gain == kAbsent || options_.folds_gains; }

  // The input of a product that can take a norm along; null for others. Nobody else uses its matrices.
  static FusedInput* deferring_input(FusedWork& work) {
    if (auto* project = std::get_if<fused::Project>(&work)) return &project->input;
    if (auto* activate = std::get_if<fused::LinearActivate>(&work)) return &activate->input;
    if (auto* gate = std::get_if<fused::LinearGate>(&work)) return &gate->input;
    return nullptr;
  }

  static std::vector<MatrixId> matrices_of(const FusedWork& work) {
    if (const auto* project = std::get_if<fused::Project>(&work))
      return {project->query.weight, project->key.weight, project->value.weight};
    if (const auto* activate = std::get_if<fused::LinearActivate>(&work)) return {activate->weight};
    const auto& gate = std::get<fused::LinearGate>(work);
    return {gate.gate, gate.up};
  }

  void defer_norms(Fusion& fusion) {
    fusion.column_gains.assign(network_.matrices.size(), kAbsent);
    fusion.has_squares.assign(network_.value_widths.size(), false);
    std::set<ValueId> summed;  // whose writers can leave the squares of rows
    for (const Match& match : matches_) {
      if (const auto* add = std::get_if<fused::LinearAdd>(&match.work)) summed.insert(add->output);
      if (const auto* embed = std::get_if<fused::Embed>(&match.work)) summed.insert(embed->stream);
    }
    for (size_t i = 0; i < network_.nodes.size(); ++i) {
      const auto* norm = std::get_if<op::RmsNorm>(&node(i).operation);
      if (!norm || !may_be_deferred(*norm) || is_covered_[i] || !summed.contains(node(i).inputs[0])) continue;
      const ValueId normed = node(i).output;
      std::vector<FusedInput*> inputs;
      if (normed == network_.head.hidden && norm->gain != kAbsent) continue;  // the head's matrix may be a table too
      if (normed == network_.head.hidden) inputs.push_back(&fusion.head);
      size_t covered = 0;
      std::vector<MatrixId> matrices;
      for (Match& match : matches_) {
        FusedInput* input = deferring_input(match.work);
        if (!input || input->value != normed) continue;
        inputs.push_back(input);
        for (MatrixId id : matrices_of(match.work)) matrices.push_back(id);
        for (size_t n : match.nodes) covered += std::ranges::count(node(n).inputs, normed) > 0;
      }
      if (covered != uses_.readers_of(normed).size() || inputs.empty()) continue;
      for (FusedInput* input : inputs) *input = {node(i).inputs[0], true, norm->factor, norm->epsilon, norm->gain};
      for (MatrixId id : matrices) fusion.column_gains[index(id)] = norm->gain;
      fusion.has_squares[index(node(i).inputs[0])] = true;
      is_covered_[i] = true;
    }
  }

  const Network& network_;
  FusionOptions options_;
  NetworkUses uses_;
  std::set<MatrixId> banned_;
  std::vector<bool> is_covered_;
  std::vector<Match> matches_;
  std::vector<ProductTable> tables_;
};

}  // namespace

Fusion fuse(const Network& network, const FusionOptions& options) { return Fuser(network, options).run(); }

}  // namespace thimble
