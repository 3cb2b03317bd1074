// cuda_sample.cu: sample_token() of generator.cpp on the device, in float64. One CTA per sequence.
#include "runtime/cuda/kernels/cuda_overlap.cuh"
#include "runtime/cuda/kernels/cuda_rows.cuh"

namespace thimble {
namespace {

constexpr int kGroupThreads = 16;
// Threads of a CTA: where shares of the vocabulary become long, more of them.
constexpr int kFewThreads = 256, kManyThreads = 1024, kFewThreadsVocabulary = 8192;

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

// Makes of values their running sums, the last of which it returns. Some are read before the first of them is written,
// so that reads do not wait in turn.
template <int kCount>
__device__ double running_sums(double* values) {
  constexpr int kAtOnce = 16;
  static_assert(kCount % kAtOnce == 0);
  double sum = 0;
  for (int first = 0; first < kCount; first += kAtOnce) {
    double own[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) own[i] = values[first + i];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) values[first + i] = sum += own[i];
  }
  return sum;
}

// Makes of sums[t + 1] the sum of all up to it, sums[0] = 0, by chains within groups and over them: the sums never
// decrease, whatever is rounded, so that a draw falls into one share alone.
template <int kThreads>
__device__ void cumulate(double* sums, double* group_sums) {
  constexpr int kGroups = kThreads / kGroupThreads;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kGroups) group_sums[thread + 1] = running_sums<kGroupThreads>(sums + thread * kGroupThreads + 1);
  __syncthreads();
  if (thread == 0) {
    sums[0] = group_sums[0] = 0;
    running_sums<kGroups>(group_sums + 1);
  }
  __syncthreads();
  sums[thread + 1] += group_sums[thread / kGroupThreads];
  __syncthreads();
}

// Thread t owns the logits [t * share, (t + 1) * share): a chain of sums in the vocabulary's order, the same every
// time. kKeeps: logits are read once, into shared memory.
template <int kThreads, bool kKeeps>
__global__ void __launch_bounds__(kThreads) sample_kernel(SampleRequest r) {
  constexpr int kWarps = kThreads / 32;
  extern __shared__ float kept[];
  __shared__ Peak peaks[kWarps];
  __shared__ double sums[kThreads + 1], group_sums[kThreads / kGroupThreads + 1], chances[kThreads];
  __shared__ int owner;
  const int thread = static_cast<int>(threadIdx.x), sequence = static_cast<int>(blockIdx.x);
  const int share = (r.vocabulary + kThreads - 1) / kThreads, first = min(thread * share, r.vocabulary);
  const int last = min(first + share, r.vocabulary), position = *r.position + r.offset + 1;
  Token& token = r.tokens[sequence * r.token_stride + position];
  const bool is_given = token >= 0;  // no kernel draws it before
  const double uniform = uniform_at_device(r.seed, r.first_stream + static_cast<uint64_t>(sequence),
                                           static_cast<uint64_t>(position - r.first_position));
  wait_for_previous();
  let_next_begin();
  if (is_given) return;
  float* logits = r.logits + sequence * r.stride;
  if constexpr (kKeeps) {
    for (int v = thread; v < r.vocabulary; v += kThreads) kept[v] = logits[v];
    logits = kept;
    __syncthreads();
  }
  for (int i = thread; i < r.never_drawn_count; i += kThreads) logits[r.never_drawn[i]] = -INFINITY;
  __syncthreads();

  Peak highest{-INFINITY, first};
  bool finite = true;
#pragma unroll 4
  for (int v = first; v < last; ++v) {
    const float logit = logits[v];
    finite = finite && logit == logit;
    highest = higher(highest, {logit, v});
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
  auto chance = [&](int v) { return exp((static_cast<double>(logits[v]) - peak) / r.temperature); };
  double sum = 0;
#pragma unroll 4
  for (int v = first; v < last; ++v) sum += chance(v);
  sums[thread + 1] = sum;
  if (thread == 0) owner = kThreads;
  __syncthreads();
  cumulate<kThreads>(sums, group_sums);
  const double wanted = uniform * sums[kThreads];
  if (sums[thread] <= wanted && wanted < sums[thread + 1]) owner = thread;
  __syncthreads();
  if (owner == kThreads) {  // rounding up to the whole sum takes the likeliest
    if (thread == 0) token = static_cast<Token>(highest.index);
    return;
  }
  // The share that the draw falls into: all threads make its chances, some at a time, thread 0 walks through them.
  const int owned = min(owner * share, r.vocabulary), end = min(owned + share, r.vocabulary);
  double cumulative = sums[owner];
  int chosen = owned;  // the last that can be drawn, where sums round down
  for (int start = owned; start < end; start += kThreads) {
    if (start + thread < end) chances[thread] = chance(start + thread);
    __syncthreads();
    if (thread == 0) {
      const int count = min(kThreads, end - start);
      for (int i = 0; i < count && cumulative <= wanted; ++i) {
        if (chances[i] > 0) chosen = start + i;
        cumulative += chances[i];
      }
    }
    __syncthreads();
  }
  if (thread == 0) token = static_cast<Token>(chosen);
}

__global__ void advance_kernel(int* position, int steps) {
  wait_for_previous();
  let_next_begin();
  *position += steps;
}

}  // namespace

void launch_sample(const SampleRequest& request, cudaStream_t stream) {
  const dim3 sequences(static_cast<unsigned>(request.sequences));
  auto launch = [&](auto kernel, int threads, int bytes) {
    launch_kernel(kernel, {sequences, threads, bytes, 1, /*overlaps=*/true}, stream, request);
  };
  if (request.vocabulary <= kFewThreadsVocabulary)
    return launch(sample_kernel<kFewThreads, true>, kFewThreads, request.vocabulary * static_cast<int>(sizeof(float)));
  launch(sample_kernel<kManyThreads, false>, kManyThreads, 0);
}

void launch_advance(int* position, int steps, cudaStream_t stream) {
  launch_kernel(advance_kernel, {dim3(1), 1, 0, 1, /*overlaps=*/true}, stream, position, steps);
}

}  // namespace thimble
