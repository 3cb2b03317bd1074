// torch_globals.h: the Python names that a plain state dict written by torch.save may hold, and what each stands for.
// This list is the whole allow-list: read_pickle refuses every other global.
#pragma once

#include <array>
#include <cstdint>

#include "quantizer/formats/pickle.h"
#include "runtime/tensor/dtype.h"

namespace thimble {

enum class TorchRole : uint8_t {
  kDict,             // collections.OrderedDict
  kTensor,           // (storage, offset, shape, strides, ...)
  kTensorWithDtype,  // the same with the dtype as seventh argument, over an untyped storage
  kParameter,        // (tensor, requires_grad, ...)
  kStorage,          // a storage class whose elements have `dtype`
  kUntypedStorage,   // a storage class that counts bytes
  kDtype,            // torch.<dtype>
  kShape,            // torch.Size
  kInert,            // may appear outside tensors; its value is ignored
};

struct TorchGlobal {
  PickleGlobal global;
  TorchRole role;
  DType dtype = DType::kU8;  // of kStorage and kDtype
};

inline constexpr std::array kTorchGlobals = {
    TorchGlobal{{"collections", "OrderedDict", true}, TorchRole::kDict},
    TorchGlobal{{"torch._utils", "_rebuild_tensor"}, TorchRole::kTensor},
    TorchGlobal{{"torch._utils", "_rebuild_tensor_v2"}, TorchRole::kTensor},
    TorchGlobal{{"torch._utils", "_rebuild_tensor_v3"}, TorchRole::kTensorWithDtype},
    TorchGlobal{{"torch._utils", "_rebuild_parameter"}, TorchRole::kParameter},
    TorchGlobal{{"torch._utils", "_rebuild_parameter_with_state"}, TorchRole::kParameter},
    TorchGlobal{{"torch.nn.parameter", "Parameter"}, TorchRole::kParameter},
    TorchGlobal{{"torch", "Size"}, TorchRole::kShape},

    TorchGlobal{{"torch", "DoubleStorage"}, TorchRole::kStorage, DType::kF64},
    TorchGlobal{{"torch", "FloatStorage"}, TorchRole::kStorage, DType::kF32},
    TorchGlobal{{"torch", "HalfStorage"}, TorchRole::kStorage, DType::kF16},
    TorchGlobal{{"torch", "BFloat16Storage"}, TorchRole::kStorage, DType::kBF16},
    TorchGlobal{{"torch", "LongStorage"}, TorchRole::kStorage, DType::kI64},
    TorchGlobal{{"torch", "IntStorage"}, TorchRole::kStorage, DType::kI32},
    TorchGlobal{{"torch", "ShortStorage"}, TorchRole::kStorage, DType::kI16},
    TorchGlobal{{"torch", "CharStorage"}, TorchRole::kStorage, DType::kI8},
    TorchGlobal{{"torch", "ByteStorage"}, TorchRole::kStorage, DType::kU8},
    TorchGlobal{{"torch", "BoolStorage"}, TorchRole::kStorage, DType::kBool},
    TorchGlobal{{"torch.storage", "UntypedStorage"}, TorchRole::kUntypedStorage},

    TorchGlobal{{"torch", "float64"}, TorchRole::kDtype, DType::kF64},
    TorchGlobal{{"torch", "float32"}, TorchRole::kDtype, DType::kF32},
    TorchGlobal{{"torch", "float16"}, TorchRole::kDtype, DType::kF16},
    TorchGlobal{{"torch", "bfloat16"}, TorchRole::kDtype, DType::kBF16},
    TorchGlobal{{"torch", "int64"}, TorchRole::kDtype, DType::kI64},
    TorchGlobal{{"torch", "int32"}, TorchRole::kDtype, DType::kI32},
    TorchGlobal{{"torch", "int16"}, TorchRole::kDtype, DType::kI16},
    TorchGlobal{{"torch", "int8"}, TorchRole::kDtype, DType::kI8},
    TorchGlobal{{"torch", "uint16"}, TorchRole::kDtype, DType::kU16},
    TorchGlobal{{"torch", "uint8"}, TorchRole::kDtype, DType::kU8},
    TorchGlobal{{"torch", "bool"}, TorchRole::kDtype, DType::kBool},

    TorchGlobal{{"torch", "device"}, TorchRole::kInert},
    TorchGlobal{{"_codecs", "encode"}, TorchRole::kInert},   // how protocol 2 spells bytes
    TorchGlobal{{"__builtin__", "set"}, TorchRole::kInert},  // and sets
    TorchGlobal{{"builtins", "set"}, TorchRole::kInert},
    TorchGlobal{{"collections", "Counter"}, TorchRole::kInert},  // learning-rate schedules
};

// The same names as read_pickle takes them; a kGlobal's integer indexes both.
inline constexpr auto kTorchPickleGlobals = [] {
  std::array<PickleGlobal, kTorchGlobals.size()> globals;
  for (size_t i = 0; i < globals.size(); ++i) globals[i] = kTorchGlobals[i].global;
  return globals;
}();

}  // namespace thimble
