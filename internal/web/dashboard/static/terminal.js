// The terminal page: a shell in a workspace, over the API's WebSocket of exec.
(function () {
  'use strict'

  var box = document.getElementById('terminal')
  if (!box || !window.Terminal) return
  var texts = box.dataset
  var status = document.getElementById('terminal-status')
  var again = document.getElementById('terminal-again')
  var login = document.getElementById('terminal-login')

  // The page's policy allows no inline styles. In the place of xterm's style elements are
  // empty templates, whose text becomes a style sheet that a script has made; its style
  // attributes are set as properties.
  var createElement = document.createElement
  document.createElement = function (name) {
    if (String(name).toLowerCase() !== 'style') return createElement.apply(document, arguments)
    var el = createElement.call(document, 'template')
    adopt(el)
    return el
  }
  function adopt(el) {
    var sheet = new CSSStyleSheet(), remove = el.remove
    document.adoptedStyleSheets = document.adoptedStyleSheets.concat(sheet)
    Object.defineProperty(el, 'textContent', { set: function (css) { sheet.replaceSync(css) } })
    Object.defineProperty(el, 'sheet', { get: function () { return sheet } })
    el.remove = function () {
      document.adoptedStyleSheets = document.adoptedStyleSheets.filter(function (s) { return s !== sheet })
      remove.call(el)
    }
  }
  var setAttribute = Element.prototype.setAttribute
  Element.prototype.setAttribute = function (name, value) {
    if (name === 'style') this.style.cssText = value
    else setAttribute.call(this, name, value)
  }

  function colour(name) {
    var probe = document.createElement('span')
    probe.style.color = 'var(--' + name + ')'
    box.appendChild(probe)
    var value = getComputedStyle(probe).color
    probe.remove()
    return value
  }
  function theme() {
    return {
      background: colour('surface'), foreground: colour('text'), cursor: colour('accent'), cursorAccent: colour('surface'),
      selectionBackground: colour('accent-soft'), selectionInactiveBackground: colour('sunken')
    }
  }

  var term = new Terminal({
    fontFamily: getComputedStyle(document.documentElement).getPropertyValue('--mono'), fontSize: 14, lineHeight: 1.15, cursorBlink: false, scrollback: 10000,
    minimumContrastRatio: 4.5, theme: theme(), screenReaderMode: matchMedia('(forced-colors: active)').matches, macOptionIsMeta: true
  })
  var fit = new FitAddon.FitAddon()
  term.loadAddon(fit)
  term.open(box)
  fit.fit()
  term.textarea.setAttribute('aria-label', texts.label)
  term.textarea.setAttribute('aria-describedby', 'terminal-hint')

  function recolour() { term.options.theme = theme() }
  new MutationObserver(recolour).observe(document.documentElement, { attributes: true, attributeFilter: ['data-theme'] })
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', recolour)
  new ResizeObserver(function () { fit.fit() }).observe(box)

  // Messages about the connection.
  function show(text, button) {
    status.textContent = text
    again.hidden = !button
    again.textContent = button || ''
    login.hidden = true
  }
  function fill(text, value) { return text.replace(/%[ds]/, value) }

  var socket = null, running = false, polls = 0, timer = 0
  var windowSize = 256 << 10

  function send(message) { if (socket && socket.readyState === WebSocket.OPEN) socket.send(message) }

  // type sends bytes of input, in messages that the server accepts (at most 128 KiB).
  function type(bytes) {
    for (var at = 0; running && at < bytes.length; at += 32 << 10) send(bytes.subarray(at, at + (32 << 10)))
  }

  // connect starts a shell, and the workspace if it is stopped.
  function connect() {
    clearTimeout(timer)
    if (socket) socket.close()
    var mine = socket = new WebSocket(location.origin.replace(/^http/, 'ws') + texts.exec)
    var final = false, taken = 0
    mine.binaryType = 'arraybuffer'
    show(texts.connecting)
    mine.onopen = function () {
      fit.fit()
      mine.send(JSON.stringify({ terminal: { name: 'xterm-256color', rows: term.rows, cols: term.cols }, env: ['COLORTERM=truecolor'], window: windowSize }))
    }
    mine.onmessage = function (e) {
      if (mine !== socket) return
      if (typeof e.data !== 'string') {
        var n = e.data.byteLength - 1
        // The server sends no more than the terminal can show.
        term.write(new Uint8Array(e.data, 1), function () {
          taken += n
          if (taken < windowSize / 4 || mine.readyState !== WebSocket.OPEN) return
          mine.send(JSON.stringify({ type: 'ack', bytes: taken }))
          taken = 0
        })
        return
      }
      var m = JSON.parse(e.data)
      if (m.type === 'progress') show(fill(texts.waiting, stateWord(m.workspace.state)))
      if (m.type === 'started') began()
      if (m.type === 'exit') {
        final = true
        ended(fill(texts.ended, m.code), texts.again)
      }
      if (m.type === 'error') {
        final = true
        failed(m.error)
      }
    }
    mine.onclose = function () { if (mine === socket && !final) lost() }
  }

  function stateWord(state) { return texts['state' + state.replace(/(^|_)./g, function (s) { return s.slice(-1).toUpperCase() })] || state }

  function began() {
    running = true
    show('')
    term.options.disableStdin = false
    send(JSON.stringify({ type: 'resize', rows: term.rows, cols: term.cols }))
    var at = document.activeElement
    if (!at || at === document.body || at === again || at.id === 'main') term.focus()
  }

  // ended leaves what the shell printed, in the state in which the next one can start.
  function ended(text, button) {
    if (running) term.write((term.buffer.active.type === 'alternate' ? '\x1b[?1049l' : '') + '\x1b[!p\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?2004l\x1b[0m\r\n')
    running = false
    term.options.disableStdin = true
    show(text, button)
  }

  function failed(error) {
    switch (error.error) {
      case 'unauthenticated': return loggedOut()
      case 'workspace_stopped': case 'unavailable': return lost()
      case 'forbidden': case 'not_found': case 'gone': return ended(texts.gone)
    }
    var known = { workspace_limit_exceeded: texts.limit, too_many_streams: texts.many, not_running: texts.decide, recovery_required: texts.decide, no_agent: texts.old, command_not_started: texts.shell }
    ended(known[error.error] || error.message, texts.retry)
  }

  function loggedOut() {
    ended(texts.loggedOut)
    term.reset() // the next person at this screen
    login.hidden = false
  }

  // lost asks for the state of the workspace until it runs again. It does not start it.
  function lost() {
    ended(texts.lost, texts.retry)
    polls = 0
    timer = setTimeout(poll, 1000) // a workspace that is being stopped says so by then
  }
  function poll() {
    clearTimeout(timer)
    var before = socket
    // A response that arrives after the user has pressed the button is out of date.
    function current(act) { return function (value) { if (before === socket) return act(value) } }
    fetch(texts.api, { credentials: 'same-origin', cache: 'no-store' }).then(current(function (r) {
      if (r.status === 401) return loggedOut()
      if (r.status === 403 || r.status === 404 || r.status === 410) return ended(texts.gone)
      if (!r.ok) return later(texts.lost)
      return r.json().then(current(function (w) {
        if (w.deleted_at) return ended(texts.gone)
        if (w.state === 'running') return connect()
        later(fill(texts.stopped, stateWord(w.state)), w.state === 'stopped' || w.state === 'pending')
      }))
    })).catch(current(function () { later(texts.lost) }))
  }
  function later(text, starts) {
    show(text, starts ? texts.start : texts.retry)
    timer = setTimeout(poll, Math.min(5000, 1000 + 250 * polls++))
  }

  again.addEventListener('click', connect)
  term.onData(function (data) {
    type(new TextEncoder().encode(data))
  })
  term.onBinary(function (data) {
    type(Uint8Array.from(data, function (c) { return c.charCodeAt(0) & 255 }))
  })
  term.onResize(function (size) {
    if (running) send(JSON.stringify({ type: 'resize', rows: size.rows, cols: size.cols }))
  })
  term.onTitleChange(function (title) { document.title = (title ? title.slice(0, 100) + ' – ' : '') + texts.title })

  function copy() {
    var text = term.getSelection()
    if (!text) return
    if (navigator.clipboard) navigator.clipboard.writeText(text).catch(copyByEvent)
    else copyByEvent()
  }
  function copyByEvent() { document.execCommand('copy') } // xterm handles the event
  term.attachCustomKeyEventHandler(function (e) {
    if (e.type !== 'keydown' || !e.ctrlKey || !e.shiftKey || e.altKey || e.metaKey) return true
    switch (e.code) {
      case 'KeyX': // leaves the terminal, which takes the Tab key
        e.preventDefault()
        document.getElementById('terminal-back').focus()
        return false
      case 'KeyC':
        e.preventDefault()
        copy()
        return false
      case 'KeyV': // the browser pastes
        return false
    }
    return true
  })

  connect()
})()
