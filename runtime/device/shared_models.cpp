// shared_models.cpp: cuts each call into the shares of ranks, and those into the shares of their devices, a thread
// each.
#include <algorithm>
#include <cassert>
#include <numeric>

#include "runtime/base/parallel.h"
#include "runtime/device/models.h"

namespace thimble {
namespace {

// Batches of a scorer's liking that a rank scores between two exchanges: few, so that progress shows, but enough that
// ranks of unequal speed seldom wait.
constexpr int64_t kBatchesPerExchange = 4;

// Who computes what of a call.
template <typename Part>
class Team {
 public:
  Team(std::vector<std::unique_ptr<Part>> parts, Ranks& ranks) : parts_(std::move(parts)), ranks_(ranks) {
    assert(!parts_.empty());
  }

  Part& first() const { return *parts_[0]; }
  Part& part(size_t i) const { return *parts_[i]; }
  size_t size() const { return parts_.size(); }  // of this rank
  int64_t ranks() const { return ranks_.size(); }
  // This rank's share of `count` things.
  Share own(size_t count) const {
    return share_of(count, static_cast<size_t>(ranks_.rank()), static_cast<size_t>(ranks_.size()));
  }
  // The sum over this rank's parts.
  template <typename Count>
  int64_t total(const Count& count) const {
    int64_t sum = 0;
    for (const auto& part : parts_) sum += count(*part);
    return sum;
  }

  // body(part, begin, end) for the non-empty shares of [0, count) that this rank's parts take.
  template <typename Body>
  void for_each_share(size_t count, const Body& body) const {
    run_in_threads(parts_.size(), [&](size_t i) {
      const Share share = share_of(count, i, parts_.size());
      if (share.size() > 0) body(*parts_[i], share.begin, share.end);
    });
  }

  // body(part) for all of this rank's parts.
  template <typename Body>
  void for_each(const Body& body) const {
    run_in_threads(parts_.size(), [&](size_t i) { body(*parts_[i]); });
  }

  // All ranks' values one after the other.
  template <typename T>
  void exchange(std::span<const T> mine, std::span<T> all) const {
    if (ranks_.size() == 1) {
      std::ranges::copy(mine, all.begin());
      return;
    }
    std::byte* next = std::as_writable_bytes(all).data();
    for (const ByteVector& part : ranks_.all_gather(std::as_bytes(mine))) {
      assert(next + part.size() <= std::as_writable_bytes(all).data() + all.size_bytes());
      next = std::copy(part.begin(), part.end(), next);
    }
  }

 private:
  std::vector<std::unique_ptr<Part>> parts_;
  Ranks& ranks_;
};

size_t target_count(std::span<const ScoreWindow> windows) {
  size_t count = 0;
  for (const ScoreWindow& window : windows) count += window.targets.size();
  return count;
}

class SharedScorer final : public Scorer {
 public:
  SharedScorer(std::vector<std::unique_ptr<Scorer>> parts, Ranks& ranks) : team_(std::move(parts), ranks) {}

  int64_t vocabulary() const override { return team_.first().vocabulary(); }
  int64_t context() const override { return team_.first().context(); }
  int64_t preferred_windows() const override {
    const int64_t own = team_.total([](const Scorer& part) { return part.preferred_windows(); });
    return team_.ranks() == 1 ? own : kBatchesPerExchange * team_.ranks() * own;
  }

  void score(std::span<const ScoreWindow> windows, std::span<float> nll) override {
    const Share own = team_.own(windows.size());
    const std::span<const ScoreWindow> mine = windows.subspan(own.begin, own.size());
    std::vector<float> scores(target_count(mine));
    team_.for_each_share(mine.size(), [&](Scorer& part, size_t begin, size_t end) {
      const std::span<const ScoreWindow> share = mine.subspan(begin, end - begin);
      part.score(share, std::span(scores).subspan(target_count(mine.first(begin)), target_count(share)));
    });
    team_.exchange<float>(scores, nll);
  }

  void log_probabilities(std::span<const Token> inputs, int64_t targets, int64_t first, MatrixView out) override {
    team_.first().log_probabilities(inputs, targets, first, out);
  }

  std::optional<NonFinite> find_non_finite_input(std::span<const Token> inputs) override {
    return team_.first().find_non_finite_input(inputs);
  }

 private:
  Team<Scorer> team_;
};

class SharedGenerator final : public Generator {
 public:
  SharedGenerator(std::vector<std::unique_ptr<Generator>> parts, Ranks& ranks) : team_(std::move(parts), ranks) {}

  int64_t preferred_sequences(const CalibrationOptions& options) const override {
    return team_.ranks() * team_.total([&](const Generator& part) { return part.preferred_sequences(options); });
  }

  TokenSequences calibration(const TextScript& script, int64_t first, int64_t count, Progress& progress) override {
    const Share own = team_.own(static_cast<size_t>(count));
    const auto length = static_cast<size_t>(script.options.length);
    std::vector<Token> mine(own.size() * length);
    team_.for_each_share(own.size(), [&](Generator& part, size_t begin, size_t end) {
      const TokenSequences share = part.calibration(script, first + static_cast<int64_t>(own.begin + begin),
                                                    static_cast<int64_t>(end - begin), progress);
      std::ranges::copy(share.tokens, mine.begin() + static_cast<std::ptrdiff_t>(begin * length));
    });
    TokenSequences all{count, script.options.length, std::vector<Token>(static_cast<size_t>(count) * length)};
    team_.exchange<Token>(mine, all.tokens);
    progress.advance((count - static_cast<int64_t>(own.size())) * script.options.length);  // by the other ranks
    return all;
  }

  void text(std::span<const Token> prompt, const TextOptions& options,
            const std::function<bool(Token)>& on_token) override {
    team_.first().text(prompt, options, on_token);
  }

 private:
  Team<Generator> team_;
};

class SharedDivergencePass final : public DivergencePass {
 public:
  SharedDivergencePass(std::vector<std::unique_ptr<DevicePass>> parts, const Weights& model, Ranks& ranks,
                       const DivergenceOptions& options)
      : ranks_(ranks),
        workers_(parts.size(), ranks),
        team_(std::move(parts), ranks),
        network_(model.network),
        summed_(options.summed) {
    if (options.sums_rows)
      for (MatrixId id : model.network->linear_matrices()) {
        const MatrixUse& use = model.network->matrix(id);
        names_.push_back({use.name, true, static_cast<size_t>(use.rows)});
      }
    for (const auto& [name, values] : model.small) names_.push_back({name, false, values.size()});
  }

  void set(const Gains& gains) override {
    std::vector<DevicePass*> others;
    for (size_t i = 1; i < team_.size(); ++i) others.push_back(&team_.part(i));
    team_.first().give_changes_to(others);
    team_.for_each([&](DevicePass& part) { part.set(gains); });
  }
  void set_matrix(const std::string& name, const StoredMatrix& matrix) override {
    team_.for_each([&](DevicePass& part) { part.set_matrix(name, matrix); });
  }

  using DivergencePass::gradients;
  // In rounds of a part for each worker, so that no more than one of each waits to be added.
  GainGradients gradients(int64_t first, int64_t count, bool sums_matrices) override {
    const auto sequences = static_cast<size_t>(count), cuts = static_cast<size_t>(std::min(count, kMostGradientParts));
    std::vector<double> flat;
    flat.reserve(cuts * values_of_one());
    for (size_t round = 0; round < cuts; round += workers_.all()) {
      const size_t turns = std::min(workers_.all(), cuts - round);
      std::vector<GainGradients> mine(turns > workers_.first() ? std::min(team_.size(), turns - workers_.first()) : 0);
      run_in_threads(mine.size(), [&](size_t i) {
        const Share share = share_of(sequences, round + workers_.first() + i, cuts);
        mine[i] = team_.part(i).gradients(first + static_cast<int64_t>(share.begin), static_cast<int64_t>(share.size()),
                                          sums_matrices);
      });
      for (const GainGradients& sums : mine) append(sums, flat);
      for (size_t turn = 0; sums_matrices && turn < turns; ++turn) add_part(turn, /*begins=*/round + turn == 0);
    }
    return from_flat(sum_of_parts(flat, cuts));
  }
  MatrixGradients& matrix_gradients() override { return team_.first().matrix_gradients(); }
  CudaStudent* on_device() override { return team_.first().on_device(); }

  int64_t preferred_sequences() const override {
    return team_.ranks() * team_.total([](const DevicePass& part) { return part.preferred_sequences(); });
  }
  std::vector<double> divergences(int64_t first, int64_t count) override {
    const Share own = team_.own(static_cast<size_t>(count));
    std::vector<double> mine(own.size()), all(static_cast<size_t>(count));
    team_.for_each_share(own.size(), [&](DevicePass& part, size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) mine[i] = part.divergence(first + static_cast<int64_t>(own.begin + i), 1);
    });
    team_.exchange<double>(mine, all);
    return all;
  }
  double divergence(int64_t first, int64_t count) override {
    const std::vector<double> all = divergences(first, count);
    return std::accumulate(all.begin(), all.end(), 0.0);
  }
  TemperatureSlope temperature_slope(int64_t first, int64_t count, double temperature) override {
    return team_.first().temperature_slope(first, count, temperature);
  }

 private:
  // Gradients as they are exchanged: the divergence, that by the head's gain, then tensor after tensor.
  struct Named {
    std::string name;
    bool is_rows;  // of a matrix, else of a small tensor
    size_t count;
  };
  size_t values_of_one() const {
    size_t count = 2;
    for (const Named& named : names_) count += named.count;
    return count;
  }
  // Gradients by matrices that worker `worker` has summed go to the sums of every rank.
  void add_part(size_t worker, bool begins) {
    DevicePass& sum = team_.first();
    const int from = workers_.rank_of(worker);
    DevicePass* const part = from == ranks_.rank() ? &team_.part(worker - workers_.first()) : nullptr;
    for (const std::string& name : summed_)
      if (ranks_.size() > 1) send_matrix(name, from, part, begins);
    if (part == &sum)
      sum.add_part(begins);
    else if (ranks_.size() == 1)
      sum.add_part_of(*part, begins);
  }
  // One matrix at a time: they may be as large as all that is left of memory. `part`: null on other ranks than `from`.
  void send_matrix(const std::string& name, int from, DevicePass* part, bool begins) {
    ByteVector bytes;
    if (part) {
      Matrix buffer;
      const ConstMatrixView values = part->part(name, buffer);
      const Bytes rows = std::as_bytes(std::span(values.data, static_cast<size_t>(values.rows * values.cols)));
      bytes.assign(rows.begin(), rows.end());
    }
    ranks_.broadcast(bytes, from);
    if (part == &team_.first()) return;
    const MatrixUse& use = network_->matrix(network_->id_of(name));
    const ConstMatrixView values(reinterpret_cast<const float*>(bytes.data()), use.rows, use.columns);
    team_.first().add_matrix(name, values, begins);
  }
  // From this rank's parts, one after the other, the sum of all ranks' in the order of parts.
  std::vector<double> sum_of_parts(std::span<const double> mine, size_t cuts) const {
    const size_t count = values_of_one();
    std::vector<double> by_ranks(cuts * count);
    team_.exchange<double>(mine, by_ranks);
    std::vector<size_t> order;  // in which parts lie there
    for (int rank = 0; rank < ranks_.size(); ++rank)
      for (size_t part = 0; part < cuts; ++part)
        if (workers_.rank_of(part % workers_.all()) == rank) order.push_back(part);
    std::vector<double> sum(count);
    for (size_t part = 0; part < cuts; ++part) {
      const auto at = static_cast<size_t>(std::ranges::find(order, part) - order.begin());
      for (size_t i = 0; i < count; ++i)
        sum[i] = part == 0 ? by_ranks[at * count + i] : sum[i] + by_ranks[at * count + i];
    }
    return sum;
  }
  void append(const GainGradients& sums, std::vector<double>& flat) const {
    flat.insert(flat.end(), {sums.divergence, sums.head});
    for (const auto& [name, is_rows, count] : names_) {
      const std::vector<double>& values = (is_rows ? sums.rows : sums.small).at(name);
      assert(values.size() == count);
      flat.insert(flat.end(), values.begin(), values.end());
    }
  }
  GainGradients from_flat(std::span<const double> flat) const {
    GainGradients sums;
    sums.divergence = flat[0];
    sums.head = flat[1];
    flat = flat.subspan(2);
    for (const auto& [name, is_rows, count] : names_) {
      (is_rows ? sums.rows : sums.small)[name].assign(flat.begin(), flat.begin() + static_cast<std::ptrdiff_t>(count));
      flat = flat.subspan(count);
    }
    return sums;
  }

  Ranks& ranks_;
  const WorkersOfRanks workers_;
  Team<DevicePass> team_;
  const std::shared_ptr<const Network> network_;
  const std::set<std::string> summed_;
  std::vector<Named> names_;
};

}  // namespace

std::unique_ptr<Scorer> make_shared_scorer(std::vector<std::unique_ptr<Scorer>> parts, Ranks& ranks) {
  if (parts.size() == 1 && ranks.size() == 1) return std::move(parts[0]);
  return std::make_unique<SharedScorer>(std::move(parts), ranks);
}

std::unique_ptr<Generator> make_shared_generator(std::vector<std::unique_ptr<Generator>> parts, Ranks& ranks) {
  if (parts.size() == 1 && ranks.size() == 1) return std::move(parts[0]);
  return std::make_unique<SharedGenerator>(std::move(parts), ranks);
}

std::unique_ptr<DivergencePass> make_shared_divergence_pass(std::vector<std::unique_ptr<DevicePass>> parts,
                                                            const Weights& model, Ranks& ranks,
                                                            const DivergenceOptions& options) {
  return std::make_unique<SharedDivergencePass>(std::move(parts), model, ranks, options);
}

}  // namespace thimble
