// widening_products.h: products with a StoredMatrixView that is not float32. Only for kernel_rows.h, which
// is compiled once per instruction set and has included Eigen under a name of its own.
//
// Eigen copies blocks of its operands into the order that its kernels read, and asks a mapper for each packet of them.
// The mapper here widens elements on their way into such a block: no float32 copy of the matrix is made, and blocks,
// kernels and the order of sums are those of the same product with a float32 matrix, so that the results are the same
// bits.
#pragma once

namespace thimble {
namespace {

template <int kCount, typename Element>
struct VectorOf {
  typedef Element Type __attribute__((vector_size(kCount * sizeof(Element))));
};

template <typename To, typename From>
To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

// Of types that hold kCount elements each: what is loaded, float32 and its bits.
template <int kCount, typename Stored>
struct Elements {
  using Loaded = typename VectorOf<kCount, Stored>::Type;
  using Floats = typename VectorOf<kCount, float>::Type;
  using Words = typename VectorOf<kCount, uint32_t>::Type;
  using Shorts = typename VectorOf<kCount, int16_t>::Type;
  using Integers = typename VectorOf<kCount, int32_t>::Type;
};
template <typename Stored>
struct Elements<1, Stored> {
  using Loaded = Stored;
  using Floats = float;
  using Words = uint32_t;
  using Shorts = int16_t;
  using Integers = int32_t;
};

template <int kCount, typename To, typename From>
To converted(const From& from) {
  if constexpr (kCount == 1)
    return static_cast<To>(from);
  else
    return __builtin_convertvector(from, To);
}

template <typename Loaded>
Loaded load(const std::byte* data, int64_t index, size_t element_bytes) {
  Loaded loaded;
  __builtin_memcpy(&loaded, data + static_cast<size_t>(index) * element_bytes, sizeof(Loaded));
  return loaded;
}

struct StoredElements {
  const std::byte* data;
  int64_t stride;
  explicit StoredElements(const StoredMatrixView& m) : data(m.data), stride(m.stride) {}
};

struct FloatElements : StoredElements {
  using StoredElements::StoredElements;

  // The values of columns [c, c + kCount) of row r.
  template <int kCount>
  auto at(int64_t r, int64_t c) const {
    return load<typename Elements<kCount, float>::Loaded>(data, r * stride + c, sizeof(float));
  }
};

struct Bf16Elements : StoredElements {
  using StoredElements::StoredElements;

  template <int kCount>
  auto at(int64_t r, int64_t c) const {
    using E = Elements<kCount, uint16_t>;
    const auto stored = load<typename E::Loaded>(data, r * stride + c, 2);
    return bits_as<typename E::Floats>(converted<kCount, typename E::Words>(stored) << 16);
  }
};

// Exponent and mantissa in their new places make a float whose exponent is too small by 112; infinities and NaN then
// need theirs filled. Multiplying by a power of two is exact, of subnormals too.
struct Fp16Elements : StoredElements {
  using StoredElements::StoredElements;

  template <int kCount>
  auto at(int64_t r, int64_t c) const {
    using E = Elements<kCount, uint16_t>;
    using Words = typename E::Words;
    const Words stored = converted<kCount, Words>(load<typename E::Loaded>(data, r * stride + c, 2));
    const auto magnitude = bits_as<typename E::Floats>((stored & 0x7fffu) << 13) * 0x1p112f;
    const Words is_not_finite = ((stored & 0x7c00u) + 0x400u) >> 15;  // 1 where the exponent is all ones, else 0
    return bits_as<typename E::Floats>(bits_as<Words>(magnitude) | (is_not_finite * 0x7f800000u) |
                                       ((stored & 0x8000u) << 16));
  }
};

template <typename Code>
struct CodeElements : StoredElements {
  const float *rows, *columns, *gains;
  explicit CodeElements(const StoredMatrixView& m)
      : StoredElements(m), rows(m.row_factors), columns(m.column_factors), gains(m.gains) {}

  template <int kCount>
  auto at(int64_t r, int64_t c) const {
    using E = Elements<kCount, Code>;
    using Floats = typename E::Floats;
    const auto codes = load<typename E::Loaded>(data, r * stride + c, sizeof(Code));
    const auto factors = load<Floats>(reinterpret_cast<const std::byte*>(columns), c, sizeof(float));
    // Twice as wide at a time: GCC would do longer steps element by element.
    const auto wide = converted<kCount, typename E::Integers>(converted<kCount, typename E::Shorts>(codes));
    return ((converted<kCount, Floats>(wide) * rows[r]) * factors) * gains[r];
  }
};

// What Eigen takes for its left operand, (rows, depth): the matrix, or its transpose, from an element on.
template <typename Stored, bool kIsTransposed>
class WideningMapper {
 public:
  using LinearMapper = WideningMapper;  // asked for by name alone

  explicit WideningMapper(const Stored& elements, int64_t row = 0, int64_t col = 0)
      : elements_(elements), row_(row), col_(col) {}

  WideningMapper getSubMapper(int64_t i, int64_t j) const {
    return WideningMapper(elements_, row_ + (kIsTransposed ? j : i), col_ + (kIsTransposed ? i : j));
  }
  float operator()(int64_t i, int64_t j) const { return loadPacket<float>(i, j); }
  // Packets lie along the matrix's rows.
  template <typename Packet>
  Packet loadPacket(int64_t i, int64_t j) const {
    constexpr int kCount = sizeof(Packet) / sizeof(float);
    return bits_as<Packet>(
        elements_.template at<kCount>(row_ + (kIsTransposed ? j : i), col_ + (kIsTransposed ? i : j)));
  }

 private:
  Stored elements_;
  int64_t row_, col_;
};

// c += a m with m = b^T (kIsTransposed: b), as Eigen does it for matrices of run-time sizes: of the transposes, whose
// columns are these rows.
template <bool kIsTransposed, typename Stored>
void add_widened_product(ConstMatrixView a, const Stored& elements, MatrixView c) {
  using Mapper = WideningMapper<Stored, kIsTransposed>;
  constexpr int kOrder = kIsTransposed ? Eigen::ColMajor : Eigen::RowMajor;
  using Index = Eigen::Index;
  namespace internal = Eigen::internal;
  const Mapper left(elements);
  using Traits = internal::gebp_traits<float, float>;
  using RightMapper = internal::const_blas_data_mapper<float, Index, Eigen::ColMajor>;
  using ResultMapper = internal::blas_data_mapper<float, Index, Eigen::ColMajor, Eigen::Unaligned, 1>;
  internal::gemm_pack_lhs<float, Index, Mapper, Traits::mr, Traits::LhsProgress, Traits::LhsPacket4Packing, kOrder>
      pack_left;
  internal::gemm_pack_rhs<float, Index, RightMapper, Traits::nr, Eigen::ColMajor> pack_right;
  internal::gebp_kernel<float, float, Index, ResultMapper, Traits::mr, Traits::nr, false, false> multiply;
  const RightMapper right(a.data, a.stride);
  const ResultMapper result(c.data, c.stride);
  const Index rows = c.cols, cols = c.rows, depth = a.cols;
  internal::gemm_blocking_space<Eigen::ColMajor, float, float, Eigen::Dynamic, Eigen::Dynamic, Eigen::Dynamic> blocking(
      rows, cols, depth, 1, true);
  blocking.allocateAll();
  const auto least = [](Index x, Index y) { return x < y ? x : y; };
  const Index row_block = least(rows, blocking.mc()), col_block = least(cols, blocking.nc());
  const Index depth_block = blocking.kc();
  const bool packs_right_once = row_block != rows && depth_block == depth && col_block == cols;
  for (Index i = 0; i < rows; i += row_block) {
    const Index block_rows = least(row_block, rows - i);
    for (Index k = 0; k < depth; k += depth_block) {
      const Index block_depth = least(depth_block, depth - k);
      pack_left(blocking.blockA(), left.getSubMapper(i, k), block_depth, block_rows);
      for (Index j = 0; j < cols; j += col_block) {
        const Index block_cols = least(col_block, cols - j);
        if (!packs_right_once || i == 0)
          pack_right(blocking.blockB(), right.getSubMapper(k, j), block_depth, block_cols);
        multiply(result.getSubMapper(i, j), blocking.blockA(), blocking.blockB(), block_rows, block_depth, block_cols,
                 1.0f);
      }
    }
  }
}

// body(elements) of a matrix that is not float32.
template <typename Body>
void with_elements(const StoredMatrixView& m, const Body& body) {
  switch (m.dtype) {
    case DType::kBF16: return body(Bf16Elements(m));
    case DType::kF16: return body(Fp16Elements(m));
    case DType::kI16: return body(CodeElements<int16_t>(m));
    default: return body(CodeElements<int8_t>(m));
  }
}

// The float32 values of a matrix of few elements, `stride` apart by rows.
class WidenedMatrix {
 public:
  WidenedMatrix(const StoredMatrixView& m, int64_t stride) : rows_(m.rows), cols_(m.cols), values_(m.rows, stride) {
    with_elements(m, [&](const auto& elements) {
      constexpr int kPacket = Eigen::internal::packet_traits<float>::size;
      for (int64_t r = 0; r < m.rows; ++r) {
        float* out = values_.data() + r * values_.cols();
        int64_t k = 0;
        for (; k + kPacket <= m.cols; k += kPacket) {
          const auto packet = elements.template at<kPacket>(r, k);
          __builtin_memcpy(out + k, &packet, sizeof(packet));
        }
        for (; k < m.cols; ++k) out[k] = elements.template at<1>(r, k);
      }
    });
  }
  ConstMatrixView view() const { return {values_.data(), rows_, cols_, values_.cols()}; }

 private:
  int64_t rows_, cols_;
  Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> values_;
};

// The float32 values of a matrix of few elements, where they lie or widened.
class FloatValues {
 public:
  explicit FloatValues(const StoredMatrixView& m) {
    if (!m.is_float32()) widened_.emplace(m, m.cols);
    view_ = widened_ ? widened_->view() : m.float32();
  }
  const ConstMatrixView& view() const { return view_; }

 private:
  std::optional<WidenedMatrix> widened_;
  ConstMatrixView view_;
};

// body(first row, WidenedMatrix of rows of m) for parts of `rows` rows, and more in the last. A product of a single row
// reads the matrix in place, by kernels whose last elements compilers add up as they like: only these kernels, called
// for parts whose borders are those of their own steps, give the same bits.
template <typename Body>
void for_each_widened_part(const StoredMatrixView& m, int64_t rows, int64_t stride, const Body& body) {
  for (int64_t first = 0, count = 0; first < m.rows; first += count) {
    count = m.rows - first < 2 * rows ? m.rows - first : rows;
    body(first, WidenedMatrix(m.block_rows(first, count), stride));
  }
}
constexpr int64_t kVectorRows = 24;    // of m in a m^T: a multiple of 8
constexpr int64_t kVectorDepth = 128;  // of m in a m: a multiple of 16, and long
constexpr int64_t kLongStride = 8000;  // from here on, other steps

// Does Eigen take another way for so small a product, or for one with a single column? Then the matrix is small too.
bool is_special(ConstMatrixView a, MatrixView c) {
  return a.cols + c.rows + c.cols < EIGEN_GEMM_TO_COEFFBASED_THRESHOLD || c.cols == 1 || a.cols == 0;
}

}  // namespace
}  // namespace thimble
