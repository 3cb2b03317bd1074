// cuda_sample.cu: sample_token() of generator.cpp on the device, in float64. One CTA per sequence.
#include "runtime/cuda/kernels/cuda_overlap.cuh"
#include "runtime/cuda/kernels/cuda_rows.cuh"

namespace thimble {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kGroups = 16, kGroupThreads = kThreads / kGroups;

struct Peak {
  float value;
  int index;
};
// Of equal ones the first.
__device__ Peak higher(const Peak& a, const Peak& b) {
  return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}

// Philox 4x32-10, as random.cpp.
__device__ double uniform_at_device(uint64_t seed, uint64_t stream, uint64_t index) {
  uint32_t counter[4] = {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                         static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
  auto key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t product0 = uint64_t{0xD2511F53} * counter[0], product1 = uint64_t{0xCD9E8D57} * counter[2];
    uint32_t next[4] = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(product1),
                        static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(product0)};
    for (int i = 0; i < 4; ++i) counter[i] = next[i];
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  uint64_t wide = (uint64_t{counter[0]} << 32) | counter[1];
  return static_cast<double>(wide >> 11) * 0x1p-53;
}

// Makes of sums[t + 1] the sum of all up to it, sums[0] = 0, by chains within groups and over them: the sums never
// decrease, whatever is rounded, so that a draw falls into one share alone.
__device__ void cumulate(double* sums, double* group_sums) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kGroups) {
    double* group = sums + thread * kGroupThreads;
    double sum = 0;
    for (int t = 1; t <= kGroupThreads; ++t) group[t] = sum += group[t];
    group_sums[thread + 1] = sum;
  }
  __syncthreads();
  if (thread == 0) {
    double sum = sums[0] = group_sums[0] = 0;
    for (int g = 1; g <= kGroups; ++g) group_sums[g] = sum += group_sums[g];
  }
  __syncthreads();
  sums[thread + 1] += group_sums[thread / kGroupThreads];
  __syncthreads();
}

// Thread t owns the logits [t * share, (t + 1) * share): a chain of sums in the vocabulary's order, the same every
// time.
__global__ void __launch_bounds__(kThreads) sample_kernel(SampleRequest r) {
  __shared__ Peak peaks[kWarps];
  __shared__ double sums[kThreads + 1], group_sums[kGroups + 1];
  wait_for_previous();
  let_next_begin();
  int thread = static_cast<int>(threadIdx.x), sequence = static_cast<int>(blockIdx.x);
  float* logits = r.logits + sequence * r.stride;
  int share = (r.vocabulary + kThreads - 1) / kThreads, first = min(thread * share, r.vocabulary);
  int last = min(first + share, r.vocabulary), position = *r.position + 1;
  Token& token = r.tokens[sequence * r.token_stride + position];
  if (token >= 0) return;
  for (int i = thread; i < r.never_drawn_count; i += kThreads) logits[r.never_drawn[i]] = -INFINITY;
  __syncthreads();

  Peak highest{-INFINITY, first};
  bool finite = true;
  for (int v = first; v < last; ++v) {
    finite = finite && logits[v] == logits[v];
    highest = higher(highest, {logits[v], v});
  }
  for (int other = 16; other > 0; other /= 2)
    highest = higher(highest, {__shfl_xor_sync(~0u, highest.value, other), __shfl_xor_sync(~0u, highest.index, other)});
  if (thread % 32 == 0) peaks[thread / 32] = highest;
  finite = __syncthreads_and(finite);
  for (const Peak& of_warp : peaks) highest = higher(highest, of_warp);
  const float peak = highest.value;
  if (!finite || !isfinite(peak)) {
    if (thread == 0) {
      *r.failed = 1;
      token = 0;
    }
    return;
  }
  if (r.temperature == 0) {
    if (thread == 0) token = static_cast<Token>(highest.index);
    return;
  }
  double sum = 0;
  for (int v = first; v < last; ++v) sum += exp((static_cast<double>(logits[v]) - peak) / r.temperature);
  sums[thread + 1] = sum;
  __syncthreads();
  cumulate(sums, group_sums);
  double uniform = uniform_at_device(r.seed, r.first_stream + static_cast<uint64_t>(sequence),
                                     static_cast<uint64_t>(position - r.first_position));
  double wanted = uniform * sums[kThreads];
  // The thread whose share the draw falls into walks through it; rounding up to the whole sum takes the likeliest.
  bool own = sums[thread] <= wanted && (wanted < sums[thread + 1]);
  if (thread == kThreads - 1 && wanted >= sums[kThreads]) {
    token = static_cast<Token>(highest.index);
    return;
  }
  if (!own) return;
  double cumulative = sums[thread];
  int chosen = first;  // the last that can be drawn, where sums round down
  for (int v = first; v < last && cumulative <= wanted; ++v) {
    const double chance = exp((static_cast<double>(logits[v]) - peak) / r.temperature);
    if (chance > 0) chosen = v;
    cumulative += chance;
  }
  token = static_cast<Token>(chosen);
}

__global__ void advance_kernel(int* position) {
  wait_for_previous();
  let_next_begin();
  ++*position;
}

}  // namespace

void launch_sample(const SampleRequest& request, cudaStream_t stream) {
  const dim3 sequences(static_cast<unsigned>(request.sequences));
  launch_kernel(sample_kernel, {sequences, kThreads, 0, 1, /*overlaps=*/true}, stream, request);
  launch_kernel(advance_kernel, {dim3(1), 1, 0, 1, /*overlaps=*/true}, stream,
                request.position);  // after every sequence has read it
}

}  // namespace thimble
