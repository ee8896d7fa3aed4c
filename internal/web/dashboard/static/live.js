// The page's event stream, the log, and entering a workspace that is ready.
(function () {
  'use strict'

  // A hidden tab closes its stream, since browsers open at most six connections to a server
  // (HTTP/1.1).
  var slot = document.getElementById('stream-slot')
  var markup = ''
  var failures = 0

  function closeStream() { htmx.swap(slot, '', { swapStyle: 'innerHTML' }) }

  // changing is set while a request replaces this session by another.
  var changing = false

  function openStream() {
    if (!changing && !slot.firstElementChild) htmx.swap(slot, markup, { swapStyle: 'innerHTML' })
  }

  // The session has ended, perhaps in another tab. If the user wants it, unsaved text is kept
  // in this tab until they have logged in again.
  function loggedOut() {
    var draft = unsaved()
    if (!draft) return toLogin(location.pathname + location.search)
    if (document.getElementById('logged-out-dialog')) return
    closeStream()
    document.querySelectorAll('dialog[open]').forEach(function (d) { d.removeAttribute('open') })
    document.body.appendChild(document.getElementById('logged-out').content.cloneNode(true))
    var dialog = document.getElementById('logged-out-dialog')
    dialog.addEventListener('cancel', function (e) { e.preventDefault() })
    // Browsers always close a dialog at the second Esc.
    dialog.addEventListener('close', function () { dialog.showModal() })
    dialog.querySelector('[data-keep]').addEventListener('click', function () {
      storeDrafts(Object.assign(drafts(), draft.pages))
      toLogin(draft.last)
    })
    dialog.querySelector('[data-discard]').addEventListener('click', function () { toLogin(location.pathname + location.search) })
    // Other users may see this screen now.
    document.body.classList.add('logged-out')
    document.title = dialog.querySelector('h2').textContent
    dialog.showModal()
  }

  function toLogin(next) { location.assign('/login?next=' + encodeURIComponent(next)) }

  // unsaved returns the unsaved text of the forms with data-keep-text: the fields by the form's
  // page, and the last of these pages; null if there is none. A refused form has the typed text
  // as its default.
  function unsaved() {
    var pages = {}, last = null
    document.querySelectorAll('form[data-keep-text]').forEach(function (form) {
      var page = form.dataset.keepText
      var fields = Array.from(form.querySelectorAll('textarea, input[type="text"], input:not([type])')).filter(function (el) { return el.name })
      var refused = 'unsaved' in form.dataset && fields.some(function (el) { return el.value })
      fields.forEach(function (el) {
        if (!refused && el.value === el.defaultValue) return
        if (!pages[page]) pages[page] = {}
        pages[page][el.id] = el.value
        last = page
      })
    })
    return last && { pages: pages, last: last }
  }

  function user() { return document.body.dataset.user }

  // drafts returns this user's stored fields, by page.
  function drafts() {
    try {
      var stored = JSON.parse(sessionStorage.getItem('codehub-draft'))
      return (stored && stored.user === user() && stored.pages) || {}
    } catch (e) { return {} }
  }

  function storeDrafts(pages) {
    try {
      if (Object.keys(pages).length) sessionStorage.setItem('codehub-draft', JSON.stringify({ user: user(), pages: pages }))
      else sessionStorage.removeItem('codehub-draft')
    } catch (e) { /* no storage, no draft */ }
  }

  // restoreDraft fills in this page's draft and removes it. Another user's drafts are dropped.
  function restoreDraft() {
    if (!user()) return
    var page = location.pathname, pages = drafts(), fields = pages[page] || {}
    delete pages[page]
    storeDrafts(pages)
    Object.keys(fields).forEach(function (id) {
      var el = document.getElementById(id)
      if (el && el.form && el.form.dataset.keepText === page) {
        el.value = fields[id]
        el.focus()
      }
    })
  }

  restoreDraft()
  // Text is also kept when a request is redirected to the login page.
  document.body.addEventListener('htmx:beforeOnLoad', function (e) {
    var to = e.detail.xhr.getResponseHeader('HX-Redirect') || ''
    if (!/^\/login(\?|$)/.test(to) || !unsaved()) return
    e.preventDefault()
    loggedOut()
  })
  // Saved text is no draft. htmx reports a refused form as a success too.
  document.body.addEventListener('htmx:afterRequest', function (e) {
    var form = e.target.closest && e.target.closest('form[data-keep-text]')
    if (!form || !e.detail.successful || e.detail.xhr.status >= 400 || e.detail.xhr.getResponseHeader('HX-Redirect')) return
    form.querySelectorAll('textarea, input').forEach(function (el) {
      var sent = e.detail.requestConfig.parameters[el.name]
      if (typeof sent === 'string') el.defaultValue = sent
    })
  })

  // A password change ends this session before the response brings the next one. Until then
  // the stream would redirect to the login page.
  function changesPassword(e) {
    var request = e.detail.requestConfig
    return slot && request.verb === 'post' && request.path === '/settings/account/password'
  }
  document.body.addEventListener('htmx:beforeRequest', function (e) {
    if (!changesPassword(e)) return
    changing = true
    closeStream()
  })
  document.body.addEventListener('htmx:afterRequest', function (e) {
    if (!changesPassword(e) || e.detail.xhr.getResponseHeader('HX-Redirect')) return
    changing = false
    if (!document.hidden) openStream()
  })

  // The first connection has a digest of what the page shows, which is not sent again. Every
  // later connection gets everything.
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
    window.addEventListener('pageshow', function (e) {
      if (!e.persisted) return
      changing = false
      if (!document.hidden) openStream()
    })
    document.body.addEventListener('htmx:sseOpen', function (e) {
      failures = 0
      forget()
      document.getElementById('offline').hidden = true
      e.detail.source.addEventListener('logged-out', loggedOut)
      e.detail.source.addEventListener('log-begins', function () { showLog('') })
      e.detail.source.addEventListener('log', function (e) { showLog(e.data + '\n', true) })
    })
    document.body.addEventListener('htmx:sseError', function () {
      // A single failure is a restart or a change of networks, and the next try succeeds.
      if (++failures > 1) document.getElementById('offline').hidden = false
    })
  }

  // The log of a workspace that starts. The page keeps the end of a long one.
  function showLog(text, more) {
    var box = document.getElementById('wait-log')
    if (!box) return
    var pre = box.querySelector('pre')
    var atEnd = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 24
    pre.textContent = ((more ? pre.textContent : '') + text).slice(-128 * 1024)
    box.hidden = !pre.textContent
    if (atEnd) pre.scrollTop = pre.scrollHeight
  }

  // Open menus and details stay open when their part of the page is redrawn.
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

  // The log is read when it is opened, and refreshed while it and the page are visible.
  var log = document.getElementById('log')
  if (log) {
    var fold = document.getElementById('log-box')
    fold.addEventListener('toggle', function () { if (fold.open) htmx.trigger(log, 'refresh') })
    window.setInterval(function () {
      var follow = document.getElementById('log-follow')
      if (follow.checked && fold.open && !document.hidden) htmx.trigger(log, 'refresh')
    }, 3000)
  }

  // A log that is redrawn stays at its end, or where its reader is.
  document.querySelectorAll('[data-log]').forEach(function (el) {
    var atEnd = true
    var top = 0
    function scroll() {
      var pre = el.querySelector('pre.log')
      if (pre) pre.scrollTop = atEnd ? pre.scrollHeight : top
    }
    el.addEventListener('htmx:beforeSwap', function () {
      var pre = el.querySelector('pre.log')
      atEnd = !pre || pre.scrollHeight - pre.scrollTop - pre.clientHeight < 24
      top = pre ? pre.scrollTop : 0
    })
    el.addEventListener('htmx:afterSwap', scroll)
    scroll()
  })

  // A page enters a workspace by loading its address, mostly the page's own. The number of reloads is bounded, in
  // case the page keeps returning: another replica may learn of an event a moment later.
  var waits = [0, 1000, 2000, 4000, 8000, 15000]
  var within = 2 * 60 * 1000
  var entering = false

  function tries(key) {
    var now = Date.now()
    try {
      return JSON.parse(sessionStorage.getItem(key) || '[]').filter(function (t) { return now - t < within })
    } catch (e) {
      // Without storage there is no count, so only one reload.
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
      if (el.dataset.enter === location.pathname + location.search) location.reload()
      else location.replace(el.dataset.enter)
    }, waits[done.length])
  }

  enter()
})()
