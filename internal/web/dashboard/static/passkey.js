// The page that uses or makes a passkey: it asks the server for the options, the browser for
// its response, and sends that with the form.
(function () {
  'use strict'

  var form = document.querySelector('form[data-passkey]')
  if (!form) return
  var button = document.getElementById('passkey')
  var status = document.getElementById('passkey-status')
  var texts = form.dataset

  function bytes(text) {
    var b = atob(text.replace(/-/g, '+').replace(/_/g, '/'))
    return Uint8Array.from(b, function (c) { return c.charCodeAt(0) })
  }

  function text(buffer) {
    var s = ''
    new Uint8Array(buffer).forEach(function (n) { s += String.fromCharCode(n) })
    return btoa(s).replace(/\+/g, '-').replace(/\//g, '_').replace(/=+$/, '')
  }

  function decoded(o) {
    o.challenge = bytes(o.challenge)
    if (o.user) o.user.id = bytes(o.user.id)
    ;[].concat(o.excludeCredentials || [], o.allowCredentials || []).forEach(function (c) { c.id = bytes(c.id) })
    return o
  }

  function encoded(c) {
    var r = c.response, out = { clientDataJSON: text(r.clientDataJSON) }
    if (r.attestationObject) {
      out.attestationObject = text(r.attestationObject)
      if (r.getTransports) out.transports = r.getTransports()
    } else {
      out.authenticatorData = text(r.authenticatorData)
      out.signature = text(r.signature)
      if (r.userHandle) out.userHandle = text(r.userHandle)
    }
    return JSON.stringify({ id: c.id, rawId: text(c.rawId), type: c.type, response: out, authenticatorAttachment: c.authenticatorAttachment || undefined, clientExtensionResults: {} })
  }

  function fail(problem) {
    document.getElementById('passkey-problem-text').textContent = problem
    document.getElementById('passkey-problem').hidden = false
    status.textContent = ''
    button.disabled = false
    button.focus()
  }

  function ask(options) {
    var o = { publicKey: decoded(options.publicKey) }
    return o.publicKey.user ? navigator.credentials.create(o) : navigator.credentials.get(o)
  }

  function why(e) {
    if (e.problem) return e.problem
    if (e.name === 'NotAllowedError' || e.name === 'AbortError') return texts.cancelled
    if (e.name === 'InvalidStateError') return texts.known
    if (e.name === 'SecurityError' || e.name === 'NotSupportedError') return texts.unsupported
    return e instanceof TypeError ? texts.unreachable : texts.refused
  }

  if (!window.PublicKeyCredential) {
    fail(texts.unsupported)
    return
  }
  button.hidden = false
  var first = form.querySelector('input:not([type=hidden])') || button
  if (!document.querySelector('[autofocus]')) first.focus()

  form.addEventListener('submit', function (e) {
    e.preventDefault()
    document.getElementById('passkey-problem').hidden = true
    button.disabled = true
    status.textContent = texts.waiting
    var name = form.elements.name
    var body = new URLSearchParams(name && name.value ? { name: name.value } : {})
    fetch(texts.passkey, { method: 'POST', body: body, credentials: 'same-origin' }).then(function (r) {
      return r.json().then(function (o) {
        if (!r.ok) throw o
        return ask(o)
      })
    }).then(function (c) {
      form.elements.response.value = encoded(c)
      form.submit()
    }).catch(function (e) { fail(why(e)) })
  })
})()
