// thimble.mjs: opens artifacts (.thmb) and decodes their tensors, in browsers and in Node, with thimble_decode.wasm or
// thimble_model.wasm. Files that are still being downloaded are decoded as their bytes come.
//
//   const decoder = await Decoder.load(new URL('thimble_decode.wasm', import.meta.url))
//   const artifact = await Artifact.open(decoder, bytes)
//   for (const tensor of artifact.tensors) use(tensor.name, await artifact.values(tensor, 'F32'))
//   await artifact.check()
//   artifact.close()
//
// Quantized tensors are levels, small integers, and scales; in float32, each product rounded,
//   value(r, k) = (level(r, k) * rowScale(r, floor(k / blockColumns))) * columnScale(k)
import { GrowingBytes } from './bytes.mjs'

const CODES = { 1: 'INTERNAL', 2: 'USAGE', 4: 'BAD_INPUT', 5: 'IO', 7: 'NO_MEMORY', 8: 'UNSUPPORTED' }
// Numbers of thimble_type, and the arrays that hold them: F16 and BF16 as their 16 bits.
const TYPES = { F32: 0, F16: 1, BF16: 2, I8: 3, I16: 4, I32: 5 }
const ARRAYS = { F32: Float32Array, F16: Uint16Array, BF16: Uint16Array, I8: Int8Array, I16: Int16Array, I32: Int32Array }
const ERROR_BYTES = 512
const TENSOR_BYTES = 144
const FIRST_BYTES = 52 // say how long the front of a file is
const HASHED_AT_ONCE = 1 << 16
const MOST_MEMORY = 2 ** 32

// `code`: 'BAD_INPUT' for a damaged artifact or none, 'UNSUPPORTED' for one whose compressor the module lacks, 'USAGE',
// 'IO', 'NO_MEMORY' or 'INTERNAL'. The text says which object, what was found and what is allowed.
export class ThimbleError extends Error {
  constructor(code, text) {
    super(text)
    this.name = 'ThimbleError'
    this.code = code
  }
}

// An instance of the module. After an error 'INTERNAL' it is of no more use.
export class Decoder {
  #files = new Map() // by context of thimble_open_import()
  #lastContext = 0
  #error
  #utf8 = new TextDecoder()
  busyMilliseconds = 0 // in calls of the C interface

  // `source`: an address, the module's bytes, or a WebAssembly.Module.
  static async load(source) {
    if (source instanceof URL || typeof source === 'string') {
      const response = await fetch(source)
      if (!response.ok) throw new ThimbleError('IO', `${source}: the server answers ${response.status}`)
      source = await response.arrayBuffer()
    }
    const module = source instanceof WebAssembly.Module ? source : await WebAssembly.compile(source)
    const decoder = new Decoder()
    await decoder.#start(module)
    return decoder
  }

  async #start(module) {
    // What a module of Emscripten's asks of its host besides the reader: nothing that decoding needs.
    const imports = {}
    for (const { module: from, name } of WebAssembly.Module.imports(module)) (imports[from] ??= {})[name] = () => 0
    imports.env.thimble_read_bytes = (context, offset, to, bytes) =>
      this.#files.get(context).read(Number(offset), this.bytesAt(to, bytes)) ? 0 : 1
    this.exports = (await WebAssembly.instantiate(module, imports)).exports
    this.exports._initialize()
    this.#error = this.allocate(ERROR_BYTES)
  }

  get memoryBytes() {
    return this.exports.memory.buffer.byteLength
  }

  // Views hold until the next call: memory may grow and move.
  bytesAt(at, bytes) {
    return new Uint8Array(this.exports.memory.buffer, at >>> 0, bytes >>> 0)
  }
  dataAt(at, bytes) {
    return new DataView(this.exports.memory.buffer, at >>> 0, bytes)
  }
  wordAt(at) {
    return this.dataAt(at, 4).getUint32(0, true)
  }
  textAt(at, bytes) {
    return this.#utf8.decode(this.bytesAt(at, bytes))
  }
  zeroEndedTextAt(at) {
    const rest = new Uint8Array(this.exports.memory.buffer, at >>> 0)
    return this.textAt(at, rest.indexOf(0))
  }

  allocate(bytes) {
    const at = bytes < MOST_MEMORY ? this.exports.malloc(Math.max(1, bytes)) : 0
    if (at === 0) throw new ThimbleError('NO_MEMORY', `not enough memory for ${bytes.toLocaleString('en')} B`)
    return at
  }
  free(at) {
    this.exports.free(at)
  }
  // Calls use(address) with room that is freed afterwards.
  withRoom(bytes, use) {
    const at = this.allocate(bytes)
    try {
      return use(at)
    } finally {
      this.free(at)
    }
  }
  withBytes(bytes, use) {
    return this.withRoom(bytes.length, (at) => {
      this.bytesAt(at, bytes.length).set(bytes)
      return use(at)
    })
  }

  // Calls a function of the C interface, whose last argument is where its error goes.
  call(name, ...rest) {
    let status
    const began = performance.now()
    try {
      status = this.exports[name](...rest, this.#error)
    } catch (fault) {
      throw new ThimbleError('INTERNAL', `a fault of the module: ${fault.message}`)
    } finally {
      this.busyMilliseconds += performance.now() - began
    }
    if (status !== 0) throw new ThimbleError(CODES[status] ?? 'INTERNAL', this.zeroEndedTextAt(this.#error))
  }

  addFile(file) {
    this.#files.set(++this.#lastContext, file)
    return this.#lastContext
  }
  removeFile(context) {
    this.#files.delete(context)
  }
}

// An array in the module's memory.
export class Kept {
  constructor(decoder, at, arrayType, length) {
    Object.assign(this, { decoder, at, arrayType, length })
  }
  get bytes() {
    return this.length * this.arrayType.BYTES_PER_ELEMENT
  }
  // Holds until the module is called again: memory may grow and move.
  get array() {
    return new this.arrayType(this.decoder.exports.memory.buffer, this.at >>> 0, this.length)
  }
  // A copy of it, which stays; the array itself is freed.
  take() {
    const copy = this.array.slice()
    this.free()
    return copy
  }
  free() {
    this.decoder.free(this.at)
  }
}

export class Artifact {
  #context
  #checked = 0 // bytes of the file that went into its checksum
  #done = 0 // bytes of the file that need not be read again

  // `file`: a Uint8Array, an ArrayBuffer or GrowingBytes. Resolves as soon as the front of the file has come.
  static async open(decoder, file) {
    const artifact = new Artifact()
    artifact.decoder = decoder
    artifact.file = file instanceof GrowingBytes ? file : GrowingBytes.of(file)
    await artifact.#open()
    return artifact
  }

  async #open() {
    const { decoder, file } = this
    const first = new Uint8Array(Math.min(FIRST_BYTES, file.size))
    await file.until(first.length)
    file.read(0, first)
    const name = new TextEncoder().encode(`${file.name}\0`)
    const frontBytes = decoder.withRoom(8, (out) => {
      decoder.withBytes(name, (nameAt) => decoder.withBytes(first, (at) =>
        decoder.call('thimble_front_bytes', at, first.length, nameAt, out)))
      return Number(decoder.dataAt(out, 8).getBigUint64(0, true))
    })
    await file.until(frontBytes)
    this.#context = decoder.addFile(file)
    this.pointer = decoder.withRoom(4, (out) => {
      decoder.withBytes(name, (nameAt) =>
        decoder.call('thimble_open_import', this.#context, BigInt(file.size), nameAt, out))
      return decoder.wordAt(out)
    })
    const { exports } = decoder
    this.config = JSON.parse(decoder.zeroEndedTextAt(exports.thimble_config(this.pointer)))
    this.provenance = JSON.parse(decoder.zeroEndedTextAt(exports.thimble_provenance(this.pointer)))
    this.tensors = decoder.withRoom(TENSOR_BYTES, (at) =>
      Array.from({ length: exports.thimble_tensor_count(this.pointer) }, (_, index) => this.#tensorAt(index, at)))
    // Those with levels as these lie in the file: in this order they can be decoded while it comes.
    this.inOrder = this.tensors.filter(({ hasLevels }) => hasLevels).sort((a, b) => a.levelsEnd - b.levelsEnd)
  }

  #tensorAt(index, at) {
    const { decoder } = this
    decoder.call('thimble_tensor_at', this.pointer, index, at)
    const data = decoder.dataAt(at, TENSOR_BYTES)
    const long = (offset) => Number(data.getBigUint64(offset, true))
    return {
      index,
      name: decoder.zeroEndedTextAt(data.getUint32(0, true)),
      storedAs: decoder.zeroEndedTextAt(data.getUint32(4, true)),
      shape: Array.from({ length: data.getUint32(8, true) }, (_, i) => long(16 + 8 * i)),
      hasLevels: data.getInt32(12, true) !== 0,
      elements: long(80), rows: long(88), columns: long(96), blocks: long(104), blockColumns: long(112),
      levelsEnd: long(120), valuesEnd: long(128), storedBytes: long(136),
    }
  }

  // Resolves when the file's first `end` bytes have come. Its checksum is computed on the way.
  async until(end) {
    const { file } = this
    while (file.arrived < Math.min(end, file.size)) {
      await file.until(file.arrived + 1)
      this.#addToChecksum()
    }
    this.#addToChecksum()
  }

  #addToChecksum() {
    const { decoder, file } = this
    for (const piece of file.pieces(this.#checked, file.arrived))
      for (let at = 0; at < piece.length; at += HASHED_AT_ONCE) {
        const part = piece.subarray(at, at + HASHED_AT_ONCE)
        decoder.withBytes(part, (address) =>
          decoder.call('thimble_check_next', this.pointer, address, part.length))
        this.#checked += part.length
      }
    file.release(Math.min(this.#done, this.#checked))
  }

  // Bytes before `end` are let go: what was to be decoded of them is.
  release(end) {
    this.#done = Math.max(this.#done, end)
    this.file.release(Math.min(this.#done, this.#checked))
  }

  // All values: a Float32Array, or for 'F16' and 'BF16' a Uint16Array of their bits.
  async values(tensor, type = 'F32') {
    return (await this.keepValues(tensor, type)).take()
  }
  // The same, in the module's memory: no second copy is made.
  async keepValues(tensor, type = 'F32') {
    await this.until(tensor.valuesEnd)
    return this.#decoded('thimble_decode', tensor, type)
  }

  // The levels in the narrowest of Int8Array, Int16Array and Int32Array that holds them, before the scales have come.
  async levels(tensor) {
    return (await this.keepLevels(tensor)).take()
  }
  async keepLevels(tensor) {
    await this.until(tensor.levelsEnd)
    const { decoder } = this
    const largest = decoder.withRoom(4, (out) => {
      decoder.call('thimble_largest_level', this.pointer, tensor.index, out)
      return decoder.wordAt(out)
    })
    return this.#decoded('thimble_decode_levels', tensor, largest < 1 << 7 ? 'I8' : largest < 1 << 15 ? 'I16' : 'I32')
  }

  // { rowScales (rows, blocks), columnScales (columns) }
  async scales(tensor) {
    await this.until(tensor.valuesEnd)
    const { decoder } = this
    const rowBytes = 4 * tensor.rows * tensor.blocks, columnBytes = 4 * tensor.columns
    return decoder.withRoom(rowBytes, (rowsAt) => decoder.withRoom(columnBytes, (columnsAt) => {
      decoder.call('thimble_decode_scales', this.pointer, tensor.index, rowsAt, columnsAt)
      const copy = (at, bytes) => new Float32Array(decoder.bytesAt(at, bytes).slice().buffer)
      return { rowScales: copy(rowsAt, rowBytes), columnScales: copy(columnsAt, columnBytes) }
    }))
  }

  #decoded(name, tensor, type) {
    if (!(type in TYPES)) throw new ThimbleError('USAGE', `type '${type}' is none of ${Object.keys(TYPES).join(', ')}`)
    const { decoder } = this
    const bytes = tensor.elements * ARRAYS[type].BYTES_PER_ELEMENT
    const kept = new Kept(decoder, decoder.allocate(bytes), ARRAYS[type], tensor.elements)
    try {
      decoder.call(name, this.pointer, tensor.index, TYPES[type], kept.at, bytes)
      return kept
    } catch (error) {
      kept.free()
      throw error
    }
  }

  // Rejects unless the whole file has the checksum that it says of itself; once for each artifact.
  async check() {
    await this.until(this.file.size)
    this.decoder.call('thimble_check_end', this.pointer)
  }

  close() {
    this.decoder.exports.thimble_close(this.pointer)
    this.decoder.removeFile(this.#context)
    this.pointer = 0
  }
}
