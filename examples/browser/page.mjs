// page.mjs: what is on the page. Everything that takes time is in worker.mjs.
import { bitsPerWeight, TensorMap } from './map.mjs'

// Beside the page: scripts/browser-demo puts them there.
const MODULE = new URL('thimble_model.wasm', import.meta.url)
const BUNDLED = { artifact: new URL('model.thmb', import.meta.url).href,
  tokenizer: new URL('tokenizer.model', import.meta.url).href }
const LARGEST_SEED = 2n ** 64n - 1n

const part = (id) => document.getElementById(id)
const count = (number) => number.toLocaleString('en')
const bytesText = (bytes) => (bytes < 1e6 ? `${count(bytes)} B` : `${(bytes / 1e6).toFixed(2)} MB`)
const secondsText = (milliseconds) => (milliseconds / 1000).toFixed(2)

let module = null // Promise of the WebAssembly.Module
let worker = null
let map = null
let began = 0 // when the button was pressed
let opened = null // what the worker said of the artifact's front
let tokens = []

// 'empty', 'loading', 'ready' (its text can be continued), 'decoded' (no tokenizer), 'writing' or 'failed'.
function setState(state) {
  document.body.dataset.state = state
  part('progress').hidden = state === 'empty'
  part('cancel').hidden = state !== 'loading'
  part('text').hidden = state !== 'ready' && state !== 'writing'
  part('continue').disabled = state === 'writing'
  part('stop').disabled = state !== 'writing'
  part('continuation').setAttribute('aria-busy', state === 'writing')
}

function endWorker() {
  worker?.terminate()
  worker = null
}

function fail(text) {
  endWorker()
  setState('failed')
  part('status').textContent = 'Not loaded.'
  part('error').textContent = text
  part('error').hidden = false
}

async function compiledModule() {
  const response = await fetch(MODULE)
  if (!response.ok) throw new Error(`thimble_model.wasm: the server answers ${response.status}; scripts/browser-demo ` +
    'builds it')
  return WebAssembly.compile(await response.arrayBuffer())
}

// `artifact`, `tokenizer`: a File or an address each; the tokenizer may be null.
async function load(artifact, tokenizer) {
  endWorker()
  began = performance.now()
  opened = null
  part('error').hidden = true
  part('tensors').hidden = true
  part('status').textContent = 'Loading'
  part('bar').removeAttribute('value')
  for (const id of ['bytes', 'seconds', 'weights', 'speed', 'bits', 'memory']) part(id).textContent = '–'
  setState('loading')
  const mine = worker = new Worker(new URL('worker.mjs', import.meta.url), { type: 'module' })
  mine.onmessage = ({ data }) => HANDLERS[data.type](data)
  mine.onerror = (event) => {
    event.preventDefault()
    fail(`The worker does not run: ${event.message ?? 'a script is missing'}`)
  }
  try {
    module ??= compiledModule()
    mine.postMessage({ type: 'load', module: await module, artifact, tokenizer })
  } catch (error) {
    module = null
    if (worker === mine) fail(error.message)
  }
}

function row(tensor) {
  const cells = [tensor.name, tensor.shape.join(' × ') || 'one number', tensor.storedAs, count(tensor.storedBytes),
    bitsPerWeight(tensor).toFixed(2), 'no']
  const element = document.createElement('tr')
  cells.forEach((text, i) => {
    const cell = document.createElement(i === 0 ? 'th' : 'td')
    if (i === 0) cell.scope = 'row'
    cell.textContent = text
    element.append(cell)
  })
  return element
}

function showProgress(arrived, weights) {
  part('bar').value = arrived / opened.size
  part('bytes').textContent = `${count(arrived)} of ${count(opened.size)}`
  part('weights').textContent = count(weights)
  part('seconds').textContent = secondsText(performance.now() - began)
}

const HANDLERS = {
  opened(message) {
    opened = message
    const elements = message.tensors.reduce((sum, tensor) => sum + tensor.elements, 0)
    part('status').textContent = `Decoding ${message.name}: ${count(message.tensors.length)} tensors, ` +
      `${count(elements)} weights`
    part('bits').textContent = ((8 * message.size) / Math.max(1, elements)).toFixed(3)
    part('rows').replaceChildren(...message.tensors.map(row))
    part('tensors').hidden = false
    map = new TensorMap(part('map'), part('legend'), message.tensors)
  },
  progress({ arrived, weights, decoded }) {
    showProgress(arrived, weights)
    for (const index of decoded) {
      map.markDecoded(index)
      part('rows').rows[index].lastChild.textContent = 'yes'
    }
  },
  loaded({ weights, decodeMilliseconds, memoryBytes, weightBytes, mostTokens, refusal }) {
    showProgress(opened.size, weights)
    part('speed').textContent = `${(weights / 1e3 / Math.max(decodeMilliseconds, 0.1)).toFixed(1)} million`
    part('memory').textContent = bytesText(memoryBytes)
    Object.assign(document.body.dataset, { weights, memoryBytes, weightBytes, decodeMilliseconds,
      clickMilliseconds: performance.now() - began })
    if (mostTokens !== null) {
      part('length-hint').textContent =
        mostTokens > 0 ? `The model was made for texts of at most ${count(mostTokens)} tokens.` : ''
      part('status').textContent = `${opened.name} is loaded and its checksum is right.`
      setState('ready')
    } else {
      part('status').textContent = `${opened.name} is decoded and its checksum is right: ${bytesText(weightBytes)} of ` +
        `integers, scales and small tensors. ${refusal ? `It continues no text: ${refusal}` :
          'With its tokenizer it would continue texts.'}`
      setState('decoded')
    }
  },
  token({ token, text }) {
    if (token >= 0) tokens.push(token)
    part('continuation').append(text)
  },
  end({ tokens: made, milliseconds, isStopped }) {
    part('tokens').textContent = tokens.join(' ')
    part('text-status').textContent = `${isStopped ? 'Stopped after' : 'Done:'} ${count(made)} tokens in ` +
      `${secondsText(milliseconds)} s, ${((1000 * made) / Math.max(milliseconds, 0.1)).toFixed(0)} tokens/s.`
    setState('ready')
  },
  error({ code, text }) {
    // What a text asks for can be asked for otherwise; a module that had a fault is of no more use.
    if (document.body.dataset.state !== 'writing' || code === 'INTERNAL') return fail(text)
    part('text-status').textContent = text
    setState('ready')
  },
}

function continueText(event) {
  event.preventDefault()
  const seed = BigInt(part('seed').value)
  part('seed').setCustomValidity(seed > LARGEST_SEED ? `at most ${LARGEST_SEED}` : '')
  if (!part('text-form').reportValidity()) return
  const prompt = part('prompt').value
  const shown = document.createElement('span')
  shown.className = 'prompt'
  shown.textContent = prompt
  part('continuation').replaceChildren(shown)
  part('tokens').textContent = ''
  part('text-status').textContent = 'Writing'
  tokens = []
  setState('writing')
  worker.postMessage({ type: 'continue', prompt, seed, temperature: part('temperature').valueAsNumber,
    length: part('length').valueAsNumber })
}

function useDropped(files) {
  for (const file of files) {
    const input = part(/\.(model|json)$/.test(file.name) ? 'tokenizer-file' : 'artifact-file')
    const transfer = new DataTransfer()
    transfer.items.add(file)
    input.files = transfer.files
  }
  artifactChosen()
}

function artifactChosen() {
  part('load-own').disabled = part('artifact-file').files.length === 0
}

part('load-bundled').addEventListener('click', () => load(BUNDLED.artifact, BUNDLED.tokenizer))
part('load-own').addEventListener('click', () =>
  load(part('artifact-file').files[0], part('tokenizer-file').files[0] ?? null))
part('artifact-file').addEventListener('change', artifactChosen)
part('cancel').addEventListener('click', () => {
  endWorker()
  part('status').textContent = 'Cancelled. No artifact is loaded.'
  setState('empty')
})
part('text-form').addEventListener('submit', continueText)
part('seed').addEventListener('input', () => part('seed').setCustomValidity(''))
part('stop').addEventListener('click', () => worker.postMessage({ type: 'stop' }))

const drop = part('drop')
for (const type of ['dragover', 'dragleave', 'drop'])
  document.addEventListener(type, (event) => {
    event.preventDefault()
    drop.classList.toggle('is-over', type === 'dragover')
    if (type === 'drop') useDropped(event.dataTransfer.files)
  })
new ResizeObserver(() => map?.arrange()).observe(part('map'))
artifactChosen()
