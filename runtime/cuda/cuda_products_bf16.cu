// cuda_products_bf16.cu: the products of passes in bf16.
#include "runtime/cuda/cuda_products_impl.cuh"

namespace thimble {

THIMBLE_INSTANTIATE_PRODUCTS(__nv_bfloat16)

}  // namespace thimble
