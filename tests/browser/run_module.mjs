// run_module.mjs: continues a text with thimble_model.wasm under Node, as the page does in a browser.
//   node run_module.mjs thimble_model.wasm model.thmb tokenizer.model [prompt [length [temperature [seed]]]]
// Prints one JSON object: tokens of the prompt, new tokens, new text, and milliseconds of load, prompt and steps.
// Errors go to the standard error, with the status as exit code.
import { readFileSync } from 'node:fs'

const [wasmPath, modelPath, tokenizerPath, prompt = '', length = '200', temperature = '0.8', seed = '0'] =
  process.argv.slice(2)
const module = new WebAssembly.Module(readFileSync(wasmPath))
const file = readFileSync(modelPath)

// What a module of Emscripten's asks of its host besides our reader: nothing that a page needs.
const imports = {}
for (const { module: from, name, kind } of WebAssembly.Module.imports(module)) {
  if (kind !== 'function') throw new Error(`the module imports the ${kind} ${from}.${name}`)
  ;(imports[from] ??= {})[name] = () => 0
}
imports.env.thimble_read_bytes = (context, offset, to, bytes) => {
  new Uint8Array(wasm.memory.buffer, to, bytes).set(file.subarray(Number(offset), Number(offset) + bytes))
  return 0
}
const wasm = new WebAssembly.Instance(module, imports).exports
wasm._initialize()

const decoder = new TextDecoder()
const copyIn = (bytes) => {
  const at = wasm.malloc(Math.max(1, bytes.length))
  new Uint8Array(wasm.memory.buffer, at, bytes.length).set(bytes)
  return at
}
const word = (at) => new DataView(wasm.memory.buffer).getUint32(at, true)
const textAt = (at, bytes) => decoder.decode(new Uint8Array(wasm.memory.buffer, at, bytes))
const error = wasm.malloc(512)
const check = (status) => {
  if (status === 0) return
  const text = textAt(error, 512)
  console.error(text.slice(0, text.indexOf('\0')))
  process.exit(status)
}

const out = wasm.malloc(16)
let start = performance.now()
const lap = () => {
  const now = performance.now(), passed = now - start
  start = now
  return Math.round(passed * 100) / 100
}
check(wasm.thimble_open_import(0, BigInt(file.length), out, error))
const artifact = word(out)
const tokenizer = readFileSync(tokenizerPath)
const tokenizerAt = copyIn(tokenizer)
check(wasm.thimble_text_create(artifact, tokenizerAt, tokenizer.length, out, error))
wasm.free(tokenizerAt)
const model = word(out)
for (let i = 0; i < wasm.thimble_tensor_count(artifact); ++i) check(wasm.thimble_text_load(model, i, error))
wasm.thimble_close(artifact)
const load = lap()

const promptBytes = Buffer.from(prompt)
const promptAt = copyIn(promptBytes)
const most = 4 * promptBytes.length + 4
const tokensAt = wasm.malloc(4 * most)
check(wasm.thimble_text_encode(model, promptAt, promptBytes.length, tokensAt, most, out, error))
const promptTokens = [...new Int32Array(wasm.memory.buffer, tokensAt, word(out))]
check(wasm.thimble_text_begin(model, promptAt, promptBytes.length, BigInt(seed), Number(temperature), Number(length),
  error))
const tokens = [], times = []
let text = ''
for (;;) {
  check(wasm.thimble_text_step(model, out, error))
  times.push(lap())
  text += textAt(word(out + 8), word(out + 12))
  if (word(out + 4) !== 0) break
  tokens.push(word(out))
}
wasm.thimble_text_close(model)
const steps = times.slice(1).reduce((sum, time) => sum + time, 0)
console.log(JSON.stringify({ promptTokens, tokens, text, milliseconds: { load, prompt: times[0], steps },
  memoryBytes: wasm.memory.buffer.byteLength }))
