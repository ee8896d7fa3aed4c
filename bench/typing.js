// Measures in the page how long a typed character takes until a message of a WebSocket has it:
// the time before the page draws it.
(() => {
  const Native = window.WebSocket
  let awaited = null // { bytes, done }
  const has = (data, bytes) => {
    search: for (let i = data.indexOf(bytes[0]); i >= 0; i = data.indexOf(bytes[0], i + 1)) {
      for (let n = 1; n < bytes.length; n++) if (data[i + n] !== bytes[n]) continue search
      return true
    }
    return false
  }
  window.WebSocket = class extends Native {
    constructor(...args) {
      super(...args)
      this.addEventListener('message', async e => {
        const at = performance.now()
        if (!awaited || typeof e.data === 'string') return
        const data = new Uint8Array(e.data instanceof Blob ? await e.data.arrayBuffer() : e.data)
        if (awaited && has(data, awaited.bytes)) {
          awaited.done(at)
          awaited = null
        }
      })
    }
  }
  const pause = ms => new Promise(done => setTimeout(done, ms))
  let typed = 0
  // benchType types characters into the terminal for that many milliseconds and returns the
  // milliseconds that each took.
  window.benchType = async duration => {
    const terminal = document.querySelector('.terminal-wrapper.active .xterm-helper-textarea')
    const took = []
    for (const until = performance.now() + duration; performance.now() < until;) {
      await pause(25)
      const text = String.fromCodePoint(0x4e00 + typed++ % 4096) // occurs nowhere else
      const echo = new Promise((done, failed) => {
        awaited = { bytes: new TextEncoder().encode(text), done }
        setTimeout(() => failed(new Error('no echo within 30 s')), 30000)
      })
      const start = performance.now()
      terminal.dispatchEvent(new InputEvent('input', { data: text, inputType: 'insertText' }))
      took.push(await echo - start)
    }
    return took
  }
})()
