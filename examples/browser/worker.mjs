// worker.mjs: loads one artifact and continues texts with its model, so that the page stays quick. One worker, one
// artifact: another one gets another worker, and memory that is new.
//   in:  { type: 'load', module, artifact, tokenizer }   a WebAssembly.Module; a File or an address each, or tokenizer null
//        { type: 'continue', prompt, seed, temperature, length }                                          seed: a BigInt
//        { type: 'stop' }                                the text that is being continued
//   out: { type: 'opened', name, size, tensors }         the front of the file has come
//        { type: 'progress', arrived, weights, decoded } bytes, weights, and indices of tensors since the last one
//        { type: 'loaded', weights, milliseconds, decodeMilliseconds, memoryBytes, weightBytes, mostTokens, refusal }
//                                                        weightBytes null and mostTokens a number where there is a model;
//                                                        refusal: why there is none though a tokenizer came, or null
//        { type: 'token', token, text } ...              then { type: 'end', tokens, milliseconds, isStopped }
//        { type: 'error', code, text }                   of ThimbleError and SourceError, or 'INTERNAL'
import { GrowingBytes } from './bytes.mjs'
import { TextModel } from './text_model.mjs'
import { Artifact, Decoder, ThimbleError } from './thimble.mjs'
import { loadAll, Weights } from './weights.mjs'

const MILLISECONDS_BETWEEN_REPORTS = 50
const MILLISECONDS_BETWEEN_MESSAGES = 20 // looked for: "stop"

let model = null
let isStopped = false

const bytesOf = async (source) => (source instanceof File ? GrowingBytes.ofFile(source) : GrowingBytes.download(source))

// The model, or where the tokenizer is of another kind or the family none that runs, the weights alone and why.
function holderOf(artifact, tokenizer) {
  if (tokenizer?.[0] === '{'.charCodeAt(0))
    return { holder: new Weights(artifact), refusal: 'tokenizer: this is JSON, a SentencePiece model was expected' }
  try {
    if (tokenizer) return { holder: new TextModel(artifact, tokenizer), refusal: null }
  } catch (error) {
    if (!(error instanceof ThimbleError) || error.code === 'INTERNAL') throw error
    return { holder: new Weights(artifact), refusal: error.message }
  }
  return { holder: new Weights(artifact), refusal: null }
}

async function load({ module, artifact: artifactSource, tokenizer: tokenizerSource }) {
  const began = performance.now()
  const [decoder, file, tokenizer] = await Promise.all([Decoder.load(module), bytesOf(artifactSource),
    tokenizerSource && bytesOf(tokenizerSource).then((bytes) => bytes.whole())])
  const artifact = await Artifact.open(decoder, file)
  const { tensors } = artifact
  const { holder, refusal } = holderOf(artifact, tokenizer)
  postMessage({ type: 'opened', name: file.name, size: file.size, tensors })

  let weights = 0, decoded = [], lastReport = 0, nextReport
  const report = () => {
    clearTimeout(nextReport)
    nextReport = undefined
    lastReport = performance.now()
    postMessage({ type: 'progress', arrived: file.arrived, weights, decoded })
    decoded = []
  }
  // At once, or, where one was sent just now, in a while: a download may pause here.
  const reportSoon = () => {
    if (performance.now() - lastReport >= MILLISECONDS_BETWEEN_REPORTS) report()
    else nextReport ??= setTimeout(report, MILLISECONDS_BETWEEN_REPORTS)
  }
  file.onArrival = reportSoon
  await loadAll(artifact, holder, (tensor) => {
    weights += tensor.elements
    decoded.push(tensor.index)
    reportSoon()
  })
  report()
  artifact.close()
  if (holder instanceof TextModel) model = holder
  postMessage({ type: 'loaded', weights, milliseconds: performance.now() - began,
    decodeMilliseconds: decoder.busyMilliseconds, memoryBytes: decoder.memoryBytes + file.mostHeld,
    weightBytes: holder.bytes ?? null, mostTokens: model?.mostTokens ?? null, refusal })
}

// Lets messages that wait be handled.
const channel = new MessageChannel()
const messagesHandled = () => new Promise((resolve) => {
  channel.port1.onmessage = resolve
  channel.port2.postMessage(null)
})

async function continueText({ prompt, seed, temperature, length }) {
  isStopped = false
  const began = performance.now()
  let lastLook = began, tokens = 0
  model.begin(prompt, seed, temperature, length)
  for (;;) {
    const { token, isEnd, text } = model.step()
    if (!isEnd) ++tokens
    if (!isEnd || text) postMessage({ type: 'token', token, text })
    if (isEnd) break
    if (performance.now() - lastLook < MILLISECONDS_BETWEEN_MESSAGES) continue
    await messagesHandled()
    lastLook = performance.now()
    if (isStopped) break
  }
  postMessage({ type: 'end', tokens, milliseconds: performance.now() - began, isStopped })
}

const HANDLERS = { load, continue: continueText, stop: () => (isStopped = true) }

onmessage = async ({ data }) => {
  try {
    await HANDLERS[data.type](data)
  } catch (error) {
    postMessage({ type: 'error', code: error.code ?? 'INTERNAL', text: error.message })
  }
}
