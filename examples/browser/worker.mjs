// worker.mjs: loads one artifact and runs its model, beside the page. The wasm is here alone.
//   in:  { type: 'load', module, artifact, tokenizer }   WebAssembly.Module; a File or an address each; no tokenizer: null
//        { type: 'continue', prompt, seed, temperature, length }
//        { type: 'stop' }
//   out: opened, progress, loaded, token, end, error (page.mjs)
import { GrowingBytes, SourceError } from './bytes.mjs'
import { TextModel } from './text_model.mjs'
import { Artifact, Decoder, ThimbleError } from './thimble.mjs'

const MILLISECONDS_BETWEEN_REPORTS = 50

let model = null
let isStopped = false

const bytesOf = (source) => (source instanceof File ? GrowingBytes.ofFile(source) : GrowingBytes.download(source))

// The page's bytes go as they come; levels are decoded on the way, and what was decoded is let go. Scales and small
// tensors lie at the end of the file.
async function load({ module, artifact: source, tokenizer: tokenizerSource }) {
  const [decoder, file, tokenizer] = await Promise.all([Decoder.load(module), bytesOf(source),
    tokenizerSource && bytesOf(tokenizerSource).then((bytes) => bytes.whole())])
  let weights = 0, lastReport = 0, decodeMilliseconds = 0
  const report = () => {
    lastReport = performance.now()
    postMessage({ type: 'progress', arrived: file.arrived, size: file.size, weights })
  }
  file.onArrival = () => {
    if (performance.now() - lastReport >= MILLISECONDS_BETWEEN_REPORTS) report()
  }
  const artifact = await Artifact.open(decoder, file)
  const { tensors, inOrder } = artifact
  postMessage({ type: 'opened', name: file.name, size: file.size, tensors, provenance: artifact.provenance })
  if (tokenizer) model = new TextModel(artifact, tokenizer)
  const timed = (work) => {
    const start = performance.now(), result = work()
    decodeMilliseconds += performance.now() - start
    return result
  }
  const done = (tensor) => {
    weights += tensor.elements
    report()
  }

  let isKept = false // a tensor waits whose levels are decoded with its scales
  for (const tensor of inOrder) {
    await artifact.until(tensor.levelsEnd)
    const isTaken = timed(() => (model ? model.loadLevels(tensor) : artifact.walk(tensor)))
    isKept ||= !isTaken
    if (!isKept) artifact.release(tensor.levelsEnd)
    if (isTaken) done(tensor)
  }
  await artifact.check()
  for (const tensor of tensors) {
    const isCounted = tensor.hasLevels && !isKept
    timed(() => (model ? model.load(tensor) : artifact.walkRest(tensor)))
    if (!isCounted) done(tensor)
  }
}
