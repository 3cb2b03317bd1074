// wasm_import.cpp: what a WebAssembly module needs besides the C interface: a reader that its host implements, since a
// host's functions can be imported, but not be pointed to.
#include "packer/embed/thimble_decode.h"

extern "C" {

// The host's: as thimble_reader.read().
__attribute__((import_module("env"), import_name("thimble_read_bytes"))) int thimble_read_bytes(int context,
                                                                                                uint64_t offset,
                                                                                                void* to, size_t bytes);

// thimble_open() with that reader; `context` is for the host to tell its files apart.
THIMBLE_API thimble_status thimble_open_import(int context, uint64_t file_bytes, const char* name,
                                               thimble_artifact** artifact, thimble_error* error) {
  const thimble_reader reader{reinterpret_cast<void*>(context), [](void* of, uint64_t offset, void* to, size_t bytes) {
                                return thimble_read_bytes(reinterpret_cast<int>(of), offset, to, bytes);
                              }};
  return thimble_open(&reader, file_bytes, name, artifact, error);
}
}
