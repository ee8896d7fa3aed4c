const { test } = require('node:test')
const assert = require('node:assert')
const prices = require('prices')
const { total } = require('./basket')

test('total', () => assert.strictEqual(total(prices), 500))
