// cuda_products_float.cu: the products of passes in fp32.
#include "runtime/cuda/cuda_products_impl.cuh"

namespace thimble {

THIMBLE_INSTANTIATE_PRODUCTS(float)

}  // namespace thimble
