// Loaded by the page of a workspace's IDE before anything else. It names the tab, reports
// when the user does something, and when the connection to the workspace ends it says why,
// until the IDE can go on.
(function () {
  'use strict'

  var base = new URL('.', document.currentScript.src).href // ends with /_codehub/
  // Milliseconds between questions: until the IDE connects first, while the connection is lost,
  // while the notice is shown, and in all cases while the tab is hidden.
  var LOADING = 2500, LOST = 1000, COVERED = 2000, HIDDEN = 15000
  var state, stateAt, started, timer, asking, overlay
  var open = 0 // WebSockets
  var connected = false // since the page was loaded

  // A theme that was chosen on the dashboard comes before the system's, which the IDE asks for.
  var theme = (/(?:^|;\s*)codehub_theme=(light|dark)(?:;|$)/.exec(document.cookie) || [])[1]
  if (theme) {
    var matchMedia = window.matchMedia.bind(window)
    window.matchMedia = function (query) {
      var list = matchMedia(query), scheme = /^\s*\(\s*prefers-color-scheme\s*:\s*(light|dark)\s*\)\s*$/.exec(query)
      if (scheme) Object.defineProperty(list, 'matches', { value: scheme[1] === theme })
      return list
    }
  }

  // The end of a WebSocket is the sign to ask: while the IDE is connected nothing is sent.
  var Native = window.WebSocket
  window.WebSocket = class WebSocket extends Native {
    constructor (address, protocols) {
      // codehub need not look for activity in this connection, since the page reports it.
      if (/[?&]reconnectionToken=/.test(address)) address += '&codehub-reports'
      super(address, protocols === undefined ? [] : protocols)
      var was = false
      this.addEventListener('open', function () {
        was = connected = true
        open++
        if (state && !overlay) clearTimeout(timer)
      })
      this.addEventListener('close', function () {
        if (was) open--
        ask()
      })
    }
  }

  // What the user does, which codehub cannot tell in the IDE's connections from what an open
  // tab sends. Each kind is reported at once, and then at most every REPORT milliseconds.
  var REPORT = 15000
  var reported = {}, pointer

  function heard (e) {
    var target = e.target, now = performance.now(), kind = 'presence'
    if (target.contentWindow) { // a webview, which has the origin of the page
      try { listen(target.contentWindow) } catch (_) {}
    }
    if (/^pointer(move|over)$/.test(e.type)) { // a browser also sends it when the page moves below the pointer
      var before = pointer
      pointer = e.screenX + ' ' + e.screenY
      if (!before || before === pointer) return
    }
    if (e.type === 'beforeinput' || e.type === 'keydown' && !/^(Shift|Control|Alt|AltGraph|Meta|CapsLock)$/.test(e.key) &&
      (target.isContentEditable || target.editContext || /^(INPUT|TEXTAREA)$/.test(target.tagName))) kind = 'typing'
    if (now - reported[kind] < REPORT) return
    reported.presence = now
    reported[kind] = now
    fetch(base + 'state', { method: 'POST', credentials: 'same-origin', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ used: kind }) })
      .catch(function () { reported = {} })
  }

  function listen (w) {
    ;['keydown', 'beforeinput', 'pointerdown', 'pointermove', 'pointerover', 'wheel'].forEach(function (type) {
      w.addEventListener(type, heard, { capture: true, passive: true })
    })
  }
  listen(window)

  function ask () {
    clearTimeout(timer)
    if (asking) return
    asking = true
    fetch(base + 'state', { credentials: 'same-origin', headers: { Accept: 'application/json' }, cache: 'no-store' })
      .then(function (r) { return r.json().then(function (s) { if ('open' in s) show(s) }) })
      .catch(function () {}) // the server or the network is gone, which the IDE says itself
      .then(function () {
        asking = false
        if (overlay || open === 0) timer = setTimeout(ask, document.hidden ? HIDDEN : overlay ? COVERED : connected ? LOST : LOADING)
      })
  }

  // The IDE's extension (images/ide/extension) starts with what this page was told, if that is
  // at most FRESH milliseconds old.
  var FRESH = 10000
  var channel = new BroadcastChannel('codehub ' + base)
  channel.onmessage = function (e) {
    if (e.data === 'state' && state && Date.now() - stateAt < FRESH) channel.postMessage(state)
  }

  function show (next) {
    state = next
    stateAt = Date.now()
    if (!state.open) {
      cover()
      return
    }
    if (overlay || started && started !== state.started) {
      location.reload()
      return
    }
    started = state.started
    name()
  }

  // The tab's icon and title.
  var shown = ''
  var title = Object.getOwnPropertyDescriptor(Document.prototype, 'title')
  Object.defineProperty(document, 'title', {
    configurable: true,
    get: function () { return title.get.call(document) },
    set: function (text) { shown = String(text); name() }
  })

  function name () {
    if (state && state.icon) {
      document.querySelectorAll('link[rel~="icon"]').forEach(function (link) {
        if (link.href !== state.icon) { link.type = 'image/svg+xml'; link.href = state.icon }
      })
    }
    var text = shown
    if (state && state.name && /(^| )codehub$/.test(text)) text = text.replace(/codehub$/, state.name + ' – codehub')
    title.set.call(document, text)
  }

  // The colors are those of the dashboard (internal/web/dashboard/static/base.css).
  var style = ':host{all:initial}' +
    'div{position:fixed;inset:0;display:flex;align-items:center;justify-content:center;background:rgb(8 16 13/.72);font:15px/1.5 system-ui,sans-serif}' +
    'section{max-width:26em;margin:1em;padding:1.6em 1.8em;border:1px solid #e2e6e4;border-radius:14px;background:#fff;color:#17201d;box-shadow:0 12px 40px rgb(0 0 0/.35);text-align:center}' +
    'p{margin:0 0 1em;overflow-wrap:anywhere}p:last-child{margin:0}' +
    'a{display:inline-block;padding:.5em 1.2em;border-radius:9px;background:#1d6b5b;color:#fff;font-weight:560;text-decoration:none}' +
    'a:hover{background:#165347}a:focus-visible{outline:2px solid #1d6b5b;outline-offset:2px}' +
    '@media (prefers-color-scheme:dark){section{border-color:#2a3230;background:#1e2523;color:#e6ecea}a{background:#288069}a:hover{background:#23735e}a:focus-visible{outline-color:#55bfa7}}'

  function cover () {
    if (!overlay) {
      overlay = document.createElement('div')
      overlay.id = 'codehub-notice'
      overlay.style.cssText = 'position:fixed;inset:0;z-index:2147483647'
      var root = overlay.attachShadow({ mode: 'open' })
      root.innerHTML = '<style>' + (theme ? style.replace('(prefers-color-scheme:dark)', theme === 'dark' ? 'all' : 'not all') : style) + '</style><div><section role="alertdialog" aria-modal="true" aria-labelledby="t"><p id="t"></p><p hidden><a></a></p></section></div>'
      document.documentElement.append(overlay)
      // The IDE behind it gets no keys.
      ;['keydown', 'keypress', 'keyup'].forEach(function (type) {
        window.addEventListener(type, function (e) { if (overlay && !e.composedPath().includes(overlay)) e.stopImmediatePropagation() }, true)
      })
    }
    var text = overlay.shadowRoot.getElementById('t'), link = overlay.shadowRoot.querySelector('a')
    if (text.textContent !== state.notice.text) text.textContent = state.notice.text
    link.parentNode.hidden = !state.notice.action
    if (!state.notice.action || link.href === state.notice.url && link.textContent === state.notice.action) return
    link.textContent = state.notice.action
    link.href = state.notice.url
    link.focus()
  }

  document.addEventListener('visibilitychange', function () { if (!document.hidden && (overlay || open === 0)) ask() })
  ask()
})()
