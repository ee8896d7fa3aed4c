package postgres

import "time"

// Impatient makes l notice a silent connection within 2d.
func (l *Listener) Impatient(d time.Duration) *Listener {
	l.pingEvery, l.pingTimeout = d, d
	return l
}
