// operator_kernels.cuh: the kernels around row_operators.h and element_operators.h. For CUDA and HIP; who includes this
// launches them.
#pragma once

#include "runtime/operators/element_operators.h"
#include "runtime/operators/row_operators.h"
#include "runtime/tensor/device_team.cuh"

namespace thimble {

constexpr int kOperatorThreads = 256;  // of blocks that hold rows, and of elements

// kLanes threads per row, kValues elements of it in each one's registers; with 0 the row is read again instead.
template <typename Operation, int kLanes, int kValues>
__global__ void __launch_bounds__(kLanes > kOperatorThreads ? kLanes : kOperatorThreads)
    row_operator_kernel(const Operation operation, int64_t rows) {
  using In = typename Operation::In;
  constexpr int kPack = kPackOf<In, typename Operation::Out>;
  int64_t row = static_cast<int64_t>(blockIdx.x) * (blockDim.x / kLanes) + threadIdx.x / kLanes;
  if (row >= rows) return;
  DeviceTeam<kLanes> team;
  RowInMemory<In, kPack> memory{operation.x + row * operation.cols, operation.cols,
                                packs_are_aligned<In, kPack>(operation.x, operation.cols)};
  if constexpr (kValues > 0) {
    DeviceHeldRow<In, kPack, kValues / kPack> held(memory, team.lane(), kLanes);
    operation(team, held, row);
  } else {
    StreamedRow<In, kPack> streamed{memory};
    operation(team, streamed, row);
  }
}

// One pack per thread.
template <typename Operation>
__global__ void __launch_bounds__(kOperatorThreads) element_operator_kernel(const Operation operation) {
  int64_t pack = static_cast<int64_t>(blockIdx.x) * kOperatorThreads + threadIdx.x;
  if (pack < operation.packs()) operation(pack);
}

// Calls launch(kernel, blocks, threads) with the kernel for rows of this length.
template <typename Operation, typename Launch>
void choose_row_kernel(const Operation& operation, int64_t rows, const Launch& launch) {
  constexpr int kPack = kPackOf<typename Operation::In, typename Operation::Out>;
  RowShape shape = row_shape(operation.cols, kPack);
  constexpr int kRowsPerBlock = kOperatorThreads / kLanesPerWarp;
  if (shape.lanes == kLanesPerWarp)
    return launch(row_operator_kernel<Operation, kLanesPerWarp, 16>, divide_up(rows, kRowsPerBlock), kOperatorThreads);
  auto blocks = static_cast<int>(rows);
  if (shape.lanes == 2 * kHeldRowLanes)
    return launch(row_operator_kernel<Operation, 2 * kHeldRowLanes, 32>, blocks, shape.lanes);
  switch (shape.held_values) {
    case 8: return launch(row_operator_kernel<Operation, kHeldRowLanes, 8>, blocks, shape.lanes);
    case 16: return launch(row_operator_kernel<Operation, kHeldRowLanes, 16>, blocks, shape.lanes);
    case 32: return launch(row_operator_kernel<Operation, kHeldRowLanes, 32>, blocks, shape.lanes);
    default: return launch(row_operator_kernel<Operation, 1024, 0>, blocks, shape.lanes);
  }
}

}  // namespace thimble
