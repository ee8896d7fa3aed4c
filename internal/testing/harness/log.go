package harness

import (
	"bytes"
	"log/slog"
	"sync"
	"testing"
)

// Log collects what is logged, for a test to read. Its zero value is ready to
// use, from any goroutine.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Logger returns a logger that writes lines of any level to l.
func (l *Log) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Logger returns a logger whose lines of at least this level are shown with the
// output of the test. It drops what is logged after the end of the test.
func Logger(t testing.TB, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(untilEnd{t}, &slog.HandlerOptions{Level: level}))
}

type untilEnd struct{ testing.TB }

func (w untilEnd) Write(p []byte) (int, error) {
	if w.Context().Err() != nil {
		return len(p), nil
	}
	return w.Output().Write(p)
}
