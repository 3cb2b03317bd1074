// text_model.mjs: continues texts with the model of an artifact, by thimble_model.wasm: token for token what
// `THIMBLE_ISA=portable thimble generate` writes with the same prompt, seed and temperature.

const STEP_BYTES = 16

export class TextModel {
  #utf8 = new TextEncoder()

  // `tokenizer`: the bytes of a SentencePiece model. Nothing is decoded yet.
  constructor(artifact, tokenizer) {
    this.artifact = artifact
    this.decoder = artifact.decoder
    this.pointer = this.decoder.withRoom(4, (out) => {
      this.decoder.withBytes(tokenizer, (at) =>
        this.decoder.call('thimble_text_create', artifact.pointer, at, tokenizer.length, out))
      return this.decoder.wordAt(out)
    })
  }

  // Takes a tensor's levels, whose bytes have come; false where all of it has to be loaded at once, later.
  loadLevels(tensor) {
    return this.decoder.withRoom(4, (out) => {
      this.decoder.call('thimble_text_load_levels', this.pointer, tensor.index, out)
      return this.decoder.wordAt(out) !== 0
    })
  }

  load(tensor) {
    this.decoder.call('thimble_text_load', this.pointer, tensor.index)
  }

  // Of a text, prompt and what is new, for which the model was made; 0 where nothing says it.
  get mostTokens() {
    return Number(this.decoder.exports.thimble_text_most_tokens(this.pointer))
  }

  // The tokens of a text, without the one that begins documents.
  encode(text) {
    const { decoder } = this
    const bytes = this.#utf8.encode(text)
    const most = 4 * bytes.length + 4
    return decoder.withRoom(4, (count) => decoder.withRoom(4 * most, (at) => {
      decoder.withBytes(bytes, (textAt) =>
        decoder.call('thimble_text_encode', this.pointer, textAt, bytes.length, at, most, count))
      return [...new Int32Array(decoder.exports.memory.buffer, at, decoder.wordAt(count))]
    }))
  }

  // `seed`: a BigInt of 64 bits. Then step() until it returns no more tokens.
  begin(prompt, seed, temperature, mostNewTokens) {
    const bytes = this.#utf8.encode(prompt)
    this.decoder.withBytes(bytes, (at) => this.decoder.call('thimble_text_begin', this.pointer, at, bytes.length, seed,
      temperature, mostNewTokens))
  }

  // { token, isEnd, text }: `token` is -1 at the end.
  step() {
    const { decoder } = this
    return decoder.withRoom(STEP_BYTES, (at) => {
      decoder.call('thimble_text_step', this.pointer, at)
      const data = decoder.dataAt(at, STEP_BYTES)
      const textAt = data.getUint32(8, true), textBytes = data.getUint32(12, true)
      return { token: data.getInt32(0, true), isEnd: data.getInt32(4, true) !== 0,
        text: decoder.textAt(textAt, textBytes) }
    })
  }
}
