// product_cutlass.cu: products by CUTLASS 4 (cutlass.h), for cuda_products_bench: its schedules of warps on Hopper,
// with what follows in its epilogue visitor trees. Stream-K is off: a row's sum would depend on the batch.
#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/fusion/operations.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/util/packed_stride.hpp>

#include "bench/runtime/product_contenders.cuh"
#include "runtime/base/error.h"

namespace thimble {
namespace {

using cute::Int;
using cute::Shape;
using Element = cutlass::bfloat16_t;

// leaky_relu(z, 0.5)^2, as a functor of CUTLASS's epilogues.
template <typename T>
struct LeakyReluSquared {
  CUTLASS_HOST_DEVICE T operator()(T z) const {
    const T y = z > T(0) ? z : T(0.5f) * z;
    return y * y;
  }
};
template <typename T, int kCount>
struct LeakyReluSquared<cutlass::Array<T, kCount>> {
  CUTLASS_HOST_DEVICE cutlass::Array<T, kCount> operator()(const cutlass::Array<T, kCount>& z) const {
    cutlass::Array<T, kCount> y;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; ++i) y[i] = LeakyReluSquared<T>()(z[i]);
    return y;
  }
};

template <Follows kFollows>
struct FusionOf {
  using Type = cutlass::epilogue::fusion::LinearCombination<Element, float>;
};
template <>
struct FusionOf<Follows::kActivation> {
  using Type = cutlass::epilogue::fusion::LinCombEltAct<LeakyReluSquared, Element, float>;
};

template <Follows kFollows, typename Tile, typename Cluster, typename MainloopSchedule, typename EpilogueSchedule>
class Multiplication {
  static constexpr int kAligned = 8;  // elements in 16 bytes
  // Nothing is read where nothing is added to.
  using Old = std::conditional_t<kFollows == Follows::kSum, Element, void>;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, Old, cutlass::layout::RowMajor, kAligned, Element,
      cutlass::layout::RowMajor, kAligned, EpilogueSchedule, typename FusionOf<kFollows>::Type>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, cutlass::layout::RowMajor, kAligned, Element,
      cutlass::layout::ColumnMajor, kAligned, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      MainloopSchedule>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Mainloop, Epilogue>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

 public:
  static void run(const Product& p) {
    static const cutlass::KernelHardwareInfo device = [] {
      cutlass::KernelHardwareInfo info;
      info.sm_count = cutlass::KernelHardwareInfo::query_device_multiprocessor_count(0);
      return info;
    }();
    const auto rows = static_cast<int>(p.rows);
    const auto x = cutlass::make_cute_packed_stride(typename Kernel::StrideA{}, {rows, p.depth, 1});
    const auto weight = cutlass::make_cute_packed_stride(typename Kernel::StrideB{}, {p.columns, p.depth, 1});
    const auto out = cutlass::make_cute_packed_stride(typename Kernel::StrideD{}, {rows, p.columns, 1});
    auto* to = reinterpret_cast<Element*>(p.out);
    typename Gemm::Arguments arguments{
        cutlass::gemm::GemmUniversalMode::kGemm,
        {rows, p.columns, p.depth, 1},
        {reinterpret_cast<const Element*>(p.x), x, reinterpret_cast<const Element*>(p.weight), weight},
        {{}, nullptr, {}, to, out},
        device};
    arguments.epilogue.thread.alpha = 1;
    if constexpr (kFollows == Follows::kSum) {
      arguments.epilogue.thread.beta = 1;
      arguments.epilogue.ptr_C = to;
      arguments.epilogue.dC = out;
    }
    Gemm gemm;
    if (Gemm::get_workspace_size(arguments) > 0) throw DeviceError("CUTLASS: wants a workspace");
    for (const cutlass::Status status : {gemm.can_implement(arguments), gemm.initialize(arguments), gemm.run()})
      if (status != cutlass::Status::kSuccess)
        throw DeviceError(std::string("CUTLASS: ") + cutlassGetStatusString(status));
  }
};

template <Follows kFollows>
std::vector<Contender> contenders() {
  using namespace cutlass::gemm;
  using namespace cutlass::epilogue;
  using Pair = Shape<Int<2>, Int<1>, Int<1>>;
  using Square = Shape<Int<128>, Int<128>, Int<64>>;
  using Wide = Shape<Int<128>, Int<256>, Int<64>>;
  using Flat = Shape<Int<64>, Int<256>, Int<64>>;
  return {
      {"CUTLASS cooperative 128 x 256",
       Multiplication<kFollows, Wide, Pair, KernelTmaWarpSpecializedCooperative, TmaWarpSpecializedCooperative>::run},
      {"CUTLASS ping-pong 128 x 128",
       Multiplication<kFollows, Square, Pair, KernelTmaWarpSpecializedPingpong, TmaWarpSpecialized>::run},
      {"CUTLASS ping-pong 64 x 256",
       Multiplication<kFollows, Flat, Pair, KernelTmaWarpSpecializedPingpong, TmaWarpSpecialized>::run}};
}

}  // namespace

std::vector<Contender> cutlass_contenders(Follows follows) {
  switch (follows) {
    case Follows::kNothing: return contenders<Follows::kNothing>();
    case Follows::kActivation: return contenders<Follows::kActivation>();
    case Follows::kSum: return contenders<Follows::kSum>();
  }
  return {};
}

}  // namespace thimble
