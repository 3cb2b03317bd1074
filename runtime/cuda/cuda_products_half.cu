// cuda_products_half.cu: the products of passes in fp16.
#include "runtime/cuda/cuda_products_impl.cuh"

namespace thimble {

THIMBLE_INSTANTIATE_PRODUCTS(__half)

}  // namespace thimble
