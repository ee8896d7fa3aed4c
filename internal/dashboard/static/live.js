// The page's event stream, the log, and entering a workspace that is ready.
(function () {
  'use strict'

  // One stream per browser: a hidden tab gives its own up, as browsers open no
  // more than six connections to a server (HTTP/1.1).
  var slot = document.getElementById('stream-slot')
  var markup = ''
  var failures = 0

  function closeStream() { htmx.swap(slot, '', { swapStyle: 'innerHTML' }) }

  function openStream() {
    if (!slot.firstElementChild) htmx.swap(slot, markup, { swapStyle: 'innerHTML' })
  }

  function signedOut() { location.assign('/login?next=' + encodeURIComponent(location.pathname + location.search)) }

  // The first connection says what the page was made with, so that nothing is
  // sent that it shows already. Every later one starts from nothing.
  function forget() {
    var el = slot.firstElementChild
    el.setAttribute('sse-connect', el.getAttribute('sse-connect').replace(/[?&]seen=\w+/, ''))
    markup = slot.innerHTML
  }

  if (slot) {
    markup = slot.innerHTML
    document.addEventListener('visibilitychange', function () {
      if (document.hidden) closeStream()
      else openStream()
    })
    if (document.hidden) htmx.onLoad(function once() { if (document.hidden) closeStream() })
    window.addEventListener('pagehide', closeStream)
    window.addEventListener('pageshow', function (e) { if (e.persisted && !document.hidden) openStream() })
    document.body.addEventListener('htmx:sseOpen', function (e) {
      failures = 0
      forget()
      document.getElementById('offline').hidden = true
      e.detail.source.addEventListener('signed-out', signedOut)
    })
    document.body.addEventListener('htmx:sseError', function () {
      // One break is a restart or a change of networks, and mends itself.
      if (++failures > 1) document.getElementById('offline').hidden = false
    })
  }

  // What people have open stays open when its part of the page is drawn anew.
  var open = []
  document.body.addEventListener('htmx:oobBeforeSwap', function (e) {
    var target = e.detail.target
    if (!target) return
    open = Array.from(target.querySelectorAll('details[open][id]')).map(function (d) { return d.id })
  })
  document.body.addEventListener('htmx:oobAfterSwap', function () {
    open.forEach(function (id) {
      var d = document.getElementById(id)
      if (d) d.open = true
    })
    open = []
    enter()
  })

  // The log follows what the container prints while somebody looks.
  var log = document.getElementById('log')
  if (log) {
    window.setInterval(function () {
      var follow = document.getElementById('log-follow')
      if (follow.checked && !document.hidden) htmx.trigger(log, 'look')
    }, 3000)
    log.addEventListener('htmx:beforeSwap', function () {
      var pre = log.querySelector('pre')
      log.atEnd = !pre || pre.scrollHeight - pre.scrollTop - pre.clientHeight < 24
      log.top = pre ? pre.scrollTop : 0
    })
    log.addEventListener('htmx:afterSwap', function () {
      var pre = log.querySelector('pre')
      if (pre) pre.scrollTop = log.atEnd ? pre.scrollHeight : log.top
    })
  }

  // Entering a workspace is loading this same address again. The number of
  // times is bounded, so that a page that keeps coming back does not do so for
  // ever (another replica may know of an event a moment later than this one).
  var waits = [0, 1000, 2000, 4000, 8000, 15000]
  var within = 2 * 60 * 1000
  var entering = false

  function tries(key) {
    var now = Date.now()
    try {
      return JSON.parse(sessionStorage.getItem(key) || '[]').filter(function (t) { return now - t < within })
    } catch (e) {
      // No storage, no count: one reload is all there is.
      var nav = performance.getEntriesByType('navigation')[0]
      return nav && nav.type === 'reload' ? waits : []
    }
  }

  function enter() {
    var el = document.querySelector('[data-enter]')
    if (!el) {
      entering = false
      return
    }
    var key = 'codehub-enter-' + el.dataset.workspace
    var done = tries(key)
    var link = el.querySelector('[data-enter-link]')
    if (link) link.href = location.pathname + location.search
    if (done.length >= waits.length) {
      el.querySelector('[data-stuck]').hidden = false
      return
    }
    if (entering) return
    entering = true
    window.setTimeout(function () {
      entering = false
      if (!document.querySelector('[data-enter]')) return
      try { sessionStorage.setItem(key, JSON.stringify(done.concat(Date.now()))) } catch (e) { /* see tries */ }
      location.reload()
    }, waits[done.length])
  }

  enter()
})()
