// weights.mjs: loads all tensors of an artifact while its file comes. Levels lie first in a file and scales at its end:
// levels are decoded on the way.

// The tensors in the module's memory, by index: levels and their scales where there are any, else float32 values.
// TextModel takes tensors by the same two functions.
export class Weights {
  #levels = new Map() // of tensors whose scales are still to come

  constructor(artifact) {
    this.artifact = artifact
    this.tensors = new Map() // by index: { levels, rowScales, columnScales } or { values }
    this.bytes = 0
  }

  async loadLevels(tensor) {
    const levels = await this.artifact.keepLevels(tensor)
    this.#levels.set(tensor.index, levels)
    this.bytes += levels.bytes
    return true
  }

  async load(tensor) {
    const levels = this.#levels.get(tensor.index)
    if (levels) {
      const { rowScales, columnScales } = await this.artifact.scales(tensor)
      this.#levels.delete(tensor.index)
      this.bytes += rowScales.byteLength + columnScales.byteLength
      this.tensors.set(tensor.index, { levels, rowScales, columnScales })
    } else {
      const values = await this.artifact.keepValues(tensor)
      this.bytes += values.bytes
      this.tensors.set(tensor.index, { values })
    }
  }
}

// `holder`: Weights or a TextModel. onTensor(tensor) is called as each has been decoded, of levels when these are.
// Resolves when all are loaded and the file is known to have the checksum that it says of itself. Bytes of the file are
// let go when what they hold is decoded.
export async function loadAll(artifact, holder, onTensor = () => {}) {
  const decoded = new Set()
  let isNeeded = false // bytes of a tensor that is decoded as a whole when its scales are there
  for (const tensor of artifact.inOrder) {
    await artifact.until(tensor.levelsEnd)
    if (await holder.loadLevels(tensor)) {
      decoded.add(tensor)
      onTensor(tensor)
    } else isNeeded = true
    if (!isNeeded) artifact.release(tensor.levelsEnd)
  }
  await artifact.check()
  for (const tensor of artifact.tensors) {
    await holder.load(tensor)
    if (!decoded.has(tensor)) onTensor(tensor)
  }
}
