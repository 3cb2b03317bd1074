// run_module.mjs: continues a text with thimble_model.wasm under Node, by the modules that the page uses.
//   node run_module.mjs thimble_model.wasm model.thmb tokenizer.model [prompt [length [temperature [seed]]]]
// Prints one JSON object: tokens of the prompt, new tokens, new text, milliseconds of load, prompt and steps, and memory.
// Errors go to the standard error.
import { readFileSync } from 'node:fs'
import { TextModel } from '../../examples/browser/text_model.mjs'
import { Artifact, Decoder } from '../../examples/browser/thimble.mjs'
import { loadAll } from '../../examples/browser/weights.mjs'

const [wasmPath, modelPath, tokenizerPath, prompt = '', length = '200', temperature = '0.8', seed = '0'] =
  process.argv.slice(2)
let start = performance.now()
const lap = () => {
  const now = performance.now(), passed = now - start
  start = now
  return Math.round(passed * 100) / 100
}

const decoder = await Decoder.load(readFileSync(wasmPath))
lap()
const artifact = await Artifact.open(decoder, readFileSync(modelPath))
const model = new TextModel(artifact, readFileSync(tokenizerPath))
await loadAll(artifact, model)
artifact.close()
const load = lap()

const promptTokens = model.encode(prompt)
model.begin(prompt, BigInt(seed), Number(temperature), Number(length))
const tokens = [], times = []
let text = ''
for (;;) {
  const step = model.step()
  times.push(lap())
  text += step.text
  if (step.isEnd) break
  tokens.push(step.token)
}
const steps = times.slice(1).reduce((sum, time) => sum + time, 0)
console.log(JSON.stringify({ promptTokens, tokens, text, milliseconds: { load, prompt: times[0], steps },
  memoryBytes: decoder.memoryBytes }))
