/* thimble_decode.h: reads an artifact (.thmb) and decodes its tensors, from C or anything that calls C.
 * docs/embedding.md shows it in use. No globals; no exception leaves the library; no file is opened.
 *
 * A tensor is a matrix of `rows` x `columns`, its first dimension by all others together, row-major. Those that were
 * quantized have levels, small integers, and
 *   value(r, k) = (level(r, k) * row_scale(r, k / block_columns)) * column_scale(k)
 * in float32, each product rounded: the same bits on every machine, and those of `thimble decode`.
 *
 * One artifact may be used from several threads at once when its reader may be.
 */
#ifndef THIMBLE_DECODE_H
#define THIMBLE_DECODE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32) && defined(THIMBLE_DECODE_SHARED)
#define THIMBLE_API __declspec(dllexport)
#elif defined(__wasm__)
#define THIMBLE_API __attribute__((used, visibility("default"))) /* an export of the module */
#elif defined(__GNUC__)
#define THIMBLE_API __attribute__((visibility("default")))
#else
#define THIMBLE_API
#endif

/* Numbers that the program's exit codes have mean the same here. */
typedef enum thimble_status {
  THIMBLE_OK = 0,
  THIMBLE_INTERNAL = 1,  /* a fault of this library */
  THIMBLE_USAGE = 2,     /* an argument is not what it may be */
  THIMBLE_BAD_INPUT = 4, /* the artifact is damaged, or is none */
  THIMBLE_IO = 5,        /* a read failed */
  THIMBLE_NO_MEMORY = 7,
  THIMBLE_UNSUPPORTED = 8 /* the artifact is in order, but this build lacks the compressor of a section */
} thimble_status;

/* What went wrong, for people: which file, which object, what was found and what is allowed. Empty after THIMBLE_OK.
 * Wherever one is asked for, NULL may be given. UTF-8; what is longer is cut. */
typedef struct thimble_error {
  char text[512];
} thimble_error;

typedef enum thimble_type {
  THIMBLE_F32 = 0,
  THIMBLE_F16 = 1, /* IEEE binary16; rounded to nearest, ties to even, as all narrower types */
  THIMBLE_BF16 = 2,
  THIMBLE_I8 = 3,
  THIMBLE_I16 = 4,
  THIMBLE_I32 = 5
} thimble_type;

/* Where an artifact's bytes come from. read() puts `bytes` bytes from `offset` on at `to` and returns 0, or anything
 * else where it can't. It is asked for bytes of the file alone, `file_bytes` long, and goes forward through the file
 * when tensors are decoded in the order of thimble_tensor.levels_end. `context` is handed through. */
typedef struct thimble_reader {
  void* context;
  int (*read)(void* context, uint64_t offset, void* to, size_t bytes);
} thimble_reader;

typedef struct thimble_artifact thimble_artifact;

#define THIMBLE_MAX_RANK 8

typedef struct thimble_tensor {
  const char* name;                 /* UTF-8 without control characters; owned by the artifact */
  const char* stored_as;            /* "int1" to "int8", "steps", "trellis4" to "trellis256", "nvfp4", "F16", ... */
  uint32_t rank;                    /* of the shape, at most THIMBLE_MAX_RANK; 0: a scalar */
  int32_t has_levels;               /* not 0: it was quantized */
  uint64_t shape[THIMBLE_MAX_RANK]; /* entries behind the rank are 1 */
  uint64_t elements;
  uint64_t rows, columns;         /* rows * columns == elements */
  uint64_t blocks, block_columns; /* row scales of a row, and the columns that share one; 0 without levels */
  uint64_t levels_end;            /* the first bytes_of_file in which all levels lie; 0 without levels */
  uint64_t values_end;            /* the same of all values, levels and scales */
  uint64_t stored_bytes;          /* of its levels; without them of its share of the sections that hold it */
} thimble_tensor;

/* How many bytes of a file say where everything is: the header section's end. `first`: the file's first bytes, 52 of
 * them at least. `name` is what errors call the file. A reader that still waits for the rest can open the artifact once
 * it has so many. */
THIMBLE_API thimble_status thimble_front_bytes(const void* first, size_t bytes, const char* name, uint64_t* front_bytes,
                                               thimble_error* error);

/* Reads the front of a file and checks it whole. `name` is what errors call the file. Sections' checksums are compared
 * as they are read; that of the file as thimble_check_next() goes through it. thimble_close() ends what opens. */
THIMBLE_API thimble_status thimble_open(const thimble_reader* reader, uint64_t file_bytes, const char* name,
                                        thimble_artifact** artifact, thimble_error* error);
/* The same of bytes in memory, which must outlive the artifact and stay as they are. */
THIMBLE_API thimble_status thimble_open_memory(const void* file, size_t bytes, const char* name,
                                               thimble_artifact** artifact, thimble_error* error);
THIMBLE_API void thimble_close(thimble_artifact* artifact); /* NULL: nothing */

/* Tensors ascend by name; indices start at 0. */
THIMBLE_API size_t thimble_tensor_count(const thimble_artifact* artifact);
THIMBLE_API thimble_status thimble_tensor_at(const thimble_artifact* artifact, size_t index, thimble_tensor* tensor,
                                             thimble_error* error);
/* THIMBLE_USAGE where there is none of this name. */
THIMBLE_API thimble_status thimble_find(const thimble_artifact* artifact, const char* name, size_t* index,
                                        thimble_error* error);

/* The model's config, and what made the artifact: JSON objects, owned by the artifact. */
THIMBLE_API const char* thimble_config(const thimble_artifact* artifact);
THIMBLE_API const char* thimble_provenance(const thimble_artifact* artifact);

/* Most bytes that decoding any one tensor takes besides what it writes to, by one thread. A function of the front
 * alone. */
THIMBLE_API uint64_t thimble_decode_memory(const thimble_artifact* artifact);

/* The values of one tensor into `to`, elements * size of the type bytes. F32, F16 or BF16; a tensor that holds none of
 * these three (integers, booleans, F64) is rounded to F32 first. Nothing is said of `to` after an error. */
THIMBLE_API thimble_status thimble_decode(thimble_artifact* artifact, size_t index, thimble_type type, void* to,
                                          size_t bytes, thimble_error* error);

/* The largest magnitude of the tensor's levels, or a little more: which of I8, I16, I32 hold them. Reads the head of
 * each of its sections. */
THIMBLE_API thimble_status thimble_largest_level(thimble_artifact* artifact, size_t index, uint32_t* largest,
                                                 thimble_error* error);
/* Levels alone, as I8, I16 or I32 integers: THIMBLE_USAGE where one does not fit. */
THIMBLE_API thimble_status thimble_decode_levels(thimble_artifact* artifact, size_t index, thimble_type type, void* to,
                                                 size_t bytes, thimble_error* error);
/* row_scales: rows * blocks, column_scales: columns float32. Either may be NULL. */
THIMBLE_API thimble_status thimble_decode_scales(thimble_artifact* artifact, size_t index, float* row_scales,
                                                 float* column_scales, thimble_error* error);

/* The checksum of the whole file. thimble_check_next() takes its bytes from first to last in any pieces,
 * thimble_check_end() compares; thimble_check_file() does both by the reader. A second pass starts with byte 0 after
 * the end. */
THIMBLE_API thimble_status thimble_check_next(thimble_artifact* artifact, const void* piece, size_t bytes,
                                              thimble_error* error);
THIMBLE_API thimble_status thimble_check_end(thimble_artifact* artifact, thimble_error* error);
THIMBLE_API thimble_status thimble_check_file(thimble_artifact* artifact, thimble_error* error);

#ifdef __cplusplus
}
#endif

#endif /* THIMBLE_DECODE_H */
