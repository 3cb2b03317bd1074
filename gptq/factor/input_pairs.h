// input_pairs.h: what a layer of a model that is quantized so far reads, beside what it reads in the original. A layer
// that is quantized later can make up for what those before it did to its input: instead of w it aims at the w' with
//   w' x~ = w x  in the mean square,   w' = w + w E[(x - x~) x~^T] (E[x~ x~^T] + damping)^-1
// for inputs x of the original and x~ of the quantized model (Qronos, arXiv 2505.11695; GPTAQ, arXiv 2504.02692), and
// minimizes its own error by the Hessian E[x~ x~^T].
// K = input columns of a layer, R = its output rows.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "gptq/factor/hessian_factor.h"
#include "gptq/statistics/hessian.h"
#include "gptq/statistics/stored_statistics.h"
#include "runtime/base/memory_plan.h"
#include "runtime/base/parallel.h"
#include "runtime/device/device.h"
#include "runtime/device/device_values.h"
#include "runtime/device/ranks.h"
#include "runtime/ops/token_sequences.h"
#include "runtime/ops/weights.h"

namespace thimble {

// Means over all tokens, or sums.
struct InputPair {
  SymmetricMatrix hessian;  // (K, K) of x~ x~^T
  MatrixF64 drift;          // (K, K) of (x - x~) x~^T
};

// A pair of means wherever it was made: in the host's memory, or on a device. Copies share what they hold.
struct StoredPair {
  std::shared_ptr<const StoredHessian> hessian;
  std::variant<std::shared_ptr<const MatrixF64>, DeviceValues> drift;

  InputPair on_host() const;
};
StoredPair store_in_memory(InputPair pair);

// Reads the inputs of a model and of one whose layers are quantized on the way, one input after the other.
class InputPairs {
 public:
  virtual ~InputPairs() = default;
  // `input`: one of inputs_of_layers(). They come in that order; some may be left out, none comes twice. Errors are
  // those of Hessians. Collective, as is the next.
  virtual StoredPair collect(const LinearInput& input) = 0;
  // Gives a matrix of the quantized model other values: one of those that read the input collected last.
  virtual void replace(const std::string& name, const StoredMatrix& values) = 0;
};

// The inputs of linear layers within the layers of a model, in the order of forward passes; not what is read before.
std::vector<LinearInput> inputs_of_layers(const Network& network);

// Of the first `sequences` of the tokens, less the last of each. In bf16 on CUDA devices with that mode, else in fp32,
// whatever the numeric mode. `tokens` and `ranks` must outlive the result. Sequences are cut into the parts of Hessians
// (hessian_part()), at most eight, as many as a machine has devices as a rule; sums over a part go sequence by
// sequence, in float64, and parts are added in their order. They are dealt out in turn to the CUDA devices of all
// ranks, or to the ranks on CPUs; the results are the same bits for any number of these, on every rank. Whoever reads a
// part keeps the activations of its sequences in memory, so that each layer runs once per model; where a device has no
// room for them, as often as inputs after it are read, with the same results.
std::unique_ptr<InputPairs> make_input_pairs(const std::shared_ptr<const Weights>& original,
                                             const std::shared_ptr<const Weights>& quantized, const Device& device,
                                             const TokenSequences& tokens, int64_t sequences,
                                             Ranks& ranks = no_other_ranks());

// w' for every row of each of `weights` (R, K), which read the pair's input, `strength` of the way from w. `damping`:
// relative to the Hessian's mean diagonal, as in factor_hessian(), whose errors these are; `layer` names the input
// there. In float64; on the first CUDA device of several, with sums in another order than on the CPU: the same bits on
// every device of one model. Too little memory is a DeviceError.
std::vector<Matrix> shift_weights(std::span<const StoredMatrixView> weights, const StoredPair& pair, double damping,
                                  double strength, const std::string& layer, const Device& device);

// What make_input_pairs() and shift_weights() take of the host's memory on the CPU, on each of so many ranks, with the
// input in flight that takes most. `weight_bytes`: of the original, in memory.
MemoryPlan plan_cpu_input_pairs(const Network& network, int64_t length, int64_t sequences, int ranks,
                                uint64_t weight_bytes);

// One of those that parts are dealt out to: a CPU or a CUDA device. Only one thread at a time may call it.
class PairReader {
 public:
  virtual ~PairReader() = default;
  // Reads `parts`, some of its own, up to an input, as InputPairs::collect(), and adds them up one after the other, to
  // what there is. Each of its parts is read once per input.
  virtual void read(const LinearInput& input, std::span<const Share> parts) = 0;
  // Adds the sums of another reader of the same kind, which are spent.
  virtual void add(PairReader& other) = 0;
  // The sums; from then on there is nothing.
  virtual InputPair take() = 0;
  // The same over the number of tokens, which may stay where it is.
  virtual StoredPair take_means(int64_t tokens) = 0;
  virtual void replace(const std::string& name, const StoredMatrix& values) = 0;
};

// The sequences of each part that reader `reader` of `readers` is dealt out, in order.
std::vector<Share> parts_of_reader(int64_t sequences, size_t reader, size_t readers);
// Of the one with most sequences.
std::vector<Share> most_parts_of_reader(int64_t sequences, size_t readers);

// What these two do on a CUDA device; DeviceErrors in a build without CUDA.
std::unique_ptr<PairReader> make_cuda_pair_reader(const Weights& original, const Weights& quantized,
                                                  const CudaPlace& place, Numerics numerics,
                                                  const TokenSequences& tokens, std::span<const Share> parts);
// What the reader of `parts`, at least one, takes: up to `most` sequences at a time, of one part. Without `keeps` that
// of passes that begin anew; see cuda_models.h for plans.
MemoryPlan plan_input_pairs(const std::shared_ptr<const Network>& network, Numerics numerics, int64_t length,
                            std::span<const Share> parts, int64_t most, bool keeps, uint64_t usable_bytes);
// With `keeps`, in half of the usable memory: the other half is for those who solve meanwhile. None where that has no
// room.
std::optional<MemoryPlan> plan_kept_input_pairs(const std::shared_ptr<const Network>& network, Numerics numerics,
                                                int64_t length, std::span<const Share> parts, int64_t most,
                                                uint64_t usable_bytes);
std::vector<Matrix> shift_weights_cuda(std::span<const StoredMatrixView> weights, const StoredPair& pair,
                                       double damping, double strength, const std::string& layer,
                                       const CudaPlace& place);

}  // namespace thimble
