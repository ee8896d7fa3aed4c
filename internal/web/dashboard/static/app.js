// What the pages do beyond htmx: dialogs, menus, toasts, times, the theme.
// Without it, the pages work as plain links and forms.
(function () {
  'use strict'

  var texts = function () { return document.getElementById('texts').dataset }
  var each = function (selector, f, root) { (root || document).querySelectorAll(selector).forEach(f) }

  // Times. The server writes them relative to the time of rendering.
  function fill(text) {
    var args = Array.prototype.slice.call(arguments, 1)
    return text.replace(/%d/g, function () { return args.shift() })
  }

  function ago(seconds, t) {
    var days = Math.floor(seconds / 86400)
    if (seconds < 60) return t.now
    if (seconds < 3600) return fill(t.minutesAgo, Math.floor(seconds / 60))
    if (seconds < 86400) return fill(t.hoursAgo, Math.floor(seconds / 3600))
    return fill(days === 1 ? t.daysAgoOne : t.daysAgoOther, days)
  }

  function lasting(seconds, t) {
    var days = Math.floor(seconds / 86400)
    if (seconds < 60) return t.forMoment
    if (seconds < 3600) return fill(t.forMinutes, Math.floor(seconds / 60))
    if (seconds < 86400) return fill(t.forHours, Math.floor(seconds / 3600), Math.floor(seconds % 3600 / 60))
    return fill(days === 1 ? t.forDaysOne : t.forDaysOther, days)
  }

  function until(seconds, t) {
    var days = Math.round(seconds / 86400)
    if (seconds < 60) return t.inMoment
    if (seconds < 3600) return fill(t.inMinutes, Math.floor(seconds / 60))
    if (seconds < 86400) return fill(t.inHours, Math.floor(seconds / 3600), Math.floor(seconds % 3600 / 60))
    return fill(days === 1 ? t.inDaysOne : t.inDaysOther, days)
  }

  function times() {
    var t = texts(), now = Date.now()
    each('time[datetime]', function (el) {
      var at = new Date(el.dateTime)
      var full = new Intl.DateTimeFormat(document.documentElement.lang, { dateStyle: 'medium', timeStyle: 'short' }).format(at)
      var text = full
      if ('day' in el.dataset) text = new Intl.DateTimeFormat(document.documentElement.lang, { dateStyle: 'full' }).format(at)
      if ('clock' in el.dataset) text = new Intl.DateTimeFormat(document.documentElement.lang, { timeStyle: 'short' }).format(at)
      if ('ago' in el.dataset) text = ago((now - at) / 1000, t)
      if ('for' in el.dataset) text = lasting((now - at) / 1000, t)
      if ('in' in el.dataset) text = until((at - now) / 1000, t)
      if (el.textContent !== text) el.textContent = text
      if (el.title !== full) el.title = full
    })
  }

  // Screen readers announce an automatic stop once, however often its warning is redrawn.
  var announcedKeys = []
  function announced(key) {
    try {
      var all = JSON.parse(sessionStorage.getItem('codehub-announced') || '[]')
      if (all.indexOf(key) >= 0) return true
      sessionStorage.setItem('codehub-announced', JSON.stringify(all.concat(key).slice(-20)))
    } catch (e) { /* no storage: once per page */ }
    if (announcedKeys.indexOf(key) >= 0) return true
    announcedKeys.push(key)
    return false
  }

  function announceEndings() {
    var to = document.getElementById('ending-announcer')
    var fresh = Array.from(document.querySelectorAll('[data-ending]')).filter(function (el) { return !announced(el.dataset.ending) })
    if (fresh.length) to.textContent = fresh.map(function (el) { return el.dataset.announcement }).join(' ')
  }

  // Date and time fields are in the browser's time zone; the value that is sent has an offset.
  function pad(n) { return String(n).padStart(2, '0') }
  function moments() {
    each('input[data-moment]', function (el) {
      var at = new Date(el.dataset.moment || NaN)
      el.removeAttribute('data-moment')
      if (isNaN(at)) return
      el.value = at.getFullYear() + '-' + pad(at.getMonth() + 1) + '-' + pad(at.getDate()) + 'T' + pad(at.getHours()) + ':' + pad(at.getMinutes())
    })
  }
  document.addEventListener('htmx:configRequest', function (e) {
    each('input[type="datetime-local"]', function (el) {
      var at = new Date(el.value)
      if (el.name && !isNaN(at)) e.detail.parameters[el.name] = at.toISOString()
    }, e.target)
  })
  document.addEventListener('input', function (e) {
    var until = e.target.closest && e.target.closest('.choice-until')
    if (until && e.target.type === 'datetime-local') until.querySelector('input[type="radio"]').checked = true
  })

  // Forms that start a workspace send the browser's time zone.
  document.addEventListener('formdata', function (e) {
    var zone = Intl.DateTimeFormat().resolvedOptions().timeZone
    var path = new URL(e.target.getAttribute('action') || '', location.href).pathname
    if (zone && /^\/workspaces(\/[^/]+\/(start|restart))?$/.test(path)) e.formData.set('time_zone', zone)
  })

  // Dialogs: the content of #dialog is shown above the page.
  var pressed = null // the last link or button used outside of a dialog
  function showDialog() {
    each('#dialog > dialog:not([open])', function (el) {
      var opener = pressed
      el.addEventListener('close', function () {
        var slot = document.getElementById('dialog')
        if (el.parentNode === slot) htmx.swap(slot, '', { swapStyle: 'innerHTML' })
        if (!document.querySelector('dialog[open]')) back(opener)
      })
      el.addEventListener('click', function (e) {
        if (e.target === el && outside(el, e)) el.close()
      })
      el.showModal()
    })
  }

  function outside(el, e) {
    var box = el.getBoundingClientRect()
    return e.clientX < box.left || e.clientX > box.right || e.clientY < box.top || e.clientY > box.bottom
  }

  // back returns the focus to the element that opened a dialog, or to its menu.
  function back(opener) {
    var el = opener && opener.id ? document.getElementById(opener.id) : null
    if (!el) return keepFocus()
    var menu = el.closest('details.menu:not([open])')
    if (menu) el = menu.querySelector('summary')
    el.focus()
  }

  // When the focused element is disabled or redrawn, the focus stays on the same control, else
  // on the same card, else it moves to the next card.
  var focused = null // the last focused element outside of dialogs
  // The class of a card is unreliable: htmx keeps the old one until it has settled.
  function isGone(card) { return !!card.closest('.gone') }

  function describe(el) {
    var card = el.closest('.card[id], #panel, #wait, .row[id], #sessions, #tokens')
    var all = card ? Array.from(document.querySelectorAll('.card[id]')).map(function (c) { return c.id }) : []
    var at = card ? all.indexOf(card.id) : -1
    return {
      el: el, id: el.id, card: card && card.id, gone: card && isGone(card),
      others: at < 0 ? [] : all.slice(at + 1).concat(all.slice(0, at).reverse())
    }
  }

  function usable(el) { return el && !el.disabled && el.checkVisibility() }

  // controlOf returns the control of a card that takes the focus: its first button.
  function controlOf(card) {
    if (!card) return null
    return Array.from(card.querySelectorAll('.actions .btn:not(.menu-item), .problem-actions .btn')).find(usable) ||
      Array.from(card.querySelectorAll('a[href], button, summary')).find(usable)
  }

  function keepFocus() {
    var active = document.activeElement
    if (!focused || (active && active !== document.body) || document.querySelector('dialog[open]')) return
    var was = focused, same = was.id && document.getElementById(was.id)
    var card = was.card && document.getElementById(was.card)
    if (card && !was.gone && isGone(card)) card = null // deleted, so it is in another list
    var next = usable(same) && (!card || card.contains(same)) && isGone(same) === !!was.gone ? same : null
    if (!next && card && was.el.closest('.menu')) next = card.querySelector('.menu > summary')
    next = next || controlOf(card)
    was.others.forEach(function (id) {
      var other = document.getElementById(id)
      if (!next && other && !isGone(other)) next = controlOf(other)
    })
    next = next || (was.card && document.getElementById('new-workspace')) || document.getElementById('main')
    next.focus({ preventScroll: next.id === 'main' })
  }

  document.addEventListener('focusin', function (e) {
    if (!e.target.closest('dialog, #toasts')) focused = describe(e.target)
  })
  document.addEventListener('pointerdown', function (e) {
    if (!e.target.closest('a, button, summary, input, select, textarea, label, dialog')) focused = null
  })

  // The browser sends no click when a part of the page is redrawn while the user holds one of
  // its buttons down. The same button in the new part is clicked instead.
  var held = null
  document.addEventListener('pointerdown', function (e) {
    held = e.button === 0 ? e.target.closest('a[id], button[id], summary[id]') : null
  })
  document.addEventListener('pointerup', function (e) {
    var was = held, same = was && !was.isConnected && document.getElementById(was.id)
    held = null
    if (same && same.contains(e.target) && same.textContent === was.textContent && usable(same)) same.click()
  })

  // A form that was returned with errors.
  function showErrors(form) {
    var bad = form.querySelector('[aria-invalid="true"]') || form.querySelector('[role="alert"]')
    if (!bad) return
    if (bad.tabIndex < 0) bad.tabIndex = -1
    bad.focus()
  }

  // A toast disappears after a while, unless the pointer or the focus is on it.
  function watchToast(el) {
    if (el.dataset.watched) return
    el.dataset.watched = '1'
    var left = el.classList.contains('toast-error') || el.querySelector('.toast-undo') ? 12 : 6
    var tick = window.setInterval(function () {
      if (el.matches(':hover') || el.contains(document.activeElement) || document.hidden) return
      if (--left <= 0) { window.clearInterval(tick); el.remove() }
    }, 1000)
  }

  // A toast that offers to undo a deletion disappears when the workspace is restored, also
  // from another tab.
  function dropUndone() {
    var list = document.getElementById('workspaces')
    if (!list) return
    each('[data-undo]', function (el) {
      var card = document.getElementById('ws-' + el.dataset.undo)
      if (card ? !isGone(card) : 'first' in list.dataset) el.remove()
    })
  }

  // The undo form must be sent before its toast is removed.
  function closeToast(button) {
    var toast = button.closest('[data-toast]')
    if (button.type === 'button') toast.remove()
    else toast.addEventListener('htmx:afterRequest', function () { toast.remove() })
  }

  function settle() {
    times()
    announceEndings()
    moments()
    showDialog()
    each('[data-toast]', watchToast)
    dropUndone()
  }

  document.addEventListener('click', function (e) {
    var el = e.target.closest('a, button')
    if (el && !el.closest('dialog')) pressed = el
    el = e.target.closest('[data-close-dialog]')
    if (el && el.closest('dialog')) {
      e.preventDefault()
      el.closest('dialog').close()
    }
    el = e.target.closest('[data-close-toast]')
    if (el) closeToast(el)
    el = e.target.closest('[data-copy]')
    if (el) copy(el)
    // A menu closes at a click outside of it or on one of its items.
    each('details.menu[open]', function (menu) {
      if (!menu.contains(e.target) || e.target.closest('a.menu-item, button.menu-item')) menu.open = false
    })
    el = e.target.closest('[data-theme-form] button')
    if (el) theme(el)
  })

  document.addEventListener('keydown', function (e) {
    // Links with the role button react to the space bar like buttons.
    if (e.key === ' ' && e.target.matches('a[role="button"]')) {
      e.preventDefault()
      e.target.click()
    }
    var menu = e.target.closest('details.menu[open]')
    if (!menu) return
    if (e.key === 'Escape') {
      menu.open = false
      menu.querySelector('summary').focus()
    }
    if (e.key === 'ArrowDown' || e.key === 'ArrowUp') {
      e.preventDefault()
      var items = Array.from(menu.querySelectorAll('.menu-list a, .menu-list button')).filter(function (i) { return i.offsetParent })
      var at = items.indexOf(document.activeElement)
      if (at < 0) at = e.key === 'ArrowDown' ? -1 : 0
      items[(at + (e.key === 'ArrowDown' ? 1 : items.length - 1)) % items.length].focus()
    }
  })

  document.addEventListener('focusout', function (e) {
    var menu = e.target.closest && e.target.closest('details.menu[open]')
    if (menu && e.relatedTarget && !menu.contains(e.relatedTarget)) menu.open = false
  })

  function copy(button) {
    var from = document.querySelector(button.dataset.copy)
    var label = button.querySelector('span')
    var done = function () { label.textContent = button.dataset.copied }
    if (navigator.clipboard) {
      navigator.clipboard.writeText(from.textContent).then(done, select)
    } else select()
    function select() { window.getSelection().selectAllChildren(from) }
  }

  function theme(button) {
    var root = document.documentElement
    if (button.value === 'system') root.removeAttribute('data-theme')
    else root.setAttribute('data-theme', button.value)
    each('[data-theme-form] button', function (b) { b.setAttribute('aria-pressed', b.value === button.value) })
  }

  // A request that did not reach the server.
  function requestFailed() {
    var toast = document.getElementById('toast-failed').content.cloneNode(true)
    document.getElementById('toasts').appendChild(toast)
    each('[data-toast]', watchToast)
  }

  document.body.addEventListener('htmx:sendError', function (e) {
    if (e.detail.requestConfig.verb !== 'get') requestFailed()
  })
  document.body.addEventListener('htmx:timeout', requestFailed)
  // A response that is not from codehub, such as an error of a proxy in front of it.
  document.body.addEventListener('htmx:afterRequest', function (e) {
    var d = e.detail
    if (d.xhr && d.xhr.status >= 400 && d.requestConfig.verb !== 'get' && d.xhr.responseText.indexOf('hx-swap-oob') < 0) requestFailed()
  })
  // A dialog that the server removes is closed first, so that the focus returns.
  document.body.addEventListener('htmx:oobBeforeSwap', function (e) {
    if (e.detail.target && e.detail.target.id === 'dialog') each('dialog[open]', function (el) { el.close() }, e.detail.target)
  })
  document.body.addEventListener('htmx:afterSwap', times)
  document.body.addEventListener('htmx:load', settle) // after htmx has processed the new content
  // The response may have replaced the control that sent the request.
  document.body.addEventListener('htmx:afterRequest', function () { window.setTimeout(keepFocus) })
  // When a notice with the focus disappears, the focus moves to the next notice, else to the
  // beginning of the page.
  var inEnding = false
  document.body.addEventListener('htmx:beforeRequest', function (e) {
    if (e.target.closest('#ending')) inEnding = true // the button is about to be disabled
  })
  document.body.addEventListener('htmx:oobAfterSwap', function (e) {
    times()
    announceEndings()
    moments()
    if (e.detail.target && e.detail.target.id === 'ending' && inEnding) {
      inEnding = false
      var next = document.querySelector('#ending button') || document.getElementById('main')
      if (!document.activeElement || document.activeElement === document.body) next.focus({ preventScroll: true })
    }
    dropUndone()
    keepFocus()
    var form = document.getElementById('dialog-form')
    if (e.detail.target && e.detail.target.id === 'dialog-form' && form) showErrors(form)
  })

  // A reload does not repeat the confirmation of a redirect.
  if (/[?&]note=/.test(location.search)) {
    var q = new URLSearchParams(location.search)
    q.delete('note')
    q.delete('about')
    history.replaceState(null, '', location.pathname + (q.size ? '?' + q : ''))
  }

  // The secret of an invitation is in the fragment, which no server sees.
  function invitation() {
    var code = document.getElementById('invitation-code')
    if (!code || location.hash.length < 2) return
    code.value = location.hash.slice(1)
    history.replaceState(null, '', location.pathname)
    code.form.submit()
  }
  window.addEventListener('hashchange', invitation)
  invitation()

  window.setInterval(times, 15000)
  settle()
})()
