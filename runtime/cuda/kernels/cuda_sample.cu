// cuda_sample.cu: sample_token() of generator.cpp on the device, in float64. One CTA per sequence, which may go on with
// what the next pass starts from: one kernel less in a step, and what is known before the draw is read meanwhile.
#include "runtime/cuda/kernels/cuda_embed.cuh"
#include "runtime/cuda/kernels/cuda_overlap.cuh"
#include "runtime/cuda/kernels/cuda_rows.cuh"

namespace thimble {
namespace {

// Threads of a CTA, each of which owns a share of the vocabulary, and has it in registers if that is a few logits.
constexpr int kFewThreads = 128, kManyThreads = 1024, kLogits = 8;

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

// Of floats the order, as that of integers; of both zeros one.
__device__ unsigned ordered(float value) {
  const unsigned bits = __float_as_uint(value + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ float of_ordered(unsigned order) { return __uint_as_float(order >> 31 ? order & 0x7fffffffu : ~order); }

// The largest logit, and the first that is.
struct Peak {
  unsigned order;
  int index;

  __device__ void take(const Peak& other) {
    if (other.order > order || (other.order == order && other.index < index)) *this = other;
  }
};

// One bit for each token that is never drawn.
template <int kTokens>
struct NeverDrawn {
  unsigned words[(kTokens + 31) / 32];

  // Threads wait for each other before they ask it.
  __device__ void read(const Token* tokens, int count) {
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    for (int i = thread; i < static_cast<int>(sizeof words / sizeof words[0]); i += threads) words[i] = 0;
    __syncthreads();
    for (int i = thread; i < count; i += threads) atomicOr(&words[tokens[i] / 32], 1u << tokens[i] % 32);
  }
  __device__ bool has(int token) const { return words[token / 32] >> token % 32 & 1; }
};

// Thread t owns the logits [t * share, (t + 1) * share), in the vocabulary's order. With kKept > 0 a share is as many,
// in registers, those beyond the vocabulary -infinity; else they stay in memory. Sums are taken in an order that
// follows from the vocabulary alone. Returns what is drawn, to all threads.
template <int kThreads, int kKept>
class Draw {
 public:
  struct Shared {
    NeverDrawn<kThreads * kKept + 1> never;
    Peak peaks[kThreads / 32];
    double sums[kThreads / 32], chances[kKept > 0 ? 1 : kThreads];
    int owner, drawn;  // the first thread, the first token whose chance the draw falls into
  };

  __device__ Draw(const SampleRequest& request, int sequence, int position, Shared& shared)
      : r_(request),
        shared_(shared),
        sequence_(sequence),
        uniform_(uniform_at_device(request.seed, request.first_stream + static_cast<uint64_t>(sequence),
                                   static_cast<uint64_t>(position - request.first_position))) {}
  // What it reads before.
  static __device__ void prepare(const SampleRequest& request, Shared& shared) {
    if constexpr (kKept > 0) shared.never.read(request.never_drawn, request.never_drawn_count);
  }

  __device__ int operator()() {
    logits_ = r_.logits + sequence_ * r_.stride;
    read();
    const Peak highest = peak();
    peak_ = of_ordered(highest.order);
    if (!finite_ || !isfinite(peak_)) {
      if (thread() == 0) *r_.failed = 1;
      return 0;
    }
    if (r_.temperature == 0) return highest.index;
    return drawn(highest.index);
  }

 private:
  static constexpr int kWarps = kThreads / 32;

  static __device__ int thread() { return static_cast<int>(threadIdx.x); }
  __device__ int share() const { return kKept > 0 ? kKept : (r_.vocabulary + kThreads - 1) / kThreads; }
  __device__ int first_of(int thread) const { return min(thread * share(), r_.vocabulary); }
  __device__ double chance(float logit) const { return exp((static_cast<double>(logit) - peak_) / r_.temperature); }

  // body(i, logit) of the thread's share, in its order.
  template <typename Body>
  __device__ void each(const Body& body) const {
    if constexpr (kKept > 0) {
#pragma unroll
      for (int i = 0; i < kKept; ++i) body(i, kept_[i]);
    } else {
      const int first = first_of(thread()), count = first_of(thread() + 1) - first;
#pragma unroll 4
      for (int i = 0; i < count; ++i) body(i, logits_[first + i]);
    }
  }

  __device__ void read() {
    if constexpr (kKept > 0) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kKept; ++i) {
        const int v = thread() * kKept + i;
        kept_[i] = v < r_.vocabulary ? logits_[v] : -INFINITY;
        if (shared_.never.has(v)) kept_[i] = -INFINITY;
      }
    } else {
      for (int i = thread(); i < r_.never_drawn_count; i += kThreads) logits_[r_.never_drawn[i]] = -INFINITY;
      __syncthreads();
    }
  }

  __device__ Peak peak() {
    const int first = first_of(thread());
    Peak highest{0, first};
    bool finite = true;
    each([&](int i, float logit) {
      finite = finite && logit == logit;
      highest.take({ordered(logit), first + i});
    });
    const unsigned order = __reduce_max_sync(~0u, highest.order);
    const auto index = static_cast<unsigned>(highest.index);
    const unsigned least = __reduce_min_sync(~0u, highest.order == order ? index : ~0u);
    if (thread() % 32 == 0) shared_.peaks[thread() / 32] = {order, static_cast<int>(least)};
    if (thread() == 0) {
      shared_.owner = kThreads;
      shared_.drawn = r_.vocabulary;
    }
    finite_ = __syncthreads_and(finite);
    highest = shared_.peaks[0];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) highest.take(shared_.peaks[w]);
    return highest;
  }

  __device__ int drawn(int likeliest) {
    double chances[kKept > 0 ? kKept : 1], sum = 0;
    each([&](int i, float logit) {
      const double own = chance(logit);
      if constexpr (kKept > 0) chances[i] = own;
      sum += own;
    });
    // Of a warp's threads the sums up to them, by doubling; of warps a chain. One thread's end is the next one's start.
    const int lane = thread() % 32, warp = thread() / 32;
    double end = sum;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const double before = __shfl_up_sync(~0u, end, distance);
      if (lane >= distance) end += before;
    }
    double start = __shfl_up_sync(~0u, end, 1), warp_start = 0, total = 0;
    if (lane == 0) start = 0;
    if (lane == 31) shared_.sums[warp] = end;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w == warp) warp_start = total;
      total += shared_.sums[w];
    }
    start += warp_start;
    end += warp_start;
    const double wanted = uniform_ * total;
    // Sums that are rounded may decrease from one thread to the next: of several shares the first. Of a share the last
    // that can be drawn, where sums round down.
    const bool is_own = start <= wanted && wanted < end;
    if constexpr (kKept > 0) {
      if (is_own) {
        int chosen = 0;
#pragma unroll
        for (int i = 0; i < kKept; ++i) {
          if (start <= wanted && chances[i] > 0) chosen = i;
          start += chances[i];
        }
        atomicMin(&shared_.drawn, thread() * kKept + chosen);
      }
    } else {
      if (is_own) atomicMin(&shared_.owner, thread());
      __syncthreads();
      if (shared_.owner < kThreads) walk(start, wanted);
    }
    __syncthreads();
    return shared_.drawn < r_.vocabulary ? shared_.drawn : likeliest;  // where it rounds up to the whole sum
  }

  // Through the owner's share, from its `start` on: all threads make chances, some at a time.
  __device__ void walk(double start, double wanted) {
    const int first = first_of(shared_.owner), last = first_of(shared_.owner + 1);
    int chosen = first;
    for (int at = first; at < last; at += kThreads) {
      if (at + thread() < last) shared_.chances[thread()] = chance(logits_[at + thread()]);
      __syncthreads();
      const int count = thread() == shared_.owner ? min(kThreads, last - at) : 0;
      for (int i = 0; i < count && start <= wanted; ++i) {
        if (shared_.chances[i] > 0) chosen = at + i;
        start += shared_.chances[i];
      }
      __syncthreads();
    }
    if (thread() == shared_.owner) shared_.drawn = chosen;
  }

  const SampleRequest& r_;
  Shared& shared_;
  int sequence_;
  double uniform_;
  float* logits_ = nullptr;
  float kept_[kKept > 0 ? kKept : 1], peak_ = 0;
  bool finite_ = true;
};

// What follows a draw, by the CTA's first warp: nothing, or what the next pass starts from.
struct NothingNext {
  static constexpr bool kExists = false;
};
template <typename T>
struct EmbedNext {
  static constexpr bool kExists = true;
  EmbedOperands<T> operands;
};

template <int kThreads, int kKept, typename Next>
__global__ void __launch_bounds__(kThreads, kThreads == kFewThreads ? 2 : 1)
    sample_kernel(const SampleRequest r, const Next next) {
  using Drawing = Draw<kThreads, kKept>;
  __shared__ typename Drawing::Shared shared;
  const int thread = static_cast<int>(threadIdx.x), sequence = static_cast<int>(blockIdx.x);
  const int position = *r.position + r.offset + 1;
  Drawing::prepare(r, shared);
  Token* tokens = r.tokens + sequence * r.token_stride;
  int token = tokens[position];  // where it is given; no kernel draws it before
  Drawing draw(r, sequence, position, shared);
  auto finish = [&](const auto& embed) {
    wait_for_previous();
    let_next_begin();
    if (token < 0) {
      token = draw();
      if (thread == 0) tokens[position] = static_cast<Token>(token);
    }
    embed();
  };
  if constexpr (Next::kExists) {
    const TokenPlace place{tokens, position};
    EmbeddedRow row(next.operands, place);
    finish([&] {
      if (thread < 32) row.store(next.operands, place, token, sequence);
    });
  } else {
    finish([] {});
  }
}

template <int kThreads, int kKept, typename Next = NothingNext>
void launch(const SampleRequest& request, cudaStream_t stream, const Next& next = {}) {
  launch_kernel(sample_kernel<kThreads, kKept, Next>,
                {dim3(static_cast<unsigned>(request.sequences)), kThreads, 0, 1, /*overlaps=*/true}, stream, request,
                next);
}

__global__ void advance_kernel(int* position, int steps) {
  wait_for_previous();
  let_next_begin();
  *position += steps;
}

}  // namespace

void launch_sample(const SampleRequest& request, cudaStream_t stream) {
  if (request.vocabulary <= kFewThreads * kLogits) return launch<kFewThreads, kLogits>(request, stream);
  if (request.vocabulary <= kManyThreads * kLogits) return launch<kManyThreads, kLogits>(request, stream);
  launch<kManyThreads, 0>(request, stream);
}

template <typename T>
void launch_sample_and_embed(const SampleRequest& request, const EmbedOperands<T>& embed, cudaStream_t stream) {
  if (request.vocabulary <= kFewThreads * kLogits)
    return launch<kFewThreads, kLogits>(request, stream, EmbedNext<T>{embed});
  launch_sample(request, stream);
  launch_embed(embed, {request.tokens, request.token_stride}, {request.position, request.offset + 1, 1}, {},
               request.sequences, stream);
}

void launch_advance(int* position, int steps, cudaStream_t stream) {
  launch_kernel(advance_kernel, {dim3(1), 1, 0, 1, /*overlaps=*/true}, stream, position, steps);
}

template void launch_sample_and_embed(const SampleRequest&, const EmbedOperands<float>&, cudaStream_t);
template void launch_sample_and_embed(const SampleRequest&, const EmbedOperands<__nv_bfloat16>&, cudaStream_t);
template void launch_sample_and_embed(const SampleRequest&, const EmbedOperands<__half>&, cudaStream_t);

}  // namespace thimble
