// torch_tensors.h: turns the rebuild calls recorded in a state dict's pickle into tensors.
//
// In: the pickle's values and the archive that holds the storages.  Out: views of the storages' bytes; a tensor whose
// strides are not row-major contiguous (a transposed view, say) is gathered into memory owned here.
// Every offset, shape and stride is checked against its storage before use. FormatErrors name the tensor.
// Gradient flags and hooks are ignored. Non-goals: sparse, quantized, complex, conjugate and negative-view tensors.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "quantizer/checkpoints/pickle.h"
#include "quantizer/checkpoints/torch_globals.h"
#include "quantizer/checkpoints/zip_archive.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

constexpr size_t kMaxTorchRank = 32;

class TorchTensors {
 public:
  // The storages are the entries "<prefix>/data/<key>". Tensors that must be gathered may take `gather_limit_bytes`
  // together, so that views which repeat elements cannot blow a small file up.
  TorchTensors(const Pickle& pickle, const ZipArchive& archive, std::string prefix, std::string path, CrcCheck check,
               uint64_t gather_limit_bytes);

  bool is_tensor(PickleIndex value) const;
  // `value` must be a tensor; `name` names it in errors. A storage's CRC-32 is checked the first time it is used.
  TensorView read(PickleIndex value, std::string_view name);

  // The memory behind the gathered tensors; the views stay valid when it is moved.
  std::vector<ByteVector>& gathered() { return gathered_; }

 private:
  struct Storage {
    TorchRole role = TorchRole::kStorage;
    DType dtype = DType::kU8;
    Bytes bytes;
  };

  const TorchGlobal* called(PickleIndex value) const;
  const TorchGlobal* global(PickleIndex value) const;
  const std::vector<PickleIndex>& arguments(PickleIndex call, size_t least, const std::string& where) const;
  TensorView read_rebuild(PickleIndex call, const std::string& where);
  Storage read_storage(PickleIndex value, const std::string& where);
  int64_t read_size(PickleIndex value, const char* object, const std::string& where) const;
  Shape read_sizes(PickleIndex value, const char* object, const std::string& where) const;
  Bytes gather(Bytes storage, const TensorView& tensor, uint64_t count, const Shape& strides, const std::string& where);

  const Pickle& pickle_;
  const ZipArchive& archive_;
  std::string prefix_;
  std::string path_;
  CrcCheck check_;
  uint64_t gather_left_bytes_;
  std::set<std::string> verified_;  // names of entries whose CRC-32 was checked
  std::vector<ByteVector> gathered_;
};

}  // namespace thimble
