/* decode_check.c: what the decoder makes of artifacts, as text that is the same on every machine, for
 * scripts/portable-check. In C, as a program that uses the library would be.
 *   decode_check FILE...             a line per tensor: its name and hashes of its values, levels and scales
 *   decode_check --damage N FILE...  a line per file: a hash of what N damaged copies of it gave
 *   decode_check --time FILE...      a line per file: weights decoded to float32 in a second, by one thread
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "thimble_decode.h"

static const uint64_t kHashStart = 0xcbf29ce484222325u; /* FNV-1a of 64 bits */

static uint64_t hash_byte(uint64_t hash, unsigned byte) { return (hash ^ (byte & 0xff)) * 0x100000001b3u; }

/* Of numbers of `size` bytes, their bytes from the lowest to the highest whatever the machine's order. */
static uint64_t hash_numbers(uint64_t hash, const void* numbers, size_t count, size_t size) {
  const uint16_t one = 1;
  const int little = *(const uint8_t*)&one;
  const uint8_t* bytes = numbers;
  for (size_t i = 0; i < count; ++i, bytes += size)
    for (size_t b = 0; b < size; ++b) hash = hash_byte(hash, bytes[little ? b : size - 1 - b]);
  return hash;
}

typedef struct file_bytes {
  uint8_t* bytes;
  size_t count;
} file_bytes;

static file_bytes read_file(const char* path) {
  file_bytes file = {NULL, 0};
  FILE* in = fopen(path, "rb");
  if (in == NULL || fseek(in, 0, SEEK_END) != 0) {
    fprintf(stderr, "decode_check: %s can't be read\n", path);
    exit(5);
  }
  file.count = (size_t)ftell(in);
  file.bytes = malloc(file.count + 1);
  rewind(in);
  if (file.bytes == NULL || fread(file.bytes, 1, file.count, in) != file.count) {
    fprintf(stderr, "decode_check: %s can't be read\n", path);
    exit(5);
  }
  fclose(in);
  return file;
}

static int read_bytes(void* context, uint64_t offset, void* to, size_t bytes) {
  const file_bytes* file = context;
  if (offset > file->count || bytes > file->count - offset) return 1;
  memcpy(to, file->bytes + offset, bytes);
  return 0;
}

static const char* base_name(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash != NULL ? slash + 1 : path;
}

/* Room for `elements` of `size` bytes; NULL where there is none. */
static void* room_for(uint64_t elements, size_t size) {
  if (elements > (SIZE_MAX - 1) / size) return NULL;
  return malloc((size_t)elements * size + 1);
}

/* Larger tensors are left out: not every machine has the room. */
static const uint64_t kMostElements = (uint64_t)1 << 26;

/* Adds to `hash` what decoding a tensor gives. Returns the first status that is not THIMBLE_OK. */
static thimble_status hash_tensor(thimble_artifact* artifact, size_t index, uint64_t* hash, thimble_error* error) {
  static const struct {
    thimble_type type;
    size_t size;
  } kTypes[] = {{THIMBLE_F32, 4}, {THIMBLE_F16, 2}, {THIMBLE_BF16, 2}};
  thimble_tensor tensor;
  thimble_status status = thimble_tensor_at(artifact, index, &tensor, error);
  if (status != THIMBLE_OK || tensor.elements > kMostElements) return status;
  void* room = room_for(tensor.elements, 4);
  float* scales = NULL;
  if (room == NULL) return THIMBLE_NO_MEMORY;
  for (size_t t = 0; t < 3 && status == THIMBLE_OK; ++t) {
    const size_t bytes = (size_t)tensor.elements * kTypes[t].size;
    status = thimble_decode(artifact, index, kTypes[t].type, room, bytes, error);
    if (status == THIMBLE_OK) *hash = hash_numbers(*hash, room, (size_t)tensor.elements, kTypes[t].size);
  }
  if (status == THIMBLE_OK && tensor.has_levels) {
    const size_t rows = (size_t)(tensor.rows * tensor.blocks);
    uint32_t largest = 0;
    scales = room_for(tensor.rows * tensor.blocks + tensor.columns, sizeof(float));
    if (scales == NULL) status = THIMBLE_NO_MEMORY;
    if (status == THIMBLE_OK) status = thimble_largest_level(artifact, index, &largest, error);
    if (status == THIMBLE_OK)
      status = thimble_decode_levels(artifact, index, THIMBLE_I32, room, (size_t)tensor.elements * 4, error);
    if (status == THIMBLE_OK) status = thimble_decode_scales(artifact, index, scales, scales + rows, error);
    if (status == THIMBLE_OK) {
      *hash = hash_numbers(*hash, &largest, 1, 4);
      *hash = hash_numbers(*hash, room, (size_t)tensor.elements, 4);
      *hash = hash_numbers(*hash, scales, rows + (size_t)tensor.columns, 4);
    }
  }
  free(scales);
  free(room);
  return status;
}

static int print_file(const char* path) {
  file_bytes file = read_file(path);
  const thimble_reader reader = {&file, read_bytes};
  thimble_artifact *in_memory = NULL, *by_reader = NULL;
  thimble_error error;
  thimble_status status = thimble_open_memory(file.bytes, file.count, base_name(path), &in_memory, &error);
  if (status == THIMBLE_OK) status = thimble_open(&reader, file.count, base_name(path), &by_reader, &error);
  if (status == THIMBLE_OK) status = thimble_check_file(by_reader, &error);
  for (size_t i = 0; i < thimble_tensor_count(in_memory) && status == THIMBLE_OK; ++i) {
    uint64_t hash = kHashStart, again = kHashStart;
    thimble_tensor tensor;
    status = thimble_tensor_at(in_memory, i, &tensor, &error);
    if (status == THIMBLE_OK) status = hash_tensor(in_memory, i, &hash, &error);
    if (status == THIMBLE_OK) status = hash_tensor(by_reader, i, &again, &error);
    if (status == THIMBLE_OK)
      printf("%s %s %s %016llx%s\n", base_name(path), tensor.name, tensor.stored_as, (unsigned long long)hash,
             hash == again ? "" : " otherwise when read by a reader");
  }
  if (status != THIMBLE_OK) printf("%s: status %d: %s\n", base_name(path), (int)status, error.text);
  thimble_close(by_reader);
  thimble_close(in_memory);
  free(file.bytes);
  return status != THIMBLE_OK;
}

/* xorshift64 */
static uint64_t next_random(uint64_t* state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

/* Changes, cuts off or overwrites a part; every other copy has the checksum of its whole file unlooked at, as whoever
 * decodes before the last byte came. */
static void damage(file_bytes* copy, uint64_t* random) {
  const size_t at = (size_t)(next_random(random) % copy->count);
  switch (next_random(random) % 4) {
    case 0: copy->bytes[at] ^= (uint8_t)(1u << (next_random(random) % 8)); break;
    case 1: copy->count = at; break;
    case 2: copy->bytes[at % 80] = (uint8_t)next_random(random); break;
    default:
      for (size_t i = at; i < copy->count && i < at + 16; ++i) copy->bytes[i] = (uint8_t)next_random(random);
  }
}

static void print_damage(const char* path, unsigned count) {
  const file_bytes file = read_file(path);
  uint64_t random = 88172645463325252u, hash = kHashStart;
  unsigned refused = 0;
  for (unsigned n = 0; n < count; ++n) {
    file_bytes copy = {malloc(file.count + 1), file.count};
    if (copy.bytes == NULL) exit(7);
    memcpy(copy.bytes, file.bytes, file.count);
    damage(&copy, &random);
    thimble_artifact* artifact = NULL;
    thimble_error error;
    thimble_status status = thimble_open_memory(copy.bytes, copy.count, "damaged", &artifact, &error);
    if (status == THIMBLE_OK && n % 2 == 0) status = thimble_check_file(artifact, &error);
    for (size_t i = 0; i < thimble_tensor_count(artifact) && status == THIMBLE_OK; ++i)
      status = hash_tensor(artifact, i, &hash, &error);
    if (status != THIMBLE_OK && error.text[0] == '\0') printf("%s: copy %u: no text\n", base_name(path), n);
    if (status == THIMBLE_INTERNAL) printf("%s: copy %u: %s\n", base_name(path), n, error.text);
    refused += status != THIMBLE_OK;
    hash = hash_byte(hash, (unsigned)status);
    thimble_close(artifact);
    free(copy.bytes);
  }
  printf("%s: %u of %u damaged copies refused, %016llx\n", base_name(path), refused, count, (unsigned long long)hash);
  free(file.bytes);
}

static int print_time(const char* path) {
  file_bytes file = read_file(path);
  thimble_artifact* artifact = NULL;
  thimble_error error;
  thimble_status status = thimble_open_memory(file.bytes, file.count, base_name(path), &artifact, &error);
  uint64_t weights = 0;
  double best = 0;
  for (int pass = 0; pass < 3 && status == THIMBLE_OK; ++pass) {
    const clock_t began = clock();
    weights = 0;
    for (size_t i = 0; i < thimble_tensor_count(artifact) && status == THIMBLE_OK; ++i) {
      thimble_tensor tensor;
      status = thimble_tensor_at(artifact, i, &tensor, &error);
      void* room = room_for(tensor.elements, 4);
      if (status == THIMBLE_OK)
        status = thimble_decode(artifact, i, THIMBLE_F32, room, (size_t)tensor.elements * 4, &error);
      weights += tensor.elements;
      free(room);
    }
    const double seconds = (double)(clock() - began) / CLOCKS_PER_SEC;
    if (pass == 0 || seconds < best) best = seconds;
  }
  if (status != THIMBLE_OK)
    printf("%s: status %d: %s\n", base_name(path), (int)status, error.text);
  else
    printf("%s: %llu weights in %.3f s, %.1f M weights/s, at most %llu B besides the output\n", base_name(path),
           (unsigned long long)weights, best, (double)weights / best / 1e6,
           (unsigned long long)thimble_decode_memory(artifact));
  thimble_close(artifact);
  free(file.bytes);
  return status != THIMBLE_OK;
}

int main(int count, char** arguments) {
  const int timed = count > 1 && strcmp(arguments[1], "--time") == 0;
  const int damaged = count > 2 && strcmp(arguments[1], "--damage") == 0;
  int first = 1, failed = 0;
  if (timed) first = 2;
  if (damaged) first = 3;
  for (int i = first; i < count; ++i) {
    if (damaged)
      print_damage(arguments[i], (unsigned)strtoul(arguments[2], NULL, 10));
    else
      failed |= timed ? print_time(arguments[i]) : print_file(arguments[i]);
  }
  return failed;
}
