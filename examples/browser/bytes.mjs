// bytes.mjs: the bytes of a file that is still coming: holds what came, lets go what was used, and says how far it is.
// In: a download, a file that somebody chose, or bytes in memory.

// What is wrong with the bytes' source: `code` is 'NOT_FOUND', 'NOT_AN_ARTIFACT' or 'IO'.
export class SourceError extends Error {
  constructor(code, text) {
    super(text)
    this.name = 'SourceError'
    this.code = code
  }
}

const count = (bytes) => `${bytes.toLocaleString('en')} B`

export class GrowingBytes {
  #chunks = [] // { start, bytes }, ascending and without gaps
  #next // () => Promise of a Uint8Array, or undefined at the end
  #released = 0

  // `size`: bytes of the whole file. `name` is for errors.
  constructor(name, size, next) {
    this.name = name
    this.size = size
    this.#next = next
    this.arrived = 0
    this.held = 0
    this.mostHeld = 0
    this.onArrival = () => {}
  }

  static of(bytes, name = 'artifact') {
    const all = bytes instanceof ArrayBuffer ? new Uint8Array(bytes) : bytes
    const pieces = [all]
    return new GrowingBytes(name, all.length, async () => pieces.pop())
  }

  static ofFile(file) {
    return GrowingBytes.#ofStream(file.name, file.size, file.stream())
  }

  static async download(url) {
    const name = decodeURIComponent(new URL(url).pathname.split('/').pop())
    let response
    try {
      response = await fetch(url)
    } catch {
      throw new SourceError('IO', `${name}: the server does not answer`)
    }
    if (!response.ok) {
      response.body?.cancel()
      throw new SourceError(response.status === 404 ? 'NOT_FOUND' : 'IO',
        `${name}: the server answers ${response.status} ${response.statusText}`.trimEnd())
    }
    // Servers that have no such file often answer with a page that says so.
    const kind = response.headers.get('content-type') ?? ''
    if (kind.startsWith('text/html')) {
      response.body?.cancel()
      throw new SourceError('NOT_AN_ARTIFACT', `${name}: the server sends a web page (${kind}), a file was expected`)
    }
    const length = response.headers.get('content-length')
    if (length !== null && !response.headers.get('content-encoding'))
      return GrowingBytes.#ofStream(name, Number(length), response.body)
    // How long it is shows at its end alone.
    return GrowingBytes.of(await response.arrayBuffer(), name)
  }

  static #ofStream(name, size, stream) {
    const reader = stream.getReader()
    return new GrowingBytes(name, size, async () => {
      try {
        return (await reader.read()).value
      } catch {
        return undefined // broken off: until() says where
      }
    })
  }

  // Resolves when the file's first `end` bytes, or all that it has, have come.
  async until(end) {
    const wanted = Math.min(end, this.size)
    while (this.arrived < wanted) {
      const bytes = await this.#next()
      if (bytes === undefined)
        throw new SourceError('IO', `${this.name}: ends after ${count(this.arrived)} of ${count(this.size)}`)
      this.#chunks.push({ start: this.arrived, bytes })
      this.arrived += bytes.length
      this.held += bytes.length
      this.mostHeld = Math.max(this.mostHeld, this.held)
      this.onArrival(this)
    }
  }

  // All of it, for small files.
  async whole() {
    await this.until(this.size)
    const all = new Uint8Array(this.size)
    this.read(0, all)
    return all
  }

  // Fills `to` with the bytes from `offset` on; false where they have not come, or were let go.
  read(offset, to) {
    if (offset < this.#released || offset + to.length > this.arrived) return false
    for (const piece of this.pieces(offset, offset + to.length)) {
      to.set(piece)
      to = to.subarray(piece.length)
    }
    return true
  }

  // What was held of [begin, end), piece by piece.
  * pieces(begin, end) {
    for (const { start, bytes } of this.#chunks) {
      if (start >= end) return
      if (start + bytes.length > begin) yield bytes.subarray(Math.max(0, begin - start), end - start)
    }
  }

  // Bytes before `end` are not asked for again.
  release(end) {
    this.#released = Math.max(this.#released, end)
    while (this.#chunks.length > 0) {
      const { start, bytes } = this.#chunks[0]
      if (start + bytes.length > this.#released) return
      this.held -= bytes.length
      this.#chunks.shift()
    }
  }
}
