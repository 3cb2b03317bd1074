/* text_model.h: continues texts with the language model of an artifact, from C or anything that calls C: what a page
 * loads as WebAssembly. The forward pass, the sampling and the tokenizer are the program's own: the tokens are those of
 * `THIMBLE_ISA=portable thimble generate` with the same prompt, seed and temperature.
 *
 *   thimble_open_import(...) or thimble_open_memory(...)     the artifact (thimble_decode.h)
 *   thimble_text_create(artifact, tokenizer, ...)            checks config, shapes and tokenizer; decodes nothing
 *   thimble_text_load_levels(model, tensor, ...)             may go before, as a tensor's levels come in
 *   thimble_text_load(model, tensor, ...)                    for each tensor, in any order, as its bytes come in
 *   thimble_text_begin(model, prompt, ...)                   runs nothing yet
 *   thimble_text_step(model, ...)                            the next token, until is_end
 *
 * No globals; no exception leaves. One model is used by one thread at a time.
 */
#ifndef THIMBLE_TEXT_MODEL_H
#define THIMBLE_TEXT_MODEL_H

#include "packer/embed/thimble_decode.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct thimble_text_model thimble_text_model;

/* `tokenizer`: the bytes of a SentencePiece model of byte-pair encoding, which are copied. The artifact must outlive
 * the model until the last tensor is loaded; no reader is called here. THIMBLE_BAD_INPUT where config, tensors and
 * tokenizer do not describe a model that runs. thimble_text_close() ends what this makes. */
THIMBLE_API thimble_status thimble_text_create(thimble_artifact* artifact, const void* tokenizer,
                                               size_t tokenizer_bytes, thimble_text_model** model,
                                               thimble_error* error);
THIMBLE_API void thimble_text_close(thimble_text_model* model); /* NULL: nothing */

/* Decodes the levels of a tensor of which thimble_tensor.levels_end bytes of the file are there, while those of its
 * scales, which lie at the end, are still to come; thimble_text_load() then reads no byte before levels_end. *taken is
 * 0 where the model keeps no levels of this tensor: all of it is read when it is loaded. */
THIMBLE_API thimble_status thimble_text_load_levels(thimble_text_model* model, size_t tensor, int32_t* taken,
                                                    thimble_error* error);
/* Decodes the tensor of this index in the artifact, straight to where the model keeps it; again: nothing is done. After
 * the last one the artifact may be closed. */
THIMBLE_API thimble_status thimble_text_load(thimble_text_model* model, size_t tensor, thimble_error* error);
/* How many tensors are still to be loaded. */
THIMBLE_API size_t thimble_text_missing(const thimble_text_model* model);

/* Tokens of the vocabulary. */
THIMBLE_API uint32_t thimble_text_vocabulary(const thimble_text_model* model);
/* Tokens of the longest text, prompt and what is new, that the model was made for, 0 where nothing says it. Longer ones
 * than its family can run are THIMBLE_USAGE in thimble_text_begin(). */
THIMBLE_API uint64_t thimble_text_most_tokens(const thimble_text_model* model);

/* The tokens of a text (UTF-8), without the one that begins documents. *count is how many there are; where that is
 * more than `capacity`, THIMBLE_USAGE, and nothing is written to `tokens`, which may then be NULL. A text has at most
 * as many tokens as four times its bytes and four. */
THIMBLE_API thimble_status thimble_text_encode(const thimble_text_model* model, const char* text, size_t text_bytes,
                                               int32_t* tokens, size_t capacity, size_t* count, thimble_error* error);

/* Begins to continue `prompt` (UTF-8, may be empty) by at most `most_new_tokens`, at least one; whatever was begun
 * before ends. `temperature` 0 takes the likeliest token. All tensors must be loaded. */
THIMBLE_API thimble_status thimble_text_begin(thimble_text_model* model, const char* prompt, size_t prompt_bytes,
                                              uint64_t seed, double temperature, uint32_t most_new_tokens,
                                              thimble_error* error);

/* 16 bytes where pointers have 32 bits: token at 0, is_end at 4, text at 8, text_bytes at 12. */
typedef struct thimble_text_step_result {
  int32_t token;     /* the new one; -1 where is_end */
  int32_t is_end;    /* not 0: the model ended the document, or all tokens were made; there is no new one */
  const char* text;  /* what the token adds, UTF-8 without NUL at its end, in memory of the model until the next call */
  size_t text_bytes; /* 0 while bytes of a character are missing: they come with the token that completes it, */
                     /* or at the end as U+FFFD each */
} thimble_text_step_result;

/* The next token. The first step of a text runs the whole prompt. After the end: the end again, without text. */
THIMBLE_API thimble_status thimble_text_step(thimble_text_model* model, thimble_text_step_result* result,
                                             thimble_error* error);

#ifdef __cplusplus
}
#endif

#endif /* THIMBLE_TEXT_MODEL_H */
