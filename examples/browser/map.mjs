// map.mjs: areas in a rectangle, as large as what they stand for.

// How far from a square the worst of a row's areas is. The row lies along `side`.
function worstRatio(row, total, side) {
  const depth = total / side
  let worst = 1
  for (const area of row) {
    const length = area / depth
    worst = Math.max(worst, length / depth, depth / length)
  }
  return worst
}

// Squarified treemap (Bruls, Huizing, van Wijk, 2000). `sizes`: positive numbers that descend. Returns { x, y, width,
// height } of each, which fill the rectangle.
export function treemap(sizes, width, height) {
  const scale = (width * height) / sizes.reduce((sum, size) => sum + size, 0)
  const areas = sizes.map((size) => size * scale)
  const places = []
  let x = 0, y = 0, next = 0
  while (next < areas.length) {
    const side = Math.min(width, height)
    let row = [areas[next]], total = areas[next]
    for (let i = next + 1; i < areas.length; ++i) {
      const longer = [...row, areas[i]]
      if (worstRatio(longer, total + areas[i], side) > worstRatio(row, total, side)) break
      row = longer
      total += areas[i]
    }
    const depth = total / side, isColumn = width > height
    let along = 0
    for (const area of row) {
      const length = area / depth
      places.push(isColumn ? { x, y: y + along, width: depth, height: length } :
        { x: x + along, y, width: length, height: depth })
      along += length
    }
    if (isColumn) [x, width] = [x + depth, width - depth]
    else [y, height] = [y + depth, height - depth]
    next += row.length
  }
  return places
}

// Bounds between the colours, in bits per weight.
const BITS = [2, 3, 5, 9]
const colourOf = (bits) => BITS.filter((bound) => bits >= bound).length
const LEGEND = [`under ${BITS[0]} bits per weight`, ...BITS.slice(1).map((bound, i) => `${BITS[i]} to ${bound}`),
  `${BITS.at(-1)} and more`]
const LEAST_TEXT = { width: 60, height: 18 } // pixels

export const bitsPerWeight = ({ storedBytes, elements }) => (8 * storedBytes) / Math.max(1, elements)

// Shows tensors in the element `place`, what colours mean in the list `legend`.
export class TensorMap {
  #areas = [] // by index of the tensor: its element
  #shown // those of any bytes, the largest first

  constructor(place, legend, tensors) {
    this.place = place
    this.#shown = tensors.filter(({ storedBytes }) => storedBytes > 0).sort((a, b) => b.storedBytes - a.storedBytes)
    place.replaceChildren(...this.#shown.map((tensor) => {
      const area = document.createElement('div')
      area.dataset.bits = colourOf(bitsPerWeight(tensor))
      area.title = `${tensor.name}: ${tensor.storedBytes.toLocaleString('en')} B, ` +
        `${bitsPerWeight(tensor).toFixed(2)} bits per weight`
      this.#areas[tensor.index] = area
      return area
    }))
    legend.replaceChildren(...LEGEND.map((text, i) => item(text, `bits-${i}`)), item('still to come', 'waiting'))
    this.arrange()
  }

  // Again where the width has changed.
  arrange() {
    const { clientWidth, clientHeight } = this.place
    if (this.#shown.length === 0 || clientWidth * clientHeight === 0) return
    treemap(this.#shown.map(({ storedBytes }) => storedBytes), clientWidth, clientHeight).forEach((at, i) => {
      const tensor = this.#shown[i], area = this.#areas[tensor.index]
      for (const [key, property] of [['x', 'left'], ['y', 'top'], ['width', 'width'], ['height', 'height']])
        area.style[property] = `${at[key]}px`
      const isBare = at.width < LEAST_TEXT.width || at.height < LEAST_TEXT.height
      area.classList.toggle('is-bare', isBare)
      area.textContent = isBare ? '' : tensor.name
    })
  }

  markDecoded(index) {
    this.#areas[index]?.classList.add('is-decoded')
  }
}

function item(text, name) {
  const element = document.createElement('li')
  element.className = name
  element.textContent = text
  return element
}
