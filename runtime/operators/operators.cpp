// operators.cpp: the operators on the host: rows and packs shared among threads, each row by one of them.
#include "runtime/operators/operators.h"

#include <algorithm>

#include "runtime/base/parallel.h"
#include "runtime/operators/operator_dispatch.h"

namespace thimble {
namespace {

constexpr int64_t kElementsPerTask = 1 << 15;

struct HostLaunch {
  template <typename Operation>
  void rows(const Operation& operation, int64_t rows) const {
    using In = typename Operation::In;
    constexpr int kPack = kPackOf<In, typename Operation::Out>;
    RowShape shape = row_shape(operation.cols, kPack);
    HostTeam team(shape.lanes);
    parallel_chunks(rows, std::max<int64_t>(1, kElementsPerTask / operation.cols), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        RowInMemory<In, kPack> memory{operation.x + r * operation.cols, operation.cols, false};
        if (shape.held_values > 0) {
          HostHeldRow<In, kPack> row(memory);
          operation(team, row, r);
        } else {
          StreamedRow<In, kPack> row{memory};
          operation(team, row, r);
        }
      }
    });
  }

  template <typename Operation>
  void elements(const Operation& operation) const {
    parallel_chunks(operation.packs(), kElementsPerTask / Operation::kPack, [&](int64_t begin, int64_t end) {
      for (int64_t pack = begin; pack < end; ++pack) operation(pack);
    });
  }
};

}  // namespace

void run_operator(const OperatorCall& call) { dispatch_operator(call, HostLaunch{}); }

}  // namespace thimble
