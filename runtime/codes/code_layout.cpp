// code_layout.cpp: the numbers of code_layout.h that follow from max_code.
#include "runtime/codes/code_layout.h"

#include "runtime/codes/quantized_model.h"

namespace thimble {

int digits_per_byte(int max_code) {
  int count = 0;
  for (int power = 2 * max_code + 1; power <= 256; power *= 2 * max_code + 1) ++count;
  return count;
}

CodeUnpacker make_code_unpacker(CodeLayout layout, int max_code, int64_t rows, int64_t columns, int64_t bytes) {
  return {layout, max_code, code_bits(max_code), digits_per_byte(max_code), rows, columns, bytes};
}

}  // namespace thimble
