// The count is the page's state: a module that is replaced keeps it, a reload loses it.
import { text } from './text.js'

const heading = document.getElementById('text')
const count = document.getElementById('count')
heading.textContent = text
count.addEventListener('click', () => { count.textContent = Number(count.textContent) + 1 })

import.meta.hot?.accept('./text.js', module => { heading.textContent = module.text })
